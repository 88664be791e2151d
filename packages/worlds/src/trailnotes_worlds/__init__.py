"""Environments for Trailnotes: a folder for each, and an entry point that registers it."""

EXTRAS = {
    "scienceworld": ("scienceworld", "py4j"),
    "alfworld": ("alfworld", "fast_downward", "textworld"),
    "textworld-express": ("textworld_express", "py4j"),
    "webshop": ("rapidfuzz",),
    "gymnasium": ("gymnasium",),
    "verifiers": ("verifiers",),
    "openenv": ("websockets", "starlette", "uvicorn"),
    "mobile-env": ("google",),  # the top-level package of protobuf
    "spacy": ("spacy",),
}
"""Extra of this distribution -> the modules that it brings."""

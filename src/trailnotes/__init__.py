"""Trailnotes trains LLM agents that explore, write tips for later attempts, and learn to act without them.

The names below are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trailnotes.client import session
    from trailnotes.config.schema import Config
    from trailnotes.config.toml import load_config
    from trailnotes.envs import check_env, make_env
    from trailnotes.memory import open_memory
    from trailnotes.runs.adapt import adapt
    from trailnotes.runs.evaluate import evaluate
    from trailnotes.runs.train import train

__version__ = "0.1.0"

__all__ = ["Config", "adapt", "check_env", "evaluate", "load_config", "make_env", "open_memory", "session", "train"]

_HOMES = {
    "Config": "trailnotes.config.schema",
    "adapt": "trailnotes.runs.adapt",
    "check_env": "trailnotes.envs",
    "evaluate": "trailnotes.runs.evaluate",
    "load_config": "trailnotes.config.toml",
    "make_env": "trailnotes.envs",
    "open_memory": "trailnotes.memory",
    "session": "trailnotes.client",
    "train": "trailnotes.runs.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trailnotes' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

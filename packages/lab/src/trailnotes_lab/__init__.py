"""The lab of Trailnotes: compare methods, view runs, and show them in experiment trackers."""

EXTRAS = {"tensorboard": ("tensorboard",), "wandb": ("wandb",), "mlflow": ("mlflow",), "trackio": ("trackio",)}
"""Extra of this distribution -> the modules that it brings."""

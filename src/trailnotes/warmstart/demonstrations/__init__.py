"""Scripted episodes that a start model imitates: acting without tips, acting on tips, writing a tip afterwards."""

from __future__ import annotations

import importlib
from typing import Any

from trailnotes.storage.demonstrations import Demonstration, from_jsonl

__all__ = ["DEMONSTRATORS", "Demonstration", "demonstrator_of", "from_jsonl"]

# By environment. Called with (config, count_tokens, seed), it is an endless iterable of `Demonstration`.
DEMONSTRATORS: dict[str, str] = {
    "scienceworld": "trailnotes.warmstart.demonstrations.scienceworld:ScienceWorldDemonstrator",
    "waymarks": "trailnotes.warmstart.demonstrations.waymarks:WaymarksDemonstrator",
    "waymarks-simulator": "trailnotes.warmstart.demonstrations.waymarks:WaymarksDemonstrator",
}


def demonstrator_of(env: str) -> Any:
    """The class behind `env`'s scripted episodes, None if it has none."""
    if env not in DEMONSTRATORS:
        return None
    module, _, name = DEMONSTRATORS[env].partition(":")
    return getattr(importlib.import_module(module), name)

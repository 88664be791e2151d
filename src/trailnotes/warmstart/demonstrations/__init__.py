"""Scripted episodes that a start model imitates: acting without tips, acting on tips, writing a tip afterwards."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from trailnotes.errors import ConfigError
from trailnotes.storage.demonstrations import Demonstration, from_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trailnotes.config.schema import Config

__all__ = ["DEMONSTRATORS", "Demonstration", "demonstrator_of", "from_jsonl", "scripted_apart"]

# By environment. Called with (config, count_tokens, seed), it is an endless iterable of `Demonstration`; so is what its
# class method `apart` returns, of games that `config` neither trains on nor examines.
DEMONSTRATORS: dict[str, str] = {
    "alfworld": "trailnotes.warmstart.demonstrations.experts:ExpertDemonstrator",
    "minesweeper": "trailnotes.warmstart.demonstrations.experts:ExpertDemonstrator",
    "scienceworld": "trailnotes.warmstart.demonstrations.scienceworld:ScienceWorldDemonstrator",
    "sokoban": "trailnotes.warmstart.demonstrations.experts:ExpertDemonstrator",
    "textworld-express": "trailnotes.warmstart.demonstrations.coin:CoinDemonstrator",
    "waymarks": "trailnotes.warmstart.demonstrations.waymarks:WaymarksDemonstrator",
    "waymarks-simulator": "trailnotes.warmstart.demonstrations.waymarks:WaymarksDemonstrator",
    "webshop": "trailnotes.warmstart.demonstrations.webshop:WebShopDemonstrator",
    "wikihow": "trailnotes.warmstart.demonstrations.wikihow:WikiHowDemonstrator",
}

# Those of them that have another script where `rollout.style` is "full".
ENGLISH: dict[str, str] = {
    "scienceworld": "trailnotes.warmstart.demonstrations.scienceworld_english:EnglishScienceWorld",
    "waymarks": "trailnotes.warmstart.demonstrations.waymarks_english:EnglishWaymarks",
    "waymarks-simulator": "trailnotes.warmstart.demonstrations.waymarks_english:EnglishWaymarks",
    "webshop": "trailnotes.warmstart.demonstrations.webshop:EnglishWebShop",
}


def demonstrator_of(env: str, style: Literal["full", "terse"]) -> Any:
    """The class behind `env`'s scripted episodes in this wording, None if it has none."""
    if env not in DEMONSTRATORS:
        return None
    scripts = DEMONSTRATORS | ENGLISH if style == "full" else DEMONSTRATORS
    module, _, name = scripts[env].partition(":")
    return getattr(importlib.import_module(module), name)


def scripted_apart(config: Config, count_tokens: Callable[[str], int], seed: int) -> Iterable[Demonstration]:
    """Endless scripted episodes of games that `config` neither trains on nor examines, drawn by `seed`.

    Raises:
        ConfigError: the environment has no script, or no such games.
    """
    demonstrator = demonstrator_of(config.env.name, config.rollout.style)
    if demonstrator is None:
        known = ", ".join(sorted(DEMONSTRATORS))
        raise ConfigError(
            f"env.name = {config.env.name!r} has no scripted episodes (those that have: {known}); let the start model "
            "play instead: trailnotes rehearsal record"
        )
    found: Iterable[Demonstration] = demonstrator.apart(config, count_tokens, seed)
    return found

"""Scripted episodes for imitation: acting without tips, acting on tips, writing a tip afterwards."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any, Literal

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.storage.demonstrations import Demonstration, read_demonstrations

__all__ = ["Demonstration", "read_demonstrations"]

# By environment. Called with (config, count_tokens, seed), it is an endless iterable of `Demonstration`; so is what its
# class method `build_held_out` returns, of games that `config` neither trains on nor examines.
DEMONSTRATORS: dict[str, str] = {
    "waymarks": "trailnotes.warmstart.demonstrations.waymarks:WaymarksDemonstrator",
    "waymarks-simulator": "trailnotes.warmstart.demonstrations.waymarks:WaymarksDemonstrator",
    # those that have another script where `rollout.style` is "full"
    "waymarks.full": "trailnotes.warmstart.demonstrations.waymarks_english:EnglishWaymarks",
    "waymarks-simulator.full": "trailnotes.warmstart.demonstrations.waymarks_english:EnglishWaymarks",
}
ENTRY_POINTS = "trailnotes.demonstrations"  # group under which other packages offer ``ENV`` and ``ENV.full``


def list_demonstrators() -> dict[str, str]:
    return DEMONSTRATORS | {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def load_demonstrator(env: str, style: Literal["full", "terse"]) -> Any:
    known = list_demonstrators()
    script = known.get(f"{env}.full" if style == "full" else env, known.get(env))
    return None if script is None else pkgutil.resolve_name(script)


def require_demonstrator(config: Config, fix: str) -> Any:
    """Return `load_demonstrator` of the settings, or raise a `ConfigError` that names the `fix`."""
    demonstrator = load_demonstrator(config.env.name, config.rollout.style)
    if demonstrator is None:
        known = ", ".join(sorted(name for name in list_demonstrators() if not name.endswith(".full")))
        raise ConfigError(f"env.name = {config.env.name!r} has no scripted episodes (those that have: {known}); {fix}")
    return demonstrator


def iter_held_out_demonstrations(
    config: Config, count_tokens: Callable[[str], int], seed: int
) -> Iterable[Demonstration]:
    """Iterate endlessly over scripted episodes of games outside training and evaluation, by `seed`."""
    demonstrator = require_demonstrator(config, "let the start model play instead: trailnotes rehearsal record")
    return demonstrator.build_held_out(config, count_tokens, seed)  # type: ignore[no-any-return]

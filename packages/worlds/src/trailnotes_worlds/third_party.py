"""Tasks and success rules of third-party environments, which name neither."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trailnotes.envs.base import require_choice, require_int, require_table
from trailnotes.errors import ConfigError
from trailnotes.types import Task

FIRST_SEED: Final[Mapping[str, int]] = {"train": 0, "validation": 1_000_000, "test": 2_000_000}
"""Split -> its first seed. A split has fewer seeds than lie between two of these, so no seed is on two sides."""

_MAX_SEEDS: Final = 1_000_000
_MAX_NAME_CHARS: Final = 80  # of the settings in a task's id; a digest replaces longer ones


def resolve_names(key: str, value: str | Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Resolve an option to names: a name, "all", or a list of names. Raises `ConfigError`, which names `key`."""
    names = tuple(known) if value == "all" else (value,) if isinstance(value, str) else tuple(value)
    for name in names:
        require_choice(key, name, known)
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"env.options.{key} must name one or more, each once; or say 'all'")
    return names


def format_game_name(name: str, key: str, value: object) -> str:
    """Format a game and its settings for task ids: ``FrozenLake-v1?is_slippery=false``, bounded in length."""
    settings = require_table(key, value)
    if not settings:
        return name
    try:
        text = "&".join(f"{key}={json.dumps(settings[key], sort_keys=True)}" for key in sorted(settings))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.options.{key} must hold JSON values: {error}") from error
    if len(text) > _MAX_NAME_CHARS:
        text = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    return f"{name}?{text}"


def make_seeded_tasks(env: str, game: str, split: str, numbers: Mapping[str, int]) -> list[Task]:
    """Make tasks ``ENV/GAME/SEED`` of one split, with consecutive seeds that no other split has."""
    require_choice("split", split, FIRST_SEED, where="")
    number = require_int(f"num_{split}", numbers[split], most=_MAX_SEEDS)
    first, family = FIRST_SEED[split], f"{env}/{game}"
    return [Task(f"{family}/{seed}", env, seed, split, {"game": game}, family) for seed in range(first, first + number)]


def describe_success(**options: float | None) -> dict[str, float]:
    """Return the options of success that are set: runs that judge it by other limits are not comparable."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class SuccessRule:
    """Success of an episode by its rewards alone: an episode may also end because it is lost.

    Returns are rounded to 9 decimals, so that ten rewards of 0.1 reach 1.
    """

    least_return: float | None = None  # sum of all rewards; None sets no limit
    least_reward: float | None = None  # of the step that ends the episode; None sets no limit
    max_return: float | None = None  # scores are sums up to this; None: a success is 1, everything else 0

    def __post_init__(self) -> None:
        names = ("success_return", "success_reward", "max_return")
        for name, value in zip(names, (self.least_return, self.least_reward, self.max_return), strict=True):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ConfigError(f"env.options.{name} = {value!r} is no number")
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"env.options.{name} = {value} must be finite")
        if self.max_return is not None and self.max_return <= 0:
            raise ConfigError(f"env.options.max_return = {self.max_return:g} must be above 0, or be left out")
        if self.max_return is not None and self.least_return is not None and self.least_return <= 0:
            raise ConfigError("env.options.success_return must be above 0 with max_return: a success has a score")

    @property
    def is_defined(self) -> bool:
        return self.least_return is not None or self.least_reward is not None

    def is_won(self, total: float, reward: float) -> bool:
        """Whether an episode that ended by its own rules, with these total and last rewards, was won."""
        return (
            self.is_defined
            and (self.least_return is None or round(total, 9) >= self.least_return)
            and (self.least_reward is None or reward >= self.least_reward)
            and (self.max_return is None or total > 0)  # a success has a score above 0
        )

    def score(self, total: float, *, success: bool) -> tuple[float, float]:
        """Compute the score so far, and the highest possible one."""
        if self.max_return is None:
            return float(success), 1.0
        return min(max(round(total, 9), 0.0), self.max_return), float(self.max_return)

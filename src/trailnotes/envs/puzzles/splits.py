"""Which levels there are: listed by number, and put into a split by what they are."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType

from trailnotes.errors import ConfigError
from trailnotes.seeds import derive_seed
from trailnotes.types import Task

# Split -> the tenths of all levels that are its own.
SHARES: Mapping[str, range] = MappingProxyType({"train": range(6), "validation": range(6, 8), "test": range(8, 10)})
_SEEDS_PER_SPLIT = 100_000


def split_of(identity: str) -> str:
    """The split that a level belongs to, whoever draws it: a pure function of what it is, so no two splits share one.

    Args:
        identity: the level as text, the same for each of its mirror images and rotations.
    """
    tenth = derive_seed("puzzle", identity) % 10
    return next(split for split, tenths in SHARES.items() if tenth in tenths)


def same_in_all_orientations(rows: list[str]) -> str:
    """A text that a square grid of symbols has in common with its mirror images and rotations, and with nothing else.

    Args:
        rows: n strings of n symbols.
    """
    found = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]  # a quarter turn clockwise
        found += ["\n".join(rows), "\n".join(row[::-1] for row in rows)]
    return min(found)


def puzzle_tasks(
    env: str, kind: str, split: str, num_games: int, dataset_seed: int, options: Mapping[str, str | bool]
) -> list[Task]:
    """Tasks ``<env>/<kind>/<split>-<seed>``. Nothing is generated yet.

    Raises:
        ConfigError: an unknown split, or a number out of range.
    """
    one_of("split", split, SHARES)
    whole("num_games", num_games, 1, _SEEDS_PER_SPLIT)
    whole("dataset_seed", dataset_seed, 0, 9999)
    first = (dataset_seed * len(SHARES) + list(SHARES).index(split)) * _SEEDS_PER_SPLIT
    family = f"{env}/{kind}"
    return [
        Task(f"{family}/{split}-{seed}", env, seed, split, options, family) for seed in range(first, first + num_games)
    ]


def one_of(key: str, value: object, known: Collection[str]) -> str:
    """`value`, if it is one of `known`. Raises `ConfigError` with the nearest if not."""
    if isinstance(value, str) and value in known:
        return value
    close = difflib.get_close_matches(str(value), known, n=1)
    raise ConfigError(f"{key} = {value!r} is unknown: use {repr(close[0]) if close else ' or '.join(known)}")


def whole(key: str, value: object, least: int, most: int) -> int:
    """`value`, if it is a whole number in this range. Raises `ConfigError` if not."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{key} = {value!r} must be a whole number, {least} to {most}")
    return value

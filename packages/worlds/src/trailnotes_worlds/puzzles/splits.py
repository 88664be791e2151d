"""Which levels there are: listed by number, and put into a split by what they are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from trailnotes.envs.options import require_choice, require_int
from trailnotes.seeds import derive_seed
from trailnotes.types import Task

# Split -> the tenths of all levels that are its own.
SPLIT_BUCKETS: Mapping[str, range] = MappingProxyType(
    {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}
)
_SEEDS_PER_SPLIT = 100_000


def assign_split(identity: str) -> str:
    """The split that a level belongs to, whoever draws it: a pure function of what it is, so no two splits share one.

    Args:
        identity: the level as text, the same for each of its mirror images and rotations.
    """
    tenth = derive_seed("puzzle", identity) % 10
    return next(split for split, tenths in SPLIT_BUCKETS.items() if tenth in tenths)


def canonicalize_orientation(rows: list[str]) -> str:
    """A text that a square grid of symbols has in common with its mirror images and rotations, and with nothing else.

    Args:
        rows: n strings of n symbols.
    """
    found = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]  # a quarter turn clockwise
        found += ["\n".join(rows), "\n".join(row[::-1] for row in rows)]
    return min(found)


def make_puzzle_tasks(
    env: str, kind: str, split: str, num_games: int, dataset_seed: int, options: Mapping[str, str | bool]
) -> list[Task]:
    """Tasks ``<env>/<kind>/<split>-<seed>``. Nothing is generated yet.

    Raises:
        ConfigError: an unknown split, or a number out of range.
    """
    require_choice("split", split, SPLIT_BUCKETS)
    require_int("num_games", num_games, 1, _SEEDS_PER_SPLIT)
    require_int("dataset_seed", dataset_seed, 0, 9999)
    first = (dataset_seed * len(SPLIT_BUCKETS) + list(SPLIT_BUCKETS).index(split)) * _SEEDS_PER_SPLIT
    family = f"{env}/{kind}"
    return [
        Task(f"{family}/{split}-{seed}", env, seed, split, options, family) for seed in range(first, first + num_games)
    ]

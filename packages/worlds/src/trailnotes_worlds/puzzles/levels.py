"""Generator of Sokoban levels, which all have a solution, in splits that share no level."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from trailnotes.config.seeds import derive_seed
from trailnotes_worlds.puzzles.rooms import (
    CanonicalPosition,
    Position,
    Push,
    Room,
    expand_pushes,
    find_reachable,
    list_cells,
    make_border_mask,
    render_rows,
    search_backwards,
)

VERSION: Final = 2  # of the generator: another version makes other levels of the same seeds
# Split -> its tenths of all levels.
SPLIT_BUCKETS: Mapping[str, range] = MappingProxyType(
    {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}
)
_MAX_ATTEMPTS = 300  # rooms in a row without a level: with the difficulties below it takes a few


@dataclass(frozen=True, slots=True)
class SokobanDifficulty:
    """Parameters of the level generator."""

    size: int  # of the square room, walls around it included
    boxes: int
    walls: float  # share of the inner cells
    pushes: range  # of the best solution
    max_steps: int  # of an episode; a solution takes at most half of them


DIFFICULTIES: Mapping[str, SokobanDifficulty] = MappingProxyType(
    {
        "easy": SokobanDifficulty(6, 1, 0.15, range(1, 4), 20),
        "medium": SokobanDifficulty(6, 2, 0.15, range(3, 8), 50),
        "hard": SokobanDifficulty(7, 2, 0.25, range(7, 15), 100),
        "expert": SokobanDifficulty(8, 3, 0.3, range(10, 25), 160),
    }
)


@dataclass(frozen=True, slots=True)
class SokobanLevel:
    """Level and its solution with the fewest pushes."""

    room: Room
    start: Position
    solution: tuple[str, ...]


@lru_cache(1024)
def generate_level(difficulty: str, split: str, seed: int) -> SokobanLevel:
    """Generate the level of this number: a pure function of its arguments.

    No room with its goals, nor a mirror image or rotation of it, is in two splits.
    """
    wanted = DIFFICULTIES[difficulty]
    rng = random.Random(derive_seed("sokoban", difficulty, split, seed))
    for _ in range(_MAX_ATTEMPTS):
        room = _generate_room(wanted, rng)
        while assign_split(canonicalize_orientation(render_rows(room))) != split:
            room = _generate_room(wanted, rng)
        if level := _generate_start(room, wanted, rng):
            return level
    raise AssertionError(f"no room of difficulty {difficulty} has a level: loosen it")


def _generate_room(wanted: SokobanDifficulty, rng: random.Random) -> Room:
    """Place random walls in a square, keep the largest connected part, and place random goals on it."""
    size = wanted.size
    inner = list_cells(((1 << size * size) - 1) & ~make_border_mask(size, size))
    while True:
        free = sum(1 << cell for cell in inner if rng.random() >= wanted.walls)
        parts = {find_reachable(free, cell, size) for cell in list_cells(free)}
        floor = max(parts, key=lambda part: (part.bit_count(), part), default=0)
        if floor.bit_count() > 3 * wanted.boxes:
            goals = sum(1 << cell for cell in rng.sample(list_cells(floor), wanted.boxes))
            return Room(size, size, floor, goals)


def _generate_start(room: Room, wanted: SokobanDifficulty, rng: random.Random) -> SokobanLevel | None:
    """Draw a level with no box on a goal and the wanted number of pushes; None if the room has none."""
    ways, starts = dict[CanonicalPosition, Push](), list[CanonicalPosition]()
    for place, push in search_backwards(room):
        if push.left >= wanted.pushes.stop:
            break
        ways[place] = push
        if push.left in wanted.pushes and not place.boxes & room.goals:
            starts.append(place)
    if not starts:
        return None
    place = rng.choice(starts)
    start = Position(place.boxes, rng.choice(list_cells(place.player)))
    solution = expand_pushes(room, start, ways)
    return SokobanLevel(room, start, solution) if 2 * len(solution) <= wanted.max_steps else None


def assign_split(identity: str) -> str:
    """Assign a level to a split: a pure function of the level, so that no two splits share one."""
    tenth = derive_seed("puzzle", identity) % 10
    return next(split for split, tenths in SPLIT_BUCKETS.items() if tenth in tenths)


def canonicalize_orientation(rows: list[str]) -> str:
    """Return a text that a square grid shares exactly with its mirror images and rotations."""
    orientations = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]  # a quarter turn clockwise
        orientations += ["\n".join(rows), "\n".join(row[::-1] for row in rows)]
    return min(orientations)

"""Sokoban's rooms, moves, a search backwards from the goals, and levels, which all have a solution.

Cells are bits of an integer, row by row; the symbols are those of XSB, the format of published collections of levels.
The search pulls boxes from their goals, so every position that it reaches can be solved, in as many pushes as it took
pulls.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from trailnotes.types import derive_seed

WALL, FLOOR, GOAL, BOX, BOX_ON_GOAL, PLAYER, PLAYER_ON_GOAL = "#-.$*@+"
DIRECTIONS: Final = ("up", "down", "left", "right")


@dataclass(frozen=True, slots=True)
class Room:
    """Immutable part of a level, as masks of cells; (row, column) is bit ``row * width + column``."""

    width: int
    height: int
    floor: int  # cells without a wall; none on the border
    goals: int

    def get_offsets(self) -> dict[str, int]:
        return dict(zip(DIRECTIONS, (-self.width, self.width, -1, 1), strict=True))


@dataclass(frozen=True, slots=True)
class Position:
    """Mutable part of a level."""

    boxes: int  # bit mask
    player: int  # number of a cell


def move_player(room: Room, position: Position, direction: str) -> Position | None:
    """Move the player and push a box; return the position, or None if a wall or a second box is in the way."""
    step = room.get_offsets()[direction]
    to = position.player + step
    if not room.floor >> to & 1:
        return None
    if not position.boxes >> to & 1:
        return Position(position.boxes, to)
    behind = to + step
    if not room.floor >> behind & 1 or position.boxes >> behind & 1:
        return None
    return Position(position.boxes ^ (1 << to) ^ (1 << behind), to)


def render_rows(room: Room, position: Position | None = None) -> list[str]:
    return [
        "".join(_get_symbol(room, position, row * room.width + column) for column in range(room.width))
        for row in range(room.height)
    ]


def _get_symbol(room: Room, position: Position | None, cell: int) -> str:
    if not room.floor >> cell & 1:
        return WALL
    goal = room.goals >> cell & 1
    if position and position.player == cell:
        return PLAYER_ON_GOAL if goal else PLAYER
    if position and position.boxes >> cell & 1:
        return BOX_ON_GOAL if goal else BOX
    return GOAL if goal else FLOOR


def list_cells(mask: int) -> list[int]:
    return [cell for cell in range(mask.bit_length()) if mask >> cell & 1]


def make_border_mask(width: int, height: int) -> int:
    row = (1 << width) - 1
    side = sum(1 << line * width for line in range(height))
    return row | row << (height - 1) * width | side | side << (width - 1)


def find_reachable(free: int, cell: int, width: int) -> int:
    """Return the mask of the cells of `free` in reach of `cell`, with itself. `free` has no cell on the border."""
    reached, before = 1 << cell, 0
    while reached != before:
        before = reached
        reached |= (reached << 1 | reached >> 1 | reached << width | reached >> width) & free
    return reached


class CanonicalPosition(NamedTuple):
    """Set of the positions that differ by a walk only."""

    boxes: int
    player: int  # mask of the player's possible cells


class Push(NamedTuple):
    """Push on the shortest way to the goals."""

    box: int  # cell
    direction: str
    then: CanonicalPosition | None  # position after it; None in a solved one
    left: int  # pushes to the goals, this one included


def canonicalize_position(room: Room, position: Position) -> CanonicalPosition:
    return CanonicalPosition(position.boxes, find_reachable(room.floor & ~position.boxes, position.player, room.width))


def search_backwards(room: Room) -> Iterator[tuple[CanonicalPosition, Push]]:
    """Yield all solvable positions, nearest first, each with its next push.

    The solved ones come first, with ``left`` 0.
    """
    steps = room.get_offsets()
    waiting: deque[tuple[CanonicalPosition, int]] = deque()
    known: set[CanonicalPosition] = set()
    unseen = room.floor & ~room.goals
    while unseen:
        solved = CanonicalPosition(room.goals, find_reachable(unseen, list_cells(unseen)[0], room.width))
        unseen &= ~solved.player
        known.add(solved)
        waiting.append((solved, 0))
        yield solved, Push(-1, "", None, 0)
    while waiting:
        after, left = waiting.popleft()
        for box in list_cells(after.boxes):
            for direction, step in steps.items():
                # Before the push the box stood where the player stands after it, and the player one cell further back.
                was, player = box - step, box - 2 * step
                if not after.player >> was & 1 or not room.floor >> player & 1 or after.boxes >> player & 1:
                    continue
                boxes = after.boxes ^ (1 << box) ^ (1 << was)
                before = CanonicalPosition(boxes, find_reachable(room.floor & ~boxes, player, room.width))
                if before not in known:
                    known.add(before)
                    waiting.append((before, left + 1))
                    yield before, Push(was, direction, after, left + 1)


def expand_pushes(room: Room, position: Position, ways: dict[CanonicalPosition, Push]) -> tuple[str, ...]:
    """Expand the pushes in `ways` into moves, with the shortest walks between them."""
    moves: list[str] = []
    steps = room.get_offsets()
    while (push := ways[canonicalize_position(room, position)]).left:
        walk = _find_walk(room, position, push.box - steps[push.direction])
        for direction in (*walk, push.direction):
            after = move_player(room, position, direction)
            assert after
            position = after
            moves.append(direction)
    return tuple(moves)


def _find_walk(room: Room, position: Position, to: int) -> list[str]:
    free, steps = room.floor & ~position.boxes, room.get_offsets()
    came: dict[int, tuple[int, str]] = {position.player: (-1, "")}
    waiting = deque([position.player])
    while to not in came:
        cell = waiting.popleft()
        for direction, step in steps.items():
            if free >> cell + step & 1 and cell + step not in came:
                came[cell + step] = (cell, direction)
                waiting.append(cell + step)
    walk: list[str] = []
    while came[to][1]:
        to, direction = came[to]
        walk.append(direction)
    return walk[::-1]


VERSION: Final = 2  # of the generator: another version makes other levels of the same seeds
# Split -> its tenths of all levels.
SPLIT_BUCKETS: Mapping[str, range] = MappingProxyType(
    {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}
)
_MAX_ATTEMPTS = 300  # rooms in a row without a level: with the difficulties below it takes a few


@dataclass(frozen=True, slots=True)
class SokobanDifficulty:
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

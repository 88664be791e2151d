"""Sokoban's rooms, moves, and a search backwards from the goals. Cells are bits of an integer, row by row.

The symbols are those of XSB, the format of published collections of levels. The search pulls boxes from their goals, so
every position that it reaches can be solved, in exactly as many pushes as it took pulls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

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
    """Render rows of symbols: the room, with player and boxes unless `position` is None."""
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

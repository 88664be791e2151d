"""Sokoban: a room, what stands in it, and what a move does. Cells are bits of an integer, row by row.

The symbols are those of XSB, the format that collections of levels are published in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WALL, FLOOR, GOAL, BOX, BOX_ON_GOAL, PLAYER, PLAYER_ON_GOAL = "#-.$*@+"
DIRECTIONS: Final = ("up", "down", "left", "right")


@dataclass(frozen=True, slots=True)
class Room:
    """What stays: cells as bit masks, cell (row, column) being bit ``row * width + column``."""

    width: int
    height: int
    floor: int  # all that is no wall; none of it on the border
    goals: int

    def get_offsets(self) -> dict[str, int]:
        """Direction -> what is added to the number of a cell."""
        return dict(zip(DIRECTIONS, (-self.width, self.width, -1, 1), strict=True))


@dataclass(frozen=True, slots=True)
class Position:
    """What changes."""

    boxes: int  # bit mask
    player: int  # number of a cell


def move_player(room: Room, position: Position, direction: str) -> Position | None:
    """The position after a move, with the box that was pushed; None if a wall or a second box is in the way."""
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
    """Rows of symbols: the room, with what stands in it unless `position` is None."""
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


def make_border_mask(width: int, height: int) -> int:
    """Mask of the outermost cells."""
    row = (1 << width) - 1
    side = sum(1 << line * width for line in range(height))
    return row | row << (height - 1) * width | side | side << (width - 1)


def find_reachable(free: int, cell: int, width: int) -> int:
    """Mask of the cells of `free` that can be walked to from `cell`, itself included.

    No cell of `free` may lie on the border.
    """
    reached, before = 1 << cell, 0
    while reached != before:
        before = reached
        reached |= (reached << 1 | reached >> 1 | reached << width | reached >> width) & free
    return reached


def list_cells(mask: int) -> list[int]:
    """Numbers of the cells of a mask, in order."""
    return [cell for cell in range(mask.bit_length()) if mask >> cell & 1]

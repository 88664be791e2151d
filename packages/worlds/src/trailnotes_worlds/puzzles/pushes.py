"""Sokoban solved backwards: from the boxes on their goals, by pulling, so that no dead end is ever entered.

What the search reaches can be solved, in as many pushes as it took pulls and no fewer: a generator takes its level
from there, and with it the expert's solution.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from trailnotes_worlds.puzzles.rooms import Position, Room, find_reachable, list_cells, move_player


class CanonicalPosition(NamedTuple):
    """All positions that differ by a walk only."""

    boxes: int
    player: int  # mask of where the player may be


class Push(NamedTuple):
    """One push on the shortest way to the goals."""

    box: int  # cell
    direction: str
    then: CanonicalPosition | None  # the place after it; None where everything is on its goal already
    left: int  # pushes to the goals, this one included


def canonicalize_position(room: Room, position: Position) -> CanonicalPosition:
    """The place of a position."""
    return CanonicalPosition(position.boxes, find_reachable(room.floor & ~position.boxes, position.player, room.width))


def search_backwards(room: Room) -> Iterator[tuple[CanonicalPosition, Push]]:
    """All places from which the goals can be reached, nearest first, each with the push to make there.

    The solved places come first, with ``left`` 0.
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
    """The moves of the pushes in `ways`, with the shortest walks between them.

    Raises:
        KeyError: `ways` does not lead from `position` to the goals.
    """
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
    """The directions of a shortest walk between two cells of one place."""
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

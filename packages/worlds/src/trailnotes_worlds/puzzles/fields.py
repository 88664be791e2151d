"""Minesweeper: a field of mines, and what follows from the numbers that are open. Cells are bits of an integer.

What follows is exact: a cell is safe if it has no mine in any arrangement that fits all numbers and the number of mines
that are left. No arrangement is ever guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Minefield:
    """A square field; cell (row, column) is bit ``row * size + column``."""

    size: int
    mines: int  # bit mask

    @property
    def all_cells(self) -> int:
        """Mask of all cells."""
        return (1 << self.size * self.size) - 1

    def count_adjacent_mines(self, cell: int) -> int:
        """How many of a cell's up to eight neighbours are mines."""
        return (get_neighbours(self.size, cell) & self.mines).bit_count()


@cache
def get_neighbours(size: int, cell: int) -> int:
    """Mask of the neighbours of a cell, itself left out."""
    row, column = divmod(cell, size)
    rows = range(max(0, row - 1), min(size, row + 2))
    columns = range(max(0, column - 1), min(size, column + 2))
    return sum(1 << r * size + c for r in rows for c in columns) & ~(1 << cell)


def open_cell(field: Minefield, already: int, cell: int) -> int:
    """Mask of what is open once a safe `cell` is: a 0 opens all its neighbours."""
    waiting = [cell]
    while waiting:
        cell = waiting.pop()
        if already >> cell & 1:
            continue
        already |= 1 << cell
        if not field.count_adjacent_mines(cell):
            waiting += list_cells(get_neighbours(field.size, cell) & ~already)
    return already


def solve_by_logic(field: Minefield, start: int) -> tuple[int, ...] | None:
    """The cells to open, one after the other, after `start`: each follows from what is open then. None: one must guess.

    Cells that have opened by themselves are left out.
    """
    open_, order = open_cell(field, 0, start), list[int]()
    while open_ != field.all_cells & ~field.mines:
        follows = find_safe_cells(
            field.size, {cell: field.count_adjacent_mines(cell) for cell in list_cells(open_)}, field.mines.bit_count()
        )
        if not follows:
            return None
        for cell in list_cells(follows):
            if not open_ >> cell & 1:
                open_ = open_cell(field, open_, cell)
                order.append(cell)
    return tuple(order)


def find_safe_cells(size: int, numbers: Mapping[int, int], num_mines: int) -> int:
    """Mask of the closed cells that can have no mine.

    Args:
        size: of the square field.
        numbers: what is open: cell -> number of mines around it.
        num_mines: of the whole field.
    """
    closed = ((1 << size * size) - 1) & ~sum(1 << cell for cell in numbers)
    clues = {(get_neighbours(size, cell) & closed, number) for cell, number in numbers.items()}
    parts = list(_group_clues({clue for clue in clues if clue[0]}))
    bordering = 0
    for mask, _ in parts:
        bordering |= mask
    far = (closed & ~bordering).bit_count()  # cells of which no number says anything
    told = [_enumerate_arrangements(part) for _, part in parts]
    never = 0
    for index, (mask, _) in enumerate(parts):
        others = _compute_totals(other for place, other in enumerate(told) if place != index)
        mined = 0
        for num, where in told[index].items():
            if any(0 <= num_mines - num - rest <= far for rest in others):
                mined |= where
        never |= mask & ~mined
    if all(total == num_mines for total in _compute_totals(told) if 0 <= num_mines - total <= far):
        never |= closed & ~bordering
    return never


Clue = tuple[int, int]  # mask of closed cells, and how many of them are mines


def _group_clues(clues: set[Clue]) -> Iterator[tuple[int, list[Clue]]]:
    """Clues that share cells, directly or by others, with the mask of their cells."""
    left = sorted(clues)
    while left:
        mask, part = left[0][0], list[Clue]()
        while touching := [clue for clue in left if clue[0] & mask]:
            part += touching
            left = [clue for clue in left if not clue[0] & mask]
            for cells, _ in touching:
                mask |= cells
        yield mask, part


def _enumerate_arrangements(clues: list[Clue]) -> dict[int, int]:
    """Number of mines -> mask of the cells that have one in any arrangement of so many that fits all clues."""
    found: dict[int, int] = {}

    def place(index: int, mines: int, clear: int) -> None:
        if index == len(clues):
            found[mines.bit_count()] = found.get(mines.bit_count(), 0) | mines
            return
        cells, number = clues[index]
        free = cells & ~mines & ~clear
        missing = number - (cells & mines).bit_count()
        for chosen in _iter_choices(free, missing):
            place(index + 1, mines | chosen, clear | free & ~chosen)

    place(0, 0, 0)
    return found


def _iter_choices(mask: int, num: int) -> Iterator[int]:
    """All masks of `num` cells of `mask`."""
    if num == 0:
        yield 0
    elif 0 < num <= mask.bit_count():
        low = mask & -mask
        for rest in _iter_choices(mask ^ low, num - 1):
            yield rest | low
        yield from _iter_choices(mask ^ low, num)


def _compute_totals(told: Iterable[Mapping[int, int]]) -> set[int]:
    """The totals of mines that are possible over several parts."""
    totals = {0}
    for part in told:
        totals = {total + num for total in totals for num in part}
    return totals


def list_cells(mask: int) -> list[int]:
    """Numbers of the cells of a mask, in order."""
    return [cell for cell in range(mask.bit_length()) if mask >> cell & 1]

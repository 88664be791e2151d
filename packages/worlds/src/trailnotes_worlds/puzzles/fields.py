"""Minefields and exact inference from open numbers. Cells are bits of an integer.

A cell is safe if it has no mine in any arrangement that fits all numbers and the number of mines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from trailnotes_worlds.puzzles.base import list_cells


@dataclass(frozen=True, slots=True)
class Minefield:
    """Square field of mines; cell (row, column) is bit ``row * size + column``."""

    size: int
    mines: int  # bit mask

    @property
    def all_cells(self) -> int:
        """Mask of all cells."""
        return (1 << self.size * self.size) - 1

    def count_adjacent_mines(self, cell: int) -> int:
        """Count the mines among a cell's up to eight neighbours."""
        return (get_neighbours(self.size, cell) & self.mines).bit_count()


@cache
def get_neighbours(size: int, cell: int) -> int:
    """Return the mask of the neighbours of a cell, without itself."""
    row, column = divmod(cell, size)
    rows = range(max(0, row - 1), min(size, row + 2))
    columns = range(max(0, column - 1), min(size, column + 2))
    return sum(1 << r * size + c for r in rows for c in columns) & ~(1 << cell)


def open_cell(field: Minefield, already: int, cell: int) -> int:
    """Open a safe `cell`, and the neighbours of each 0; return the mask of open cells."""
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
    """Find the cells to open after `start`, each safe by the numbers open then; None if the field needs a guess.

    Cells that open by themselves are not in the list.
    """
    open_, order = open_cell(field, 0, start), list[int]()
    while open_ != field.all_cells & ~field.mines:
        numbers = {cell: field.count_adjacent_mines(cell) for cell in list_cells(open_)}
        follows = find_safe_cells(field.size, numbers, field.mines.bit_count())
        if not follows:
            return None
        for cell in list_cells(follows):
            if not open_ >> cell & 1:
                open_ = open_cell(field, open_, cell)
                order.append(cell)
    return tuple(order)


def find_safe_cells(size: int, numbers: Mapping[int, int], num_mines: int) -> int:
    """Return the mask of the closed cells that can have no mine.

    Args:
        size: of the square field.
        numbers: open cell -> number of mines around it.
        num_mines: of the whole field.
    """
    closed = ((1 << size * size) - 1) & ~sum(1 << cell for cell in numbers)
    clues = {(get_neighbours(size, cell) & closed, number) for cell, number in numbers.items()}
    parts = list(_group_clues({clue for clue in clues if clue[0]}))
    bordering = 0
    for mask, _ in parts:
        bordering |= mask
    far = (closed & ~bordering).bit_count()  # cells without an open neighbour
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
    # Yields connected clues with the mask of their cells.
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
    # Number of mines -> mask of the cells with a mine in any fitting arrangement of so many.
    found: dict[int, int] = {}

    def place(index: int, mines: int, clear: int) -> None:
        if index == len(clues):
            found[mines.bit_count()] = found.get(mines.bit_count(), 0) | mines
            return
        cells, number = clues[index]
        free = cells & ~mines & ~clear
        missing = number - (cells & mines).bit_count()
        for cells_ in combinations(list_cells(free), missing) if missing >= 0 else ():
            chosen = sum(1 << cell for cell in cells_)
            place(index + 1, mines | chosen, clear | free & ~chosen)

    place(0, 0, 0)
    return found


def _compute_totals(told: Iterable[Mapping[int, int]]) -> set[int]:
    totals = {0}
    for part in told:
        totals = {total + num for total in totals for num in part}
    return totals

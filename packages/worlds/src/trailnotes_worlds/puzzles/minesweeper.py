"""Minesweeper as an environment: the player opens the cells without a mine, by logic or by luck.

The first click has already opened an area. See ``docs/envs/puzzles.md``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from trailnotes.envs.options import require_choice, require_type
from trailnotes.seeds import derive_seed
from trailnotes.types import Task
from trailnotes_worlds.puzzles.base import (
    PuzzleEnv,
    PuzzleGame,
    assign_split,
    canonicalize_orientation,
    list_cells,
    make_puzzle_tasks,
    parse_task,
)
from trailnotes_worlds.puzzles.fields import Minefield, get_neighbours, open_cell, solve_by_logic

INSTRUCTION = (
    "Open every cell that has no mine. A number says how many of the up to eight cells around it have a mine, . is a "
    "closed cell, F a flag of yours. Opening a mine loses. Rows and columns are counted from 0: open 2 0 opens the "
    "first cell of the third row; flag 2 0 puts a flag there, or takes it away."
)
CLOSED, FLAG, MINE = ".F*"
_ACTION: Final = re.compile(r"(open|reveal|flag)\s*[(\[]?\s*(\d{1,3})\s*(?:,|\s)\s*(\d{1,3})\s*[)\]]?", re.ASCII)
_MAX_ATTEMPTS: Final = 10_000  # fields in a row without a solvable one of the split; it takes some dozen


@dataclass(frozen=True, slots=True)
class MinesweeperDifficulty:
    """Parameters of the field generator."""

    size: int  # of the square field
    mines: int


DIFFICULTIES: Mapping[str, MinesweeperDifficulty] = MappingProxyType(
    {
        "easy": MinesweeperDifficulty(5, 3),
        "medium": MinesweeperDifficulty(6, 6),
        "hard": MinesweeperDifficulty(9, 10),  # "beginner" in the usual program
        "expert": MinesweeperDifficulty(9, 16),
    }
)


@dataclass(frozen=True, slots=True)
class MinesweeperLevel:
    """Field, first click, and the cells to open after it, in an expert's order."""

    field: Minefield
    start: int
    solution: tuple[int, ...]


@lru_cache(1024)
def generate_level(difficulty: str, logic: bool, split: str, seed: int) -> MinesweeperLevel:
    """Generate the level of this number: a pure function of its arguments.

    No field, nor a mirror image or rotation of it, is in two splits, whatever the first click: different clicks may
    show the same picture.
    """
    wanted = DIFFICULTIES[difficulty]
    rng = random.Random(derive_seed("minesweeper", difficulty, logic, split, seed))
    for _ in range(_MAX_ATTEMPTS):
        field, start = _draw_field(wanted, rng)
        if assign_split(canonicalize_orientation(_render_rows(field))) != split:
            continue
        solution = solve_by_logic(field, start)
        if solution is None and not logic:
            solution = _solve_with_knowledge(field, start)
        if solution:
            return MinesweeperLevel(field, start, solution)
    raise AssertionError(f"logic solves no field of difficulty {difficulty}: loosen it")


def _draw_field(wanted: MinesweeperDifficulty, rng: random.Random) -> tuple[Minefield, int]:
    # A first click anywhere, and mines anywhere but on it and around it.
    start = rng.randrange(wanted.size**2)
    spared = get_neighbours(wanted.size, start) | 1 << start
    others = [cell for cell in range(wanted.size**2) if not spared >> cell & 1]
    return Minefield(wanted.size, sum(1 << cell for cell in rng.sample(others, wanted.mines))), start


def _render_rows(field: Minefield) -> list[str]:
    symbols = "".join(MINE if field.mines >> cell & 1 else CLOSED for cell in range(field.size**2))
    return [symbols[row * field.size :][: field.size] for row in range(field.size)]


def _solve_with_knowledge(field: Minefield, start: int) -> tuple[int, ...]:
    open_, order = open_cell(field, 0, start), list[int]()
    for cell in list_cells(field.all_cells & ~field.mines):
        if not open_ >> cell & 1:
            open_ = open_cell(field, open_, cell)
            order.append(cell)
    return tuple(order)


def minesweeper_tasks(
    split: str, difficulty: str = "easy", logic: bool = True, num_games: int = 100, dataset_seed: int = 0
) -> list[Task]:
    """List the levels of one split; a reset generates them.

    Args:
        split: train, validation or test.
        difficulty: easy, medium, hard or expert.
        logic: only fields that need no guess after the first click.
        num_games: number of levels.
        dataset_seed: of the levels; every level stays in its split.

    Raises:
        ConfigError: an unknown split or difficulty, or a number out of range.
    """
    options: dict[str, str | bool] = {
        "difficulty": require_choice("difficulty", difficulty, DIFFICULTIES),
        "logic": require_type(bool, "logic", logic),
    }
    kind = difficulty if logic else f"{difficulty}-luck"
    return make_puzzle_tasks("minesweeper", kind, split, num_games, dataset_seed, options)


class MinesweeperEnv(PuzzleEnv):
    """Minesweeper in text, with generated fields that need no guess unless `logic` is off."""

    instruction = INSTRUCTION
    formats = ("open ROW COLUMN", "flag ROW COLUMN")

    tasks = staticmethod(minesweeper_tasks)

    def make_game(self, task: Task) -> tuple[PuzzleGame, int]:
        """Make the level of a task, as `PuzzleEnv.make_game`."""
        level = _generate_task_level(task)
        return MinesweeperGame(level.field, level.start), level.field.size**2

    def solution(self, task: Task) -> tuple[str, ...]:
        """Return actions that solve `task`, by logic unless the task is one of luck."""
        level = _generate_task_level(task)
        return tuple(_format_action("open", cell, level.field.size) for cell in level.solution)


def _generate_task_level(task: Task) -> MinesweeperLevel:
    difficulty, split = parse_task(task, DIFFICULTIES)
    return generate_level(difficulty, bool(task.options.get("logic", True)), split, task.seed)


def _format_action(verb: str, cell: int, size: int) -> str:
    return f"{verb} {cell // size} {cell % size}"


class MinesweeperGame:
    """`PuzzleGame` of a Minesweeper level."""

    def __init__(self, field: Minefield, start: int) -> None:
        self.field = field
        self._open = self._first = open_cell(field, 0, start)
        self._flags = 0
        self._hit = -1  # the opened mine

    @property
    def won(self) -> bool:
        """Whether every cell without a mine is open."""
        return self._open == self.field.all_cells & ~self.field.mines

    @property
    def lost(self) -> bool:
        """Whether a mine was opened."""
        return self._hit >= 0

    @property
    def progress(self) -> float:
        """Share of the safe cells opened since the first click."""
        done, all_ = self._open.bit_count(), (self.field.all_cells & ~self.field.mines).bit_count()
        first = self._first.bit_count()
        return (done - first) / (all_ - first)

    def apply_action(self, action: str) -> str:
        """Open or flag a cell, as `PuzzleGame.apply_action`."""
        found = _ACTION.fullmatch(action)
        if not found:
            return "That is no action: say open ROW COLUMN or flag ROW COLUMN."
        row, column = int(found[2]), int(found[3])
        if row >= self.field.size or column >= self.field.size:
            return f"There is no such cell: rows and columns go from 0 to {self.field.size - 1}."
        bit = 1 << row * self.field.size + column
        if self._open & bit:
            return "That cell is open already."
        if found[1] == "flag":
            self._flags ^= bit
        elif self._flags & bit:
            return "There is a flag on that cell: take it away first."
        elif self.field.mines & bit:
            self._hit = bit.bit_length() - 1
            return "That was a mine."
        else:
            self._open = open_cell(self.field, self._open, bit.bit_length() - 1)
            self._flags &= ~self._open
        return ""

    def render(self) -> str:
        """Render the field with numbered rows and columns, and the number of mines without a flag."""
        size = self.field.size
        head = " ".join([" ", *map(str, range(size))])
        rows = (
            " ".join([str(row), *(self._get_symbol(row * size + column) for column in range(size))])
            for row in range(size)
        )
        left = self.field.mines.bit_count() - self._flags.bit_count()
        return "\n".join((f"mines without a flag: {left}", head, *rows))

    def actions(self) -> tuple[str, ...]:
        """List "open" for every closed cell without a flag, and "flag" for every closed cell."""
        closed, size = self.field.all_cells & ~self._open, self.field.size
        opening = (_format_action("open", cell, size) for cell in list_cells(closed & ~self._flags))
        return (*opening, *(_format_action("flag", cell, size) for cell in list_cells(closed)))

    def _get_symbol(self, cell: int) -> str:
        if cell == self._hit:
            return MINE
        if self._open >> cell & 1:
            return str(self.field.count_adjacent_mines(cell))
        return FLAG if self._flags >> cell & 1 else CLOSED

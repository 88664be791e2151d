"""Minesweeper as an environment: the cells without a mine are opened, by logic or by luck.

The first click is made already, and opens an area. See ``docs/envs/puzzles.md``.
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
from trailnotes_worlds.puzzles.base import PuzzleEnv, PuzzleGame
from trailnotes_worlds.puzzles.fields import Minefield, get_neighbours, list_cells, open_cell, solve_by_logic
from trailnotes_worlds.puzzles.splits import SPLIT_BUCKETS, assign_split, canonicalize_orientation, make_puzzle_tasks

INSTRUCTION = (
    "Open every cell that has no mine. A number says how many of the up to eight cells around it have a mine, . is a "
    "closed cell, F a flag of yours. Opening a mine loses. Rows and columns are counted from 0: open 2 0 opens the "
    "first cell of the third row; flag 2 0 puts a flag there, or takes it away."
)
CLOSED, FLAG, MINE = ".F*"
_ACTION: Final = re.compile(r"(open|reveal|flag)\s*[(\[]?\s*(\d{1,3})\s*(?:,|\s)\s*(\d{1,3})\s*[)\]]?", re.ASCII)
_MAX_ATTEMPTS: Final = 10_000  # fields in a row of which none is of the split and solvable; it takes some dozen


@dataclass(frozen=True, slots=True)
class MinesweeperDifficulty:
    """What is generated."""

    size: int  # of the square field
    mines: int


DIFFICULTIES: Mapping[str, MinesweeperDifficulty] = MappingProxyType(
    {
        "easy": MinesweeperDifficulty(5, 3),
        "medium": MinesweeperDifficulty(6, 6),
        "hard": MinesweeperDifficulty(9, 10),  # what is called beginner in the usual program
        "expert": MinesweeperDifficulty(9, 16),
    }
)


@dataclass(frozen=True, slots=True)
class MinesweeperLevel:
    """A field, the first click, and the cells that are to be opened after it, in an order that an expert takes."""

    field: Minefield
    start: int
    solution: tuple[int, ...]


@lru_cache(1024)
def generate_level(difficulty: str, logic: bool, split: str, seed: int) -> MinesweeperLevel:
    """The level of this number: a pure function of its arguments.

    No field, nor a mirror image or rotation of it, is in two splits, whatever the first click: different clicks show
    the same picture.
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
    raise AssertionError(f"no field of difficulty {difficulty} is solved by logic: loosen it")


def _draw_field(wanted: MinesweeperDifficulty, rng: random.Random) -> tuple[Minefield, int]:
    """A first click anywhere, and mines anywhere but on it and around it."""
    start = rng.randrange(wanted.size**2)
    spared = get_neighbours(wanted.size, start) | 1 << start
    others = [cell for cell in range(wanted.size**2) if not spared >> cell & 1]
    return Minefield(wanted.size, sum(1 << cell for cell in rng.sample(others, wanted.mines))), start


def _render_rows(field: Minefield) -> list[str]:
    symbols = "".join(MINE if field.mines >> cell & 1 else CLOSED for cell in range(field.size**2))
    return [symbols[row * field.size :][: field.size] for row in range(field.size)]


def _solve_with_knowledge(field: Minefield, start: int) -> tuple[int, ...]:
    """The cells to open for somebody who knows where the mines are."""
    open_, order = open_cell(field, 0, start), list[int]()
    for cell in list_cells(field.all_cells & ~field.mines):
        if not open_ >> cell & 1:
            open_ = open_cell(field, open_, cell)
            order.append(cell)
    return tuple(order)


def minesweeper_tasks(
    split: str, difficulty: str = "easy", logic: bool = True, num_games: int = 100, dataset_seed: int = 0
) -> list[Task]:
    """The levels of one split; nothing is generated before they are played.

    Args:
        split: train, validation or test.
        difficulty: easy, medium, hard or expert.
        logic: fields only that can be opened from the first click on without a guess.
        num_games: how many.
        dataset_seed: another one has other levels; a level stays in the split that it belongs to.

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
    """Plays Minesweeper in text: generated fields, each of which can be opened without a guess unless that is off."""

    instruction = INSTRUCTION
    formats = ("open ROW COLUMN", "flag ROW COLUMN")

    def __init__(
        self,
        *,
        difficulty: str = "easy",
        logic: bool = True,
        num_games: int = 100,
        dataset_seed: int = 0,
        max_steps: int = 0,
        reward: str = "sparse",
        actions: bool = True,
    ) -> None:
        """Choose how it is played.

        Args:
            difficulty: read by `tasks` only.
            logic: read by `tasks` only.
            num_games: read by `tasks` only.
            dataset_seed: read by `tasks` only.
            max_steps: actions until the episode is truncated; 0 is the number of cells.
            reward: "sparse" is 1 for the last cell; "dense" tells what share of the cells without a mine is open, by
                its change.
            actions: offer every closed cell to be opened or flagged.
        """
        super().__init__(max_steps, reward, actions)
        minesweeper_tasks("train", difficulty, logic, num_games, dataset_seed)

    tasks = staticmethod(minesweeper_tasks)

    def make_game(self, task: Task) -> tuple[PuzzleGame, int]:
        """As `PuzzleEnv.make`."""
        level = _generate_task_level(task)
        return MinesweeperGame(level.field, level.start), level.field.size**2

    def solution(self, task: Task) -> tuple[str, ...]:
        """Actions that solve `task`: each opens what follows from what is open, unless the task is one of luck."""
        level = _generate_task_level(task)
        return tuple(_format_action("open", cell, level.field.size) for cell in level.solution)


def _generate_task_level(task: Task) -> MinesweeperLevel:
    difficulty = require_choice("difficulty", task.options.get("difficulty"), DIFFICULTIES, where=f"task {task.id}: ")
    split = require_choice("split", task.split, SPLIT_BUCKETS, where=f"task {task.id}: ")
    return generate_level(difficulty, bool(task.options.get("logic", True)), split, task.seed)


def _format_action(verb: str, cell: int, size: int) -> str:
    return f"{verb} {cell // size} {cell % size}"


class MinesweeperGame:
    """A `Game` of Minesweeper."""

    def __init__(self, field: Minefield, start: int) -> None:
        self.field = field
        self._open = self._first = open_cell(field, 0, start)
        self._flags = 0
        self._hit = -1  # the mine that was opened

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
        """Share of the cells without a mine that have been opened since the first click."""
        done, all_ = self._open.bit_count(), (self.field.all_cells & ~self.field.mines).bit_count()
        first = self._first.bit_count()
        return (done - first) / (all_ - first)

    def apply_action(self, action: str) -> str:
        """Open a cell, or put a flag on it. As `Game.take`."""
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
        """The field with numbered rows and columns, and the mines that have no flag."""
        size = self.field.size
        head = " ".join([" ", *map(str, range(size))])
        rows = (
            " ".join([str(row), *(self._get_symbol(row * size + column) for column in range(size))])
            for row in range(size)
        )
        left = self.field.mines.bit_count() - self._flags.bit_count()
        return "\n".join((f"mines without a flag: {left}", head, *rows))

    def actions(self) -> tuple[str, ...]:
        """Every closed cell to open unless it has a flag, and every closed cell to put a flag on or take it away."""
        closed, size = self.field.all_cells & ~self._open, self.field.size
        opening = (_format_action("open", cell, size) for cell in list_cells(closed & ~self._flags))
        return (*opening, *(_format_action("flag", cell, size) for cell in list_cells(closed)))

    def _get_symbol(self, cell: int) -> str:
        if cell == self._hit:
            return MINE
        if self._open >> cell & 1:
            return str(self.field.count_adjacent_mines(cell))
        return FLAG if self._flags >> cell & 1 else CLOSED

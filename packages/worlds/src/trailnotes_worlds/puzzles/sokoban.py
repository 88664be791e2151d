"""Sokoban as an environment: boxes are pushed onto goals, never pulled.

Levels are made by playing backwards from the goals (see `pushes`), so each can be solved. See ``docs/envs/puzzles.md``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from trailnotes.envs.options import require_choice
from trailnotes.seeds import derive_seed
from trailnotes.types import Task
from trailnotes_worlds.puzzles.base import PuzzleEnv, PuzzleGame
from trailnotes_worlds.puzzles.pushes import CanonicalPosition, Push, expand_pushes, search_backwards
from trailnotes_worlds.puzzles.rooms import (
    DIRECTIONS,
    Position,
    Room,
    find_reachable,
    list_cells,
    make_border_mask,
    move_player,
    render_rows,
)
from trailnotes_worlds.puzzles.splits import SPLIT_BUCKETS, assign_split, canonicalize_orientation, make_puzzle_tasks

INSTRUCTION = (
    "Push every box onto a goal. In the picture # is a wall, - floor, @ you, $ a box, . a goal, * a box on a goal, and "
    "+ you on a goal. You walk up, down, left or right; a box in your way is pushed if the cell behind it is free, and "
    "no box can be pulled."
)
VIEWS = ("picture", "words")
_MAX_ATTEMPTS = 300  # rooms in a row of which none gives a level: with the difficulties below it takes a few
_FIRST_WORDS = frozenset(("go", "move", "push", "walk", "step"))


@dataclass(frozen=True, slots=True)
class SokobanDifficulty:
    """What is generated."""

    size: int  # of the square room, walls around it included
    boxes: int
    walls: float  # share of the inner cells
    pushes: range  # that the best solution takes
    max_steps: int  # moves of an episode; a solution takes at most half of them


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
    """One level, and how it is solved with the fewest pushes."""

    room: Room
    start: Position
    solution: tuple[str, ...]


@lru_cache(1024)
def generate_level(difficulty: str, split: str, seed: int) -> SokobanLevel:
    """The level of this number: a pure function of its arguments.

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
    raise AssertionError(f"no room of difficulty {difficulty} can be started in: loosen it")


def _generate_room(wanted: SokobanDifficulty, rng: random.Random) -> Room:
    """The largest connected part of a square with walls strewn into it, and goals on it."""
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
    """A level of this room with no box on a goal, as many pushes away as is wanted; None if it has none."""
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


def sokoban_tasks(split: str, difficulty: str = "easy", num_games: int = 100, dataset_seed: int = 0) -> list[Task]:
    """The levels of one split; nothing is generated before they are played.

    Args:
        split: train, validation or test.
        difficulty: easy, medium, hard or expert.
        num_games: how many.
        dataset_seed: another one has other levels; a level stays in the split that it belongs to.

    Raises:
        ConfigError: an unknown split or difficulty, or a number out of range.
    """
    options = {"difficulty": require_choice("difficulty", difficulty, DIFFICULTIES)}
    return make_puzzle_tasks("sokoban", difficulty, split, num_games, dataset_seed, options)


class SokobanEnv(PuzzleEnv):
    """Plays Sokoban in pictures of symbols, or in words: generated levels, each of which can be solved."""

    instruction = INSTRUCTION
    formats = DIRECTIONS

    def __init__(
        self,
        *,
        difficulty: str = "easy",
        num_games: int = 100,
        dataset_seed: int = 0,
        max_steps: int = 0,
        view: str = "picture",
        reward: str = "sparse",
        actions: bool = True,
    ) -> None:
        """Choose how it is played.

        Args:
            difficulty: read by `tasks` only.
            num_games: read by `tasks` only.
            dataset_seed: read by `tasks` only.
            max_steps: actions until the episode is truncated; 0 is the difficulty's own limit.
            view: "picture" shows rows of symbols; "words" adds rows and columns of everything that can move, and goals.
            reward: "sparse" is 1 for the last box; "dense" tells what share of the boxes is on goals, by its change.
            actions: offer the moves that can be made.
        """
        super().__init__(max_steps, reward, actions)
        sokoban_tasks("train", difficulty, num_games, dataset_seed)
        self._in_words = require_choice("view", view, VIEWS) == "words"

    tasks = staticmethod(sokoban_tasks)

    def make_game(self, task: Task) -> tuple[PuzzleGame, int]:
        """As `PuzzleEnv.make`."""
        level = _generate_task_level(task)
        return SokobanGame(level.room, level.start, self._in_words), DIFFICULTIES[task.options["difficulty"]].max_steps

    def solution(self, task: Task) -> tuple[str, ...]:
        """The moves that solve `task` with the fewest pushes."""
        return _generate_task_level(task).solution


def _generate_task_level(task: Task) -> SokobanLevel:
    difficulty = require_choice("difficulty", task.options.get("difficulty"), DIFFICULTIES, where=f"task {task.id}: ")
    return generate_level(
        difficulty, require_choice("split", task.split, SPLIT_BUCKETS, where=f"task {task.id}: "), task.seed
    )


class SokobanGame:
    """A `Game` of Sokoban."""

    lost = False  # a box in a corner is never said to be stuck: to see that is part of the game

    def __init__(self, room: Room, start: Position, in_words: bool = False) -> None:
        self.room, self.position, self._in_words = room, start, in_words

    @property
    def won(self) -> bool:
        """Whether every box is on a goal."""
        return self.position.boxes == self.room.goals

    @property
    def progress(self) -> float:
        """Share of the boxes that are on goals."""
        return (self.position.boxes & self.room.goals).bit_count() / self.room.goals.bit_count()

    def apply_action(self, action: str) -> str:
        """Move. As `Game.take`."""
        words = action.split()
        direction = words[-1] if words and (len(words) == 1 or words[0] in _FIRST_WORDS) else ""
        if direction not in DIRECTIONS:
            return "That is no move: say up, down, left or right."
        after = move_player(self.room, self.position, direction)
        if after is None:
            return "You cannot go there."
        self.position = after
        return ""

    def render(self) -> str:
        """The picture, and where things are if that is asked for."""
        picture = "\n".join(render_rows(self.room, self.position))
        if not self._in_words:
            return picture
        boxes, goals = self.position.boxes, self.room.goals
        named = {"you": 1 << self.position.player, "boxes": boxes & ~goals, "goals": goals & ~boxes}
        named["boxes on goals"] = boxes & goals
        places = [f"{name} {self._format_places(mask)}" for name, mask in named.items() if mask]
        return f"{picture}\n(row, column) from the top left corner, which is (0, 0): {'; '.join(places)}."

    def actions(self) -> tuple[str, ...]:
        """The moves that can be made: one at least, back to where the player came from."""
        return tuple(each for each in DIRECTIONS if move_player(self.room, self.position, each))

    def _format_places(self, mask: int) -> str:
        return ", ".join(f"({cell // self.room.width}, {cell % self.room.width})" for cell in list_cells(mask))

"""Sokoban as an environment: the player pushes boxes onto goals, and never pulls them.

The generator searches backwards from the goals, so that every level has a solution. See ``docs/envs/puzzles.md``.
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
from trailnotes_worlds.puzzles.base import (
    PuzzleEnv,
    PuzzleGame,
    assign_split,
    canonicalize_orientation,
    list_cells,
    make_puzzle_tasks,
    parse_task,
)
from trailnotes_worlds.puzzles.rooms import (
    DIRECTIONS,
    CanonicalPosition,
    Position,
    Push,
    Room,
    expand_pushes,
    find_reachable,
    make_border_mask,
    move_player,
    render_rows,
    search_backwards,
)

INSTRUCTION = (
    "Push every box onto a goal. In the picture # is a wall, - floor, @ you, $ a box, . a goal, * a box on a goal, and "
    "+ you on a goal. You walk up, down, left or right; a box in your way is pushed if the cell behind it is free, and "
    "no box can be pulled."
)
VIEWS = ("picture", "words")
_MAX_ATTEMPTS = 300  # rooms in a row without a level: with the difficulties below it takes a few
_FIRST_WORDS = frozenset(("go", "move", "push", "walk", "step"))


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
    # The largest connected part of a square with random walls, and random goals on it.
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
    # A level with no box on a goal and the wanted number of pushes; None if the room has none.
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
    """List the levels of one split; a reset generates them.

    Args:
        split: train, validation or test.
        difficulty: easy, medium, hard or expert.
        num_games: number of levels.
        dataset_seed: of the levels; every level stays in its split.

    Raises:
        ConfigError: an unknown split or difficulty, or a number out of range.
    """
    options = {"difficulty": require_choice("difficulty", difficulty, DIFFICULTIES)}
    return make_puzzle_tasks("sokoban", difficulty, split, num_games, dataset_seed, options)


class SokobanEnv(PuzzleEnv):
    """Sokoban in pictures of symbols, or in words, with generated levels that all have a solution."""

    instruction = INSTRUCTION
    formats = DIRECTIONS

    def __init__(
        self,
        *,
        max_steps: int = 0,
        view: str = "picture",
        reward: str = "sparse",
        actions: bool = True,
    ) -> None:
        """Set the options of `PuzzleEnv`; "words" as `view` adds the coordinates of player, boxes and goals."""
        super().__init__(max_steps=max_steps, reward=reward, actions=actions)
        self._in_words = require_choice("view", view, VIEWS) == "words"

    tasks = staticmethod(sokoban_tasks)

    def make_game(self, task: Task) -> tuple[PuzzleGame, int]:
        """Make the level of a task, as `PuzzleEnv.make_game`."""
        level = generate_level(*parse_task(task, DIFFICULTIES), task.seed)
        return SokobanGame(level.room, level.start, self._in_words), DIFFICULTIES[task.options["difficulty"]].max_steps

    def solution(self, task: Task) -> tuple[str, ...]:
        """Return the moves that solve `task` with the fewest pushes."""
        return generate_level(*parse_task(task, DIFFICULTIES), task.seed).solution


class SokobanGame:
    """`PuzzleGame` of a Sokoban level."""

    lost = False  # a box stuck in a corner does not end the game: to see that is part of it

    def __init__(self, room: Room, start: Position, in_words: bool = False) -> None:
        self.room, self.position, self._in_words = room, start, in_words

    @property
    def won(self) -> bool:
        """Whether every box is on a goal."""
        return self.position.boxes == self.room.goals

    @property
    def progress(self) -> float:
        """Share of the boxes on goals."""
        return (self.position.boxes & self.room.goals).bit_count() / self.room.goals.bit_count()

    def apply_action(self, action: str) -> str:
        """Move the player, as `PuzzleGame.apply_action`."""
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
        """Render the picture, with coordinates if the view is in words."""
        picture = "\n".join(render_rows(self.room, self.position))
        if not self._in_words:
            return picture
        boxes, goals = self.position.boxes, self.room.goals
        named = {"you": 1 << self.position.player, "boxes": boxes & ~goals, "goals": goals & ~boxes}
        named["boxes on goals"] = boxes & goals
        width = self.room.width
        places = [
            f"{name} {', '.join(f'({cell // width}, {cell % width})' for cell in list_cells(mask))}"
            for name, mask in named.items()
            if mask
        ]
        return f"{picture}\n(row, column) from the top left corner, which is (0, 0): {'; '.join(places)}."

    def actions(self) -> tuple[str, ...]:
        """List the admissible moves: at least one, back to the cell before."""
        return tuple(each for each in DIRECTIONS if move_player(self.room, self.position, each))

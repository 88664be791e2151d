"""Sokoban as an environment: the player pushes boxes onto goals, and never pulls them. See ``docs/envs/puzzles.md``."""

from __future__ import annotations

from typing import Any

from trailnotes.envs.base import normalize_command, require_choice, require_int
from trailnotes.errors import EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.puzzles.levels import (
    DIFFICULTIES,
    DIRECTIONS,
    SPLIT_BUCKETS,
    VERSION,
    Position,
    Room,
    SokobanLevel,
    generate_level,
    list_cells,
    move_player,
    render_rows,
)

INSTRUCTION = (
    "Push every box onto a goal. In the picture # is a wall, - floor, @ you, $ a box, . a goal, * a box on a goal, and "
    "+ you on a goal. You walk up, down, left or right; a box in your way is pushed if the cell behind it is free, and "
    "no box can be pulled."
)
VIEWS = ("picture", "words")
REWARDS = ("sparse", "dense")
_SEEDS_PER_SPLIT = 100_000
_FIRST_WORDS = frozenset(("go", "move", "push", "walk", "step"))


def sokoban_tasks(split: str, difficulty: str = "easy", num_games: int = 100, dataset_seed: int = 0) -> list[Task]:
    """List the levels of one split as tasks ``sokoban/<difficulty>/<split>-<seed>``; a reset generates them.

    Args:
        split: train, validation or test.
        difficulty: easy, medium, hard or expert.
        num_games: number of levels.
        dataset_seed: of the levels; every level stays in its split.

    Raises:
        ConfigError: an unknown split or difficulty, or a number out of range.
    """
    require_choice("split", split, SPLIT_BUCKETS, where="")
    options = {"difficulty": require_choice("difficulty", difficulty, DIFFICULTIES)}
    require_int("num_games", num_games, 1, _SEEDS_PER_SPLIT)
    require_int("dataset_seed", dataset_seed, 0, 9999)
    first = (dataset_seed * len(SPLIT_BUCKETS) + list(SPLIT_BUCKETS).index(split)) * _SEEDS_PER_SPLIT
    family = f"sokoban/{difficulty}"
    return [
        Task(f"{family}/{split}-{seed}", "sokoban", seed, split, options, family)
        for seed in range(first, first + num_games)
    ]


class SokobanEnv:
    """Sokoban: boxes to push onto goals, in generated levels that all have a solution."""

    def __init__(
        self, *, max_steps: int = 0, view: str = "picture", reward: str = "sparse", actions: bool = True
    ) -> None:
        """Set the options of the environment.

        Args:
            max_steps: actions until the episode is truncated; 0 is the level's own limit.
            view: "words" adds the coordinates of player, boxes and goals to the picture.
            reward: "sparse" is 1 for a won level; "dense" is the change of the share of boxes on goals.
            actions: offer the admissible actions.
        """
        self._max_steps = require_int("max_steps", max_steps, 0, 100_000)
        self._in_words = require_choice("view", view, VIEWS) == "words"
        self._dense = require_choice("reward", reward, REWARDS) == "dense"
        self._offers = bool(actions)
        self._game: SokobanGame | None = None
        self._score = 0.0
        self._steps_left = 0

    tasks = staticmethod(sokoban_tasks)

    @staticmethod
    def identity() -> dict[str, Any]:
        return {"puzzles": VERSION}

    def reset(self, task: Task) -> Observation:
        """Start `task`, and generate its level unless it is cached. Raises `ConfigError` for another's task."""
        self._steps_left, self._score = 0, 0.0
        level = _load_level(task)
        self._game = SokobanGame(level.room, level.start, self._in_words)
        self._steps_left = self._max_steps or DIFFICULTIES[task.options["difficulty"]].max_steps
        return self._make_observation("", 0.0, instruction=INSTRUCTION, briefing={"action_formats": list(DIRECTIONS)})

    def step(self, action: str) -> Observation:
        """Take one action; an unknown one costs a step and changes nothing."""
        if not self._steps_left or self._game is None:
            raise EnvError("the episode is over: call reset before step")
        comment = self._game.apply_action(normalize_command(action).lower())
        self._steps_left -= 1
        before, self._score = self._score, self._game.progress if self._dense or self._game.won else 0.0
        observation = self._make_observation(comment, self._score - before)
        if observation.done:
            self._steps_left = 0
        return observation

    def solution(self, task: Task) -> tuple[str, ...]:
        return _load_level(task).solution

    def close(self) -> None:
        self._game = None
        self._steps_left = 0

    def _make_observation(self, comment: str, reward: float, **facts: Any) -> Observation:
        assert self._game
        won = self._game.won
        return Observation(
            "\n".join(text for text in (comment, self._game.render()) if text),
            reward=reward,
            terminated=won,
            truncated=not won and not self._steps_left,
            actions=(() if won else self._game.actions()) if self._offers else None,
            success=won,
            score=self._score,
            **facts,
        )


def _load_level(task: Task) -> SokobanLevel:
    where = f"task {task.id}: "
    difficulty = require_choice("difficulty", task.options.get("difficulty"), DIFFICULTIES, where=where)
    return generate_level(difficulty, require_choice("split", task.split, SPLIT_BUCKETS, where=where), task.seed)


class SokobanGame:
    """Level in play. A box stuck in a corner does not end the game: to see that is part of it."""

    def __init__(self, room: Room, start: Position, in_words: bool = False) -> None:
        self.room, self.position, self._in_words = room, start, in_words

    @property
    def won(self) -> bool:
        return self.position.boxes == self.room.goals

    @property
    def progress(self) -> float:
        return (self.position.boxes & self.room.goals).bit_count() / self.room.goals.bit_count()

    def apply_action(self, action: str) -> str:
        """Take an action in lower case; return a comment on it, or ""."""
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
        picture = "\n".join(render_rows(self.room, self.position))
        if not self._in_words:
            return picture
        boxes, goals, width = self.position.boxes, self.room.goals, self.room.width
        masks = {"you": 1 << self.position.player, "boxes": boxes & ~goals, "goals": goals & ~boxes}
        masks["boxes on goals"] = boxes & goals
        places = [
            f"{name} {', '.join(f'({cell // width}, {cell % width})' for cell in list_cells(mask))}"
            for name, mask in masks.items()
            if mask
        ]
        return f"{picture}\n(row, column) from the top left corner, which is (0, 0): {'; '.join(places)}."

    def actions(self) -> tuple[str, ...]:
        return tuple(each for each in DIRECTIONS if move_player(self.room, self.position, each))

"""Common base of Sokoban and Minesweeper: step limit, rewards, splits, and masks of cells."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

from trailnotes.envs.base import normalize_command
from trailnotes.envs.options import require_choice, require_int
from trailnotes.errors import EnvError
from trailnotes.seeds import derive_seed
from trailnotes.types import Observation, Task

REWARDS = ("sparse", "dense")
VERSION: Final = 2  # of the generators: another version makes other levels of the same seeds
# Split -> its tenths of all levels.
SPLIT_BUCKETS: Mapping[str, range] = MappingProxyType(
    {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}
)
_SEEDS_PER_SPLIT = 100_000


class PuzzleGame(Protocol):
    """Level in play."""

    @property
    def won(self) -> bool:
        """Whether the goal has been reached."""

    @property
    def lost(self) -> bool:
        """Whether it is over without that."""

    @property
    def progress(self) -> float:
        """Reached share of the goal, 0 to 1; 1 exactly for a won level."""

    def apply_action(self, action: str) -> str:
        """Take an action in lower case; return a comment on it, or ""."""

    def render(self) -> str:
        """Render the level as text."""

    def actions(self) -> tuple[str, ...]:
        """List the admissible actions."""


class PuzzleEnv:
    """Environment of a `PuzzleGame`, which subclasses make."""

    instruction: str
    formats: tuple[str, ...]  # of actions

    def __init__(self, *, max_steps: int = 0, reward: str = "sparse", actions: bool = True) -> None:
        """Set the options of the environment.

        Args:
            max_steps: actions until the episode is truncated; 0 is the level's own limit.
            reward: "sparse" is 1 for a won level; "dense" is the change of `PuzzleGame.progress`.
            actions: offer the admissible actions.
        """
        self._max_steps = require_int("max_steps", max_steps, 0, 100_000)
        self._dense = require_choice("reward", reward, REWARDS) == "dense"
        self._offers = bool(actions)
        self._game: PuzzleGame | None = None
        self._score = 0.0
        self._steps_left = 0

    @staticmethod
    def identity() -> dict[str, Any]:
        """Return the version of the generators."""
        return {"puzzles": VERSION}

    def make_game(self, task: Task) -> tuple[PuzzleGame, int]:
        """Make the level of `task`; return it and its step limit. Raises `ConfigError` for another's task."""
        raise NotImplementedError

    def reset(self, task: Task) -> Observation:
        """Start `task`, and generate its level unless it is cached."""
        self._steps_left, self._score = 0, 0.0
        self._game, max_steps = self.make_game(task)
        self._steps_left = self._max_steps or max_steps
        briefing = {"action_formats": list(self.formats)}
        return self._make_observation("", 0.0, self._steps_left, instruction=self.instruction, briefing=briefing)

    def step(self, action: str) -> Observation:
        """Take one action; an unknown one costs a step and changes nothing."""
        if not self._steps_left or self._game is None:
            raise EnvError("the episode is over: call reset before step")
        said = self._game.apply_action(normalize_command(action).lower())
        self._steps_left -= 1
        before, self._score = self._score, self._game.progress if self._dense or self._game.won else 0.0
        observation = self._make_observation(said, self._score - before, self._steps_left)
        if observation.done:
            self._steps_left = 0
        return observation

    def close(self) -> None:
        """Forget the level. A second call is harmless."""
        self._game = None
        self._steps_left = 0

    def _make_observation(self, said: str, reward: float, left: int, **facts: Any) -> Observation:
        assert self._game
        over = self._game.won or self._game.lost
        return Observation(
            "\n".join(text for text in (said, self._game.render()) if text),
            reward=reward,
            terminated=over,
            truncated=not over and not left,
            actions=(() if over else self._game.actions()) if self._offers else None,
            success=self._game.won,
            score=self._score,
            **facts,
        )


def parse_task(task: Task, difficulties: Collection[str]) -> tuple[str, str]:
    """Parse difficulty and split of a task. Raises `ConfigError` for one of another environment."""
    where = f"task {task.id}: "
    difficulty = require_choice("difficulty", task.options.get("difficulty"), difficulties, where=where)
    return difficulty, require_choice("split", task.split, SPLIT_BUCKETS, where=where)


def assign_split(identity: str) -> str:
    """Assign a level to a split: a pure function of the level, so that no two splits share one.

    Args:
        identity: the level as text, the same for each of its mirror images and rotations.
    """
    tenth = derive_seed("puzzle", identity) % 10
    return next(split for split, tenths in SPLIT_BUCKETS.items() if tenth in tenths)


def canonicalize_orientation(rows: list[str]) -> str:
    """Return a text that a square grid shares exactly with its mirror images and rotations.

    Args:
        rows: n strings of n symbols.
    """
    found = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]  # a quarter turn clockwise
        found += ["\n".join(rows), "\n".join(row[::-1] for row in rows)]
    return min(found)


def make_puzzle_tasks(
    env: str, kind: str, split: str, num_games: int, dataset_seed: int, options: Mapping[str, str | bool]
) -> list[Task]:
    """Make tasks ``<env>/<kind>/<split>-<seed>`` without their levels.

    Raises:
        ConfigError: an unknown split, or a number out of range.
    """
    require_choice("split", split, SPLIT_BUCKETS)
    require_int("num_games", num_games, 1, _SEEDS_PER_SPLIT)
    require_int("dataset_seed", dataset_seed, 0, 9999)
    first = (dataset_seed * len(SPLIT_BUCKETS) + list(SPLIT_BUCKETS).index(split)) * _SEEDS_PER_SPLIT
    family = f"{env}/{kind}"
    return [
        Task(f"{family}/{split}-{seed}", env, seed, split, options, family) for seed in range(first, first + num_games)
    ]


def list_cells(mask: int) -> list[int]:
    """List the numbers of the cells of a mask, in order."""
    return [cell for cell in range(mask.bit_length()) if mask >> cell & 1]

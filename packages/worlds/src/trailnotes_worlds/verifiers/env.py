"""`VerifiersEnv`: a task set of verifiers, as far as it plays in turns of text. See ``docs/envs/verifiers.md``."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from trailnotes.envs.base import format_error
from trailnotes.envs.options import require_table, require_text_list, require_type
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.third_party import SuccessRule, format_game_name

if TYPE_CHECKING:
    import verifiers.v1 as vf

    from trailnotes_worlds.verifiers.stage import EpisodeRunner

NO_CONFIG: Mapping[str, Any] = MappingProxyType({})
_SPLIT_ORDER: Final = ("test", "validation", "train")  # of the splits, along the task set
_INSTRUCTION: Final = "Answer what you are asked."
_END: Final = "The episode is over."


class VerifiersEnv:
    """Task sets of verifiers: questions with rewards of their own, and games in turns with one player.

    Args:
        taskset: its id, as verifiers takes it: an installed package, or a module on the Python path.
        config: of the task set, as under ``taskset`` in verifiers' own configs.
        instruction: the goal in words, where the tasks have no system prompt.
        actions: answers that are offered, where all tasks have the same few.
        success_return: an episode is won if its rewards sum to at least this.
        max_return: the score is the sum of rewards, from 0 to this; None: a success is 1, everything else 0.

    Raises:
        ConfigError: there is no such task set, or it cannot be played here.
    """

    def __init__(
        self,
        *,
        taskset: str,
        config: Mapping[str, Any] = NO_CONFIG,
        instruction: str = "",
        actions: Sequence[str] = (),
        success_return: float = 1.0,
        max_return: float | None = 1.0,
    ) -> None:
        self._name, self._config = require_type(str, "taskset", taskset), require_table("config", config)
        self._instruction = require_type(str, "instruction", instruction)
        self._actions = require_text_list("actions", actions) or None
        self._success = SuccessRule(success_return, None, max_return)
        self._stage: EpisodeRunner | None = None
        self._playing = False

    @staticmethod
    def tasks(
        split: str,
        *,
        taskset: str = "",
        config: Mapping[str, Any] = NO_CONFIG,
        num_train: int = 64,
        num_validation: int = 16,
        num_test: int = 64,
    ) -> list[Task]:
        """Tasks by their place in the task set: the first are the test's, then validation, then training.

        A task set with fewer is shared out in the same proportions. A task of the same content as an earlier one is
        left out, so that nothing is on two sides.
        """
        numbers = {"train": num_train, "validation": num_validation, "test": num_test}
        if split not in numbers:
            raise ConfigError(f"unknown split {split!r} of verifiers; use one of {', '.join(numbers)}")
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"env.options.num_{name} = {number!r}: give a number of tasks from 1 on")
        found = _load_taskset(taskset, _serialize_config(config)).load_first(sum(numbers.values()))
        first = {_serialize_task(task): index for index, task in reversed(list(enumerate(found)))}
        own = _assign_places(len(found), numbers)[split]
        game, kept = (
            format_game_name(taskset, "config", config),
            sorted(index for index in first.values() if index in own),
        )
        return [
            Task(f"verifiers/{game}/{index}", "verifiers", 0, split, {"game": game, "index": index}) for index in kept
        ]

    @staticmethod
    def identity(*, taskset: str = "", config: Mapping[str, Any] = NO_CONFIG) -> dict[str, Any]:
        """The task set with its settings, and the release that plays it."""
        from importlib.metadata import version

        return {"game": format_game_name(taskset, "config", config), "verifiers": version("verifiers")}

    def reset(self, task: Task) -> Observation:
        """Ask the first question of a task."""
        from trailnotes_worlds.verifiers.stage import EpisodeEnd, EpisodeRunner, require_playable

        game = format_game_name(self._name, "config", self._config)
        index = task.options.get("index")
        if task.options.get("game", game) != game or not isinstance(index, int) or index < 0:
            raise ConfigError(f"task {task.id} is none of {game}: env.options must be those of both")
        loaded = _load_taskset(self._name, _serialize_config(self._config))
        found = loaded.load_first(index + 1)
        if index >= len(found):
            raise ConfigError(f"task {task.id} is none of {game}: that has {len(found)}")
        self._playing = False
        require_playable(loaded.env, found[index], self._name)
        self._stage = self._stage or EpisodeRunner(loaded.env)
        shown = self._stage.begin(found[index])
        if isinstance(shown, EpisodeEnd):
            raise EnvError(f"task {task.id} is over before anything is asked")
        self._playing = True
        instruction = found[index].data.system_prompt or self._instruction or _INSTRUCTION
        score, max_score = self._success.score(0.0, success=False)
        return Observation(shown, actions=self._actions, instruction=instruction, score=score, max_score=max_score)

    def step(self, action: str) -> Observation:
        """Answer; the rewards come with the last one."""
        from trailnotes_worlds.verifiers.stage import EpisodeEnd

        if not self._playing or self._stage is None:
            raise EnvError("the episode is over: call reset first")
        self._playing = False  # whatever happens now
        shown = self._stage.reply(action)
        if isinstance(shown, EpisodeEnd):
            won = self._success.is_won(shown.reward, shown.reward)
            score, max_score = self._success.score(shown.reward, success=won)
            return Observation(_END, shown.reward, terminated=True, success=won, score=score, max_score=max_score)
        self._playing = True
        score, max_score = self._success.score(0.0, success=False)
        return Observation(shown, actions=self._actions, score=score, max_score=max_score)

    def close(self) -> None:
        """End the episode and its thread."""
        self._playing = False
        if self._stage:
            self._stage.close()
        self._stage = None


def _serialize_task(task: vf.Task[Any, Any, Any]) -> str:
    """All that a task is but its place, which verifiers' own `key` counts as content."""
    return json.dumps(task.data.model_dump(mode="json", exclude={"idx"}), sort_keys=True)


def _assign_places(found: int, numbers: Mapping[str, int]) -> dict[str, range]:
    """Split -> places in the task set, one each at the least."""
    asked = sum(numbers.values())
    if found < len(_SPLIT_ORDER):
        raise ConfigError(f"a task set of {found} tasks cannot be split into {', '.join(_SPLIT_ORDER)}")
    places, start = dict[str, range](), 0
    for name in _SPLIT_ORDER:
        size = numbers[name] if found >= asked else max(1, found * numbers[name] // asked)
        later = len(_SPLIT_ORDER) - len(places) - 1  # splits that want one, too
        end = found if not later and found < asked else min(start + size, found - later)
        places[name] = range(start, end)
        start = end
    return places


def _serialize_config(config: Mapping[str, Any]) -> str:
    try:
        return json.dumps(require_table("config", config), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.options.config must hold JSON values: {error}") from error


class _Taskset:
    """An environment of verifiers, and the tasks of its task set as far as they have been asked for."""

    def __init__(self, name: str, config: str) -> None:
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config

        self._name = name
        with self._wrap_load_errors():
            self.env = load_environment(resolve_env_config({"taskset": {**json.loads(config), "id": name}}))
            self._more = iter(self.env.taskset)
        self._found: list[vf.Task[Any, Any, Any]] = []

    def load_first(self, number: int) -> list[vf.Task[Any, Any, Any]]:
        """The first `number` tasks, or all if there are fewer."""
        with self._wrap_load_errors():
            self._found += itertools.islice(self._more, max(0, number - len(self._found)))
        return self._found[:number]

    @contextmanager
    def _wrap_load_errors(self) -> Iterator[None]:
        try:
            yield
        except (ImportError, AttributeError, TypeError, ValueError, OSError) as error:
            raise ConfigError(
                f"env.options.taskset = {self._name!r} cannot be loaded: {format_error(error)}"
            ) from error


@functools.lru_cache(maxsize=4)
def _load_taskset(taskset: str, config: str) -> _Taskset:
    """One of each in a process: a task set may be a download."""
    return _Taskset(taskset, config)

"""`VerifiersEnv`: a task set of verifiers that plays in turns of text. See ``docs/envs/verifiers.md``."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from trailnotes.envs.base import require_choice, require_int, require_table, require_text_list, require_type
from trailnotes.errors import ConfigError, EnvError, format_error
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
    """Environments of the verifiers hub: questions with rewards, and games in turns with one player.

    Args:
        taskset: its id in verifiers: an installed package, or a module on the Python path.
        config: of the task set, as under ``taskset`` in verifiers' own configs.
        instruction: the goal in words, for tasks without a system prompt.
        actions: admissible answers, if all tasks have the same few.
        success_return: least sum of rewards of a success.
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
        """List tasks by their place in the task set: test first, then validation, then training.

        A task set with fewer tasks is split in the same proportions. Only the first of tasks with equal content counts,
        so that no content is in two splits.
        """
        numbers = {"train": num_train, "validation": num_validation, "test": num_test}
        require_choice("split", split, numbers, where="")
        for name, number in numbers.items():
            require_int(f"num_{name}", number)
        tasks = _load_taskset(taskset, _serialize_config(config)).load_first(sum(numbers.values()))
        first = {_serialize_task(task): index for index, task in reversed(list(enumerate(tasks)))}
        own = _assign_places(len(tasks), numbers)[split]
        game = format_game_name(taskset, "config", config)
        kept = ((index, {"game": game, "index": index}) for index in sorted(first.values()) if index in own)
        return [Task(f"verifiers/{game}/{index}", "verifiers", 0, split, options) for index, options in kept]

    @staticmethod
    def identity(
        *,
        taskset: str = "",
        config: Mapping[str, Any] = NO_CONFIG,
        success_return: float = 1.0,
        max_return: float | None = 1.0,
    ) -> dict[str, Any]:
        """Describe the task set with its settings, what counts as success, and the version of verifiers."""
        from importlib.metadata import version

        rule = {"success_return": success_return, "max_return": max_return}
        changed = {name: value for name, value in rule.items() if value != 1.0}
        return {"game": format_game_name(taskset, "config", config), "verifiers": version("verifiers"), **changed}

    def reset(self, task: Task) -> Observation:
        from trailnotes_worlds.verifiers.stage import EpisodeEnd, EpisodeRunner, require_playable

        game = format_game_name(self._name, "config", self._config)
        index = task.options.get("index")
        if task.options.get("game", game) != game or not isinstance(index, int) or index < 0:
            raise ConfigError(f"task {task.id} is none of {game}: env.options must be those of both")
        loaded = _load_taskset(self._name, _serialize_config(self._config))
        tasks = loaded.load_first(index + 1)
        if index >= len(tasks):
            raise ConfigError(f"task {task.id} is none of {game}: that has {len(tasks)}")
        self._playing = False
        require_playable(loaded.env, tasks[index], self._name)
        self._stage = self._stage or EpisodeRunner(loaded.env)
        text = self._stage.begin(tasks[index])
        if isinstance(text, EpisodeEnd):
            raise EnvError(f"task {task.id} is over before anything is asked")
        self._playing = True
        instruction = tasks[index].data.system_prompt or self._instruction or _INSTRUCTION
        score, max_score = self._success.score(0.0, success=False)
        return Observation(text, actions=self._actions, instruction=instruction, score=score, max_score=max_score)

    def step(self, action: str) -> Observation:
        """Answer a question; the rewards come with the last one."""
        from trailnotes_worlds.verifiers.stage import EpisodeEnd

        if not self._playing or self._stage is None:
            raise EnvError("the episode is over: call reset first")
        self._playing = False  # an exception below ends the episode
        text = self._stage.reply(action)
        if isinstance(text, EpisodeEnd):
            won = self._success.is_won(text.reward, text.reward)
            score, max_score = self._success.score(text.reward, success=won)
            return Observation(_END, text.reward, terminated=True, success=won, score=score, max_score=max_score)
        self._playing = True
        score, max_score = self._success.score(0.0, success=False)
        return Observation(text, actions=self._actions, score=score, max_score=max_score)

    def close(self) -> None:
        self._playing = False
        if self._stage:
            self._stage.close()
        self._stage = None


def _serialize_task(task: vf.Task[Any, Any, Any]) -> str:
    """Serialize a task without its place, which verifiers' own `key` counts as content."""
    return json.dumps(task.data.model_dump(mode="json", exclude={"idx"}), sort_keys=True)


def _assign_places(size_of_set: int, numbers: Mapping[str, int]) -> dict[str, range]:
    requested = sum(numbers.values())
    if size_of_set < len(_SPLIT_ORDER):
        raise ConfigError(f"a task set of {size_of_set} tasks cannot be split into {', '.join(_SPLIT_ORDER)}")
    places, start = dict[str, range](), 0
    for name in _SPLIT_ORDER:
        size = numbers[name] if size_of_set >= requested else max(1, size_of_set * numbers[name] // requested)
        later = len(_SPLIT_ORDER) - len(places) - 1  # splits that want one, too
        end = size_of_set if not later and size_of_set < requested else min(start + size, size_of_set - later)
        places[name] = range(start, end)
        start = end
    return places


def _serialize_config(config: Mapping[str, Any]) -> str:
    try:
        return json.dumps(require_table("config", config), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.options.config must hold JSON values: {error}") from error


class _Taskset:
    """Environment of verifiers, and the tasks of its task set, loaded as far as needed."""

    def __init__(self, name: str, config: str) -> None:
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config

        self._name = name
        with self._wrap_load_errors():
            self.env = load_environment(resolve_env_config({"taskset": {**json.loads(config), "id": name}}))
            self._more = iter(self.env.taskset)
        self._found: list[vf.Task[Any, Any, Any]] = []

    def load_first(self, number: int) -> list[vf.Task[Any, Any, Any]]:
        with self._wrap_load_errors():
            try:
                self._found += itertools.islice(self._more, max(0, number - len(self._found)))
            except Exception:  # a generator that raised would look complete at the next call
                self._found, self._more = [], iter(self.env.taskset)
                raise
        return self._found[:number]

    @contextmanager
    def _wrap_load_errors(self) -> Iterator[None]:
        try:
            yield
        except (ImportError, AttributeError, TypeError, ValueError, OSError) as error:
            why = format_error(error)
            raise ConfigError(f"env.options.taskset = {self._name!r} cannot be loaded: {why}") from error


_load_taskset = functools.lru_cache(maxsize=4)(_Taskset)  # a task set may be a download

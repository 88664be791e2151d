"""Checks an environment against the contract, for authors of environments."""

from __future__ import annotations

import inspect
import json
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from trailnotes.envs.base import SPLITS, Env, describe_env_error, select_accepted
from trailnotes.envs.tasks import find_shared_tasks
from trailnotes.errors import ConfigError, EnvError, sanitize_text
from trailnotes.types import Observation, Task

MAX_STEPS: Final = 200  # an episode is followed this far in search of its end
NUM_TASKS: Final = 3  # of the given ones, the first
MAX_REPEATED_STEPS = 10  # of an episode that is played again, to be the same

ODD_ACTIONS: Final = {
    "an empty action": "",
    "a blank action": "   ",
    "an action with newlines": "look\n\nlook\r\n",
    "a unicode action": "öffne die Tür \U0001f6aa 开门",
    "a lone surrogate": "\ud800",
    "control characters": "\x00\x07\x1b[31m",
    "a number": "5",
    "an action of 100 kB": "look " * 20_000,
}


def check_env(env_factory: Callable[[], Env], tasks: Sequence[Task] | None = None) -> tuple[str, ...]:
    """Check an environment against the contract of `Env`, as its author would in a test.

    `env_factory` makes a fresh one, such as ``functools.partial(MyEnv, size=3)``; `tasks` are by default the first of
    each split.

    Returns:
        What could not be checked, one line each; () if everything was.

    Raises:
        EnvError: all faults, the likeliest first, with what to change.
    """
    faults, unchecked = find_faults(env_factory, tasks)
    if len(faults) > 1:
        faults = [f"{len(faults)} faults: " + "; ".join(f"({i}) {fault}" for i, fault in enumerate(faults, 1))]
    if faults:
        raise EnvError(f"check_env: {faults[0]}")
    return tuple(unchecked)


def find_faults(
    env_factory: Callable[[], Env], tasks: Sequence[Task] | None = None, timeout: float = 60.0
) -> tuple[list[str], list[str]]:
    """Find the faults of an environment, and what could not be checked, as `check_env` does.

    `timeout`: seconds for one call of the environment; one that takes longer ends the check.
    """
    check = _Check(env_factory, timeout)
    with suppress(_Stop):
        check.prepare(tasks)
    parts = (check.play, check.repeat, check.try_odd_actions, check.close, check.identify, check.order)
    for part in parts if check.chosen else ():
        if not check.has_hung:
            with suppress(_Stop):
                part()
    return list(check.faults.values()), check.unchecked


class _Stop(Exception):  # noqa: N818 (the fault is recorded)
    """The rest of this part of the check makes no sense."""


class _Check:
    """The check of one environment; its parts run in the order in which their faults are likely."""

    def __init__(self, env_factory: Callable[[], Env], timeout: float) -> None:
        self.env_factory, self.timeout = env_factory, timeout
        self.options: dict[str, Any] = getattr(env_factory, "keywords", {})
        self.faults: dict[str, str] = {}  # each once, with the first call that has it
        self.unchecked: list[str] = []
        self.chosen: list[Task] = []
        self.has_hung = False

    def require(self, condition: bool, what: str, message: str) -> None:
        if not condition:
            self.faults.setdefault(message, f"{what}: {message}" if what else message)

    def fail(self, what: str, message: str) -> _Stop:
        self.require(False, what, message)
        return _Stop()

    def call(
        self, what: str, function: Callable[..., Any], *arguments: object, passing: type[Exception] = _Stop
    ) -> Any:
        """Call the environment; what it raises is a fault and ends the part, unless it is of the kind `passing`."""
        try:
            with self._limit_time():
                answer = function(*arguments)
            if self.has_hung:  # and swallowed the error
                raise TimeoutError  # noqa: TRY301
        except (Exception, SystemExit) as error:
            if isinstance(error, passing) and not self.has_hung:
                raise
            limit = f"did not return within {self.timeout:g} s"
            raise self.fail(what, limit if self.has_hung else f"raised {describe_env_error(error)[0]}") from error
        return answer

    @contextmanager
    def _limit_time(self) -> Iterator[None]:
        """Raise in code that runs too long; only in a main thread, where signals arrive."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(*_: object) -> None:
            self.has_hung = True
            raise TimeoutError

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, self.timeout, 1.0)  # again each second, should the environment catch it
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def make_env(self) -> Env:
        env = self.call("making the environment", self.env_factory)
        for name in ("reset", "step", "close"):
            if not callable(getattr(env, name, None)):
                raise self.fail("", f"{type(env).__name__} has no method {name}")
        assert isinstance(env, Env)
        return env

    def prepare(self, tasks: Sequence[Task] | None) -> None:
        self.env = self.make_env()
        splits = self.list_tasks() if callable(getattr(type(self.env), "tasks", None)) else {}
        self.chosen = list(tasks) if tasks is not None else [task for listed in splits.values() for task in listed[:1]]
        if not splits:
            self.unchecked.append("the class lists no tasks: splits were not checked")
        if not self.chosen:
            message = "there is no task to try: pass tasks, or give the class a static method tasks(split)"
            raise self.fail("", message) if not self.faults else _Stop

    def list_tasks(self) -> dict[str, list[Task]]:
        splits: dict[str, list[Task]] = {}
        lacking = ""
        for split in SPLITS:
            try:
                tasks = self.list_split(split)
            except ConfigError as error:  # an environment may lack a split
                lacking = lacking or f": {sanitize_text(str(error), 500)}"
                continue
            except _Stop:
                return splits
            for other, games in splits.items():
                if both := self.call(f"comparing {split} with {other}", find_shared_tasks, games, tasks):
                    why = "as they have the same id, or the same seed and options"
                    self.require(False, "", f"task {both[0].id!r} of {split} is a game of {other} too, {why}")
            if tasks:
                splits[split] = tasks
        self.require(bool(splits), "", f"tasks(split) lists nothing for any of {', '.join(SPLITS)}{lacking}")
        return splits

    def list_split(self, split: str) -> list[Task]:
        what, lister = f"tasks({split!r})", type(self.env).tasks  # type: ignore[attr-defined]  # as runs call it
        options = select_accepted(lister, self.options)
        listed: list[list[Task]] = []
        for seed in (1, 2):
            with _perturb_global_seed(seed):
                listed.append(self.call(what, lambda: list(lister(split, **options)), passing=ConfigError))
        self.require(listed[0] == listed[1], what, "differs from call to call: derive it from its arguments alone")
        for task in listed[0]:
            if not isinstance(task, Task):
                raise self.fail(what, f"must list Task values, not {type(task).__name__}")
            self.require(task.split == split, what, f"lists {task.id!r} with split {task.split!r}")
            plain = _is_json_table(task.options)
            self.require(plain, what, f"the options of task {task.id!r} must be JSON values, without tuples")
        for name, count in Counter(task.id for task in listed[0]).items():
            self.require(count == 1, what, f"lists task id {name!r} {count} times")
        return listed[0]

    def play(self) -> None:
        """Play the first tasks to their end, or for `MAX_STEPS`."""
        ended: list[Observation] = []
        for task in self.chosen[:NUM_TASKS]:
            observation = first = self.reset(task)
            pick = random.Random(0)
            for _ in range(MAX_STEPS):
                observation = self.step(_pick_action(observation, pick))
                steady = observation.max_score == first.max_score
                self.require(steady, "", "max_score must stay the same within an episode")
                if observation.done:
                    ended.append(observation)
                    self.require_env_error(self.env, "step after the end must raise trailnotes.errors.EnvError")
                    break
        if not ended:
            self.unchecked.append(f"no episode ended within {MAX_STEPS} steps: what follows an end was not checked")
        won = [last for last in ended if last.score == last.max_score]
        if not any(last.success for last in won) and (won or not _names_success(self.env)):
            self.unchecked.append("no observation had success = True, without which every episode counts as failed")

    def repeat(self) -> None:
        """Require equal answers to equal actions: again, in a fresh environment, under any global seed."""
        for task in self.chosen[:NUM_TASKS]:
            other = self.make_env()
            reference = None
            for seed, candidate in enumerate((self.env, self.env, other)):
                with _perturb_global_seed(seed):
                    played = self.play_steps(candidate, task)
                reference = reference or played
                for place, (ours, theirs) in enumerate(zip(reference, played, strict=False)):
                    if ours != theirs:
                        where = f"differs at {f'step {place}' if place else 'reset'} when played again"
                        raise self.fail(f"task {task.id!r}", f"{where}: use only task.seed")
            self.call("close", other.close)

    def play_steps(self, env: Env, task: Task) -> list[Observation]:
        observations = [self.reset(task, env)]
        pick = random.Random(1)
        while len(observations) <= MAX_REPEATED_STEPS and not observations[-1].done:
            observations.append(self.step(_pick_action(observations[-1], pick), env=env))
        return [replace(observation, info={}) for observation in observations]  # info may be a time and the like

    def try_odd_actions(self) -> None:
        for label, action in ODD_ACTIONS.items():
            with suppress(_Stop):
                self.reset(self.chosen[0])
                self.step(action, label)
            if self.has_hung:
                break

    def close(self) -> None:
        for _ in range(2):
            self.call("close", self.env.close)

    def identify(self) -> None:
        if callable(identity := getattr(type(self.env), "identity", None)):
            options = select_accepted(identity, self.options)
            first, second = (self.call("identity", lambda: dict(identity(**options))) for _ in range(2))
            self.require(_is_json(first), "identity", "must hold JSON values only, without tuples")
            self.require(first == second, "identity", "differs from call to call: use its arguments and the data alone")

    def order(self) -> None:
        """Check a step before any reset, and an end in the middle of an episode."""
        fresh = self.make_env()
        self.require_env_error(fresh, "step before reset must raise trailnotes.errors.EnvError")
        self.call("close before reset", fresh.close)
        fresh = self.make_env()
        self.reset(self.chosen[0], fresh)
        for _ in range(2):
            self.call("close in mid-episode", fresh.close)

    def require_env_error(self, env: Env, message: str) -> None:
        with suppress(EnvError):
            self.call(message, env.step, "look", passing=EnvError)
            self.require(False, "", message)

    def reset(self, task: Task, env: Env | None = None) -> Observation:
        first: Observation = self.call(f"reset of task {task.id!r}", (env or self.env).reset, task)
        self.check_observation(first, "reset")
        has_goal = isinstance(first.instruction, str) and bool(first.instruction)
        self.require(has_goal, "reset", "it must set the instruction: the goal in words")
        self.require(first.reward == 0, "reset", f"it must have reward 0, not {first.reward:g}")
        self.require(not first.done and not first.success, "reset", "it must not end the episode")
        return first

    def step(self, action: str, label: str = "", env: Env | None = None) -> Observation:
        what = f"step with {label or repr(action)}"
        observation: Observation = self.call(what, (env or self.env).step, action)
        self.check_observation(observation, what)
        self.require(observation.instruction is None, what, "it has an instruction, which belongs to reset alone")
        self.require(observation.briefing is None, what, "it has a briefing, which belongs to reset alone")
        return observation

    def check_observation(self, observation: object, what: str) -> None:
        if not isinstance(observation, Observation):
            hint = " (env.name = gymnasium plays those of Gymnasium)" if isinstance(observation, tuple) else ""
            raise self.fail(what, f"it must return an Observation, not {type(observation).__name__}{hint}")
        score, most, actions = observation.score, observation.max_score, observation.actions
        texts = actions if isinstance(actions, tuple | list) else ()
        has_gap = not all(isinstance(action, str) and action.strip() for action in texts)
        faults = {
            "terminated (by the rules) and truncated (cut off) exclude each other": observation.done
            and observation.terminated == observation.truncated,
            f"max_score must be positive, is {most:g}": most <= 0,
            f"the score must not exceed max_score, is {score:g} of {most:g}": score > most,
            f"success needs a positive score, is {score:g} of {most:g}": observation.success and score <= 0,
            "info must hold JSON values only (no tuples)": not _is_json_table(observation.info or {}),
            f"actions must be a tuple or None, not {type(actions).__name__}": not isinstance(actions, tuple | None),
            "actions is empty in mid-episode: offer some, or None": actions == () and not observation.done,
            "each of actions must be a non-empty string": has_gap,
        }
        for message, applies in faults.items():
            self.require(not applies, what, message)


def _names_success(env: Env) -> bool:
    """Tell whether the code of an environment has the word at all: random actions win few games."""
    with suppress(OSError, TypeError):
        modules = {kind.__module__ for kind in type(env).__mro__[:-1]}
        return any("success" in inspect.getsource(sys.modules[name]) for name in modules)
    return True


def _pick_action(observation: Observation, pick: random.Random) -> str:
    actions = observation.actions  # of any type, which is a fault by now
    return pick.choice(actions) if actions and isinstance(actions, tuple | list) else "look"


@contextmanager
def _perturb_global_seed(seed: int) -> Iterator[None]:
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def _is_json_table(value: object) -> bool:
    return isinstance(value, Mapping) and _is_json(dict(value))


def _is_json(value: object) -> bool:
    """Tell whether a value stays what it is on its way to a worker: tuples and keys that are no texts do not."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False

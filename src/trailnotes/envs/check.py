"""Checks an environment against the contract, for authors of environments."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from trailnotes.envs.base import Env, format_error, sanitize_text
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task

SPLITS = ("train", "validation", "test")
MAX_STEPS = 200  # an episode is followed this far in search of its end
NUM_TASKS = 3  # of the given ones, the first

ODD_ACTIONS = {
    "an empty action": "",
    "a blank action": "   ",
    "an action with newlines": "look\n\nlook\r\n",
    "a unicode action": "öffne die Tür \U0001f6aa 开门",
    "a lone surrogate": "\ud800",
    "control characters": "\x00\x07\x1b[31m",
    "an action of 100 kB": "look " * 20_000,
}


def check_env(env_factory: Callable[[], Env], tasks: Sequence[Task] | None = None) -> tuple[str, ...]:
    """Check an environment against the contract of `Env`, as its author would in a test.

    `env_factory` makes a fresh one, such as ``functools.partial(MyEnv, size=3)``; `tasks` are by default the first of
    each split.

    Returns:
        What could not be checked, one line each; () if everything was.

    Raises:
        EnvError: the first violation, with what to change.
    """
    env = _make_env(env_factory)
    splits = _check_tasks(env, env_factory)
    _check_identity(env, env_factory)
    chosen = list(tasks) if tasks is not None else [task for listed in splits.values() for task in listed[:1]]
    _require(bool(chosen), "there is no task to try: pass tasks, or give the class a static method tasks(split)")
    _check_order(env_factory, chosen[0])
    skipped = [] if splits else ["the class lists no tasks: splits were not checked"]
    ended = False
    for task in chosen[:NUM_TASKS]:
        ended |= _check_episode(env, task)
        _check_repeatable(env, _make_env(env_factory), task)
    if not ended:
        skipped.append(f"no episode ended within {MAX_STEPS} steps: what follows an end was not checked")
    for label, action in ODD_ACTIONS.items():
        _reset_env(env, chosen[0])
        _step_env(env, action, label)
    for _ in range(2):
        _call_env("close", env.close)
    return tuple(skipped)


def _check_tasks(env: Env, env_factory: Callable[[], Env]) -> dict[str, list[Task]]:
    if not callable(lister := getattr(env, "tasks", None)):
        return {}
    options = _select_options(lister, env_factory)
    splits: dict[str, list[Task]] = {}
    owner: dict[str, str] = {}
    lacking = ""
    for split in SPLITS:
        try:
            listed = _list_tasks(lister, split, options)
        except ConfigError as error:  # an environment may lack a split
            lacking = lacking or f": {sanitize_text(str(error), 500)}"
            continue
        for task in listed:
            _require(task.id not in owner, f"task id {task.id!r} is in {owner.get(task.id)} and again in {split}")
            owner[task.id] = split
        if listed:
            splits[split] = listed
    _require(bool(splits), f"tasks(split) lists nothing for any of {', '.join(SPLITS)}{lacking}")
    return splits


def _list_tasks(lister: Callable[..., Any], split: str, options: dict[str, Any]) -> list[Task]:
    call = f"tasks({split!r})"
    listed = []
    try:
        for seed in (1, 2):
            with _perturb_global_seed(seed):
                listed.append(list(lister(split, **options)))
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(f"check_env: {call} raised {format_error(error)}; a split it lacks is a ConfigError") from error
    _require(listed[0] == listed[1], f"{call} differs from call to call: derive it from its arguments alone")
    for task in listed[0]:
        _require(isinstance(task, Task), f"{call} must list Task values, not {type(task).__name__}")
        _require(task.split == split, f"{call} lists {task.id!r} with split {task.split!r}")
        _require(_is_json(dict(task.options)), f"the options of task {task.id!r} must be JSON values")
    return listed[0]


def _check_identity(env: Env, env_factory: Callable[[], Env]) -> None:
    if callable(teller := getattr(env, "identity", None)):
        options = _select_options(teller, env_factory)
        first, second = (_call_env("identity", lambda: dict(teller(**options))) for _ in range(2))
        _require(_is_json(first), "identity must hold JSON values only")
        _require(first == second, "identity differs from call to call: derive it from its arguments and the data alone")


def _select_options(function: Callable[..., Any], env_factory: Callable[[], Env]) -> dict[str, Any]:
    options: dict[str, Any] = getattr(env_factory, "keywords", {})
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {key: value for key, value in options.items() if takes_any or key in parameters}


def _check_order(env_factory: Callable[[], Env], task: Task) -> None:
    env = _make_env(env_factory)
    _require_env_error(env, "step before reset must raise trailnotes.errors.EnvError")
    _call_env("close before reset", env.close)
    fresh = _make_env(env_factory)
    _reset_env(fresh, task)
    for _ in range(2):
        _call_env("close in mid-episode", fresh.close)


def _check_episode(env: Env, task: Task) -> bool:
    observation = first = _reset_env(env, task)
    pick = random.Random(0)
    for _ in range(MAX_STEPS):
        observation = _step_env(env, _pick_action(observation, pick))
        _require(observation.max_score == first.max_score, "max_score must stay the same within an episode")
        if observation.done:
            _require_env_error(env, "step after the end must raise trailnotes.errors.EnvError")
            _reset_env(env, task)
            return True
    return False


def _check_repeatable(env: Env, other: Env, task: Task) -> None:
    """Require equal answers to equal actions: again, in a fresh environment, under any global seed."""
    reference = None
    for seed, candidate in enumerate((env, env, other)):
        with _perturb_global_seed(seed):
            played = _play_steps(candidate, task)
        reference = reference or played
        for place, (ours, theirs) in enumerate(zip(reference, played, strict=False)):
            where = "reset" if place == 0 else f"step {place}"
            _require(ours == theirs, f"task {task.id!r} differs at {where} when played again: use only task.seed")
    _call_env("close", other.close)


def _play_steps(env: Env, task: Task, num_steps: int = 10) -> list[Observation]:
    observations = [_reset_env(env, task)]
    pick = random.Random(1)
    while len(observations) <= num_steps and not observations[-1].done:
        observations.append(_step_env(env, _pick_action(observations[-1], pick)))
    return [replace(observation, info={}) for observation in observations]  # info may hold times and the like


def _reset_env(env: Env, task: Task) -> Observation:
    first: Observation = _call_env(f"reset of task {task.id!r}", env.reset, task)
    _check_observation(first, "reset")
    _require(bool(first.instruction), "reset must set the instruction: the goal in words")
    _require(first.reward == 0, f"reset must have reward 0, not {first.reward:g}")
    _require(not first.done and not first.success, "reset must not end the episode")
    return first


def _step_env(env: Env, action: str, label: str = "") -> Observation:
    what = f"step with {label or repr(action)}"
    observation: Observation = _call_env(what, env.step, action)
    _check_observation(observation, what)
    _require(observation.instruction is None, f"{what} has an instruction: it belongs to reset alone")
    _require(observation.briefing is None, f"{what} has a briefing: it belongs to reset alone")
    return observation


def _check_observation(observation: object, what: str) -> None:
    if not isinstance(observation, Observation):
        raise EnvError(f"check_env: {what} must return an Observation, not {type(observation).__name__}")
    ends = observation.terminated and observation.truncated
    _require(not ends, f"{what}: terminated (by the game's rules) and truncated (cut off) exclude each other")
    _require(observation.max_score > 0, f"{what}: max_score must be positive, is {observation.max_score:g}")
    score = f"{observation.score:g} of {observation.max_score:g}"
    _require(observation.score <= observation.max_score, f"{what}: the score must not exceed max_score, is {score}")
    _require(not observation.success or observation.score > 0, f"{what}: success needs a positive score, is {score}")
    _require(_is_json(dict(observation.info)), f"{what}: info must hold JSON values only")
    if (actions := observation.actions) is not None:
        _require(isinstance(actions, tuple), f"{what}: actions must be a tuple or None, not {type(actions).__name__}")
        _require(observation.done or bool(actions), f"{what}: actions is empty in mid-episode: offer some, or None")
        fine = all(isinstance(action, str) and action.strip() for action in actions)
        _require(fine, f"{what}: each of actions must be a non-empty string")


def _pick_action(observation: Observation, pick: random.Random) -> str:
    return pick.choice(observation.actions) if observation.actions else "look"


def _require_env_error(env: Env, message: str) -> None:
    try:
        env.step("look")
    except EnvError:
        return
    except (Exception, SystemExit) as error:
        raise EnvError(f"check_env: {message}, not {format_error(error)}") from error
    raise EnvError(f"check_env: {message}")


def _make_env(env_factory: Callable[[], Env]) -> Env:
    env = _call_env("making the environment", env_factory)
    for name in ("reset", "step", "close"):
        _require(callable(getattr(env, name, None)), f"{type(env).__name__} has no method {name}")
    assert isinstance(env, Env)
    return env


def _call_env(what: str, function: Callable[..., Any], *arguments: object) -> Any:
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise EnvError(f"check_env: {what} raised {format_error(error)}") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EnvError(f"check_env: {message}")


@contextmanager
def _perturb_global_seed(seed: int) -> Iterator[None]:
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True

"""`check_env` accepts good environments and names each way of being a bad one."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odd_envs import Puppet
from trailnotes.envs import check_env, make_env
from trailnotes.envs.check import find_faults
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task

COUNT = itertools.count()


class Good:
    """Three steps to the end; the base of all bad ones."""

    def __init__(self) -> None:
        self.left = 0

    @staticmethod
    def tasks(split: str, num: int = 2) -> list[Task]:
        if split == "validation":
            raise ConfigError("no such split")
        first = 0 if split == "train" else 100
        return [Task(f"{split}-{index}", "x:Good", first + index, split) for index in range(num)]

    def reset(self, task: Task) -> Observation:
        self.left = 3
        return Observation(f"start {task.id}", instruction="wait")

    def step(self, action: str) -> Observation:
        if not self.left:
            raise EnvError("over")
        self.left -= 1
        won = self.left == 0
        return Observation(f"{self.left}", float(won), terminated=won, success=won, score=float(won), actions=("go",))

    def close(self) -> None:
        self.left = 0


def bad(**methods: Any) -> type[Good]:
    """`Good` with other methods."""
    return type("Bad", (Good,), methods)


def answering(**fields: Any) -> Callable[..., Any]:
    """A step whose observations have other fields."""
    return lambda self, action: replace(Good.step(self, action), **fields)


def starting(**fields: Any) -> Callable[..., Any]:
    """A reset whose observation has other fields."""
    return lambda self, task: replace(Good.reset(self, task), **fields)


def lists(*ids: str, **fields: Any) -> Any:
    """Task lists with these ids in each split."""
    return staticmethod(lambda split: [Task(name, "x:Good", **{"split": split, **fields}) for name in ids])


def refuse(split: str) -> list[Task]:
    raise ConfigError("env.options.size = 3:\nuse 4")


def raising(method: str, kind: type[BaseException], when: Callable[[Any], bool] = bool) -> Callable[..., Any]:
    def raise_(self: Good, *arguments: Any) -> Any:
        if when(arguments[0] if arguments else True):
            raise kind("on purpose")
        return getattr(Good, method)(self, *arguments)

    return raise_


def after_end(self: Good, action: str) -> Observation:
    self.left = self.left or 1
    return Good.step(self, action)


def close_once(self: Good) -> None:
    if getattr(self, "closed", False):
        raise RuntimeError("closed twice")
    self.closed = True


class Lenient(Good):
    """Goes on after the end, but not before the first reset."""

    started = False

    def reset(self, task: Task) -> Observation:
        self.started = True
        return super().reset(task)

    def step(self, action: str) -> Observation:
        return after_end(self, action) if self.started else Good.step(self, action)


class Careless(Good):
    """Has no `x` before the first reset."""

    def reset(self, task: Task) -> Observation:
        self.x = 1
        return super().reset(task)

    def step(self, action: str) -> Observation:
        return Good.step(self, action * self.x)


class Gymnasium(Good):
    """Answers as Gymnasium's environments do."""

    def step(self, action: str) -> Any:
        return Good.step(self, action), 0.0, False, False, {}


FAULTS: dict[str, Any] = {  # part of the message -> environment
    "Bad has no method close": bad(close=None),
    "making the environment: raised ValueError: on purpose": bad(__init__=raising("__init__", ValueError)),
    "reset: it must set the instruction": bad(reset=starting(instruction=3)),
    "reset: it must have reward 0, not 2": bad(reset=starting(reward=2.0)),
    "reset: it must not end the episode": bad(reset=starting(truncated=True)),
    "reset of task 'train-0': raised KeyError": bad(reset=raising("reset", KeyError)),
    "reset: it must return an Observation, not str": bad(reset=lambda self, task: "hello"),
    "step with 'look': it must return an Observation, not tuple": Gymnasium,
    "step before reset must raise trailnotes.errors.EnvError": bad(step=after_end),
    "step before reset must raise trailnotes.errors.EnvError: raised AttributeError": Careless,
    "step after the end must raise trailnotes.errors.EnvError": Lenient,
    "it has an instruction": bad(step=answering(instruction="again")),
    "it has a briefing": bad(step=answering(briefing={"inventory": "a lamp"})),
    "inventory of a briefing must be a str": bad(reset=starting(briefing={"inventory": 3})),
    "exclude each other": bad(step=answering(terminated=True, truncated=True)),
    "raised ValueError: reward must be finite": bad(step=answering(reward=float("inf"))),
    "step with a number: raised IndexError": bad(step=raising("step", IndexError, str.isdigit)),
    "max_score must be positive, is 0": bad(step=answering(max_score=0.0)),
    "the score must not exceed max_score, is 3 of 1": bad(step=answering(score=3.0)),
    "success needs a positive score, is -1 of 1": bad(step=answering(success=True, score=-1.0)),
    "max_score must stay the same": bad(step=lambda self, a: replace(Good.step(self, a), max_score=4.0 - self.left)),
    "info must hold JSON values": bad(step=answering(info={"object": object()})),
    "info must hold JSON values only": bad(step=answering(info=3)),
    "actions must be a tuple or None, not set": bad(step=answering(actions={"go"})),
    "actions is empty in mid-episode": bad(step=answering(actions=())),
    "each of actions must be a non-empty string": bad(step=answering(actions=("go", " "))),
    "differs at reset when played again": bad(
        reset=lambda self, t: replace(Good.reset(self, t), text=f"{next(COUNT)}")
    ),
    "differs at step 1 when played again": bad(step=lambda self, a: replace(Good.step(self, a), text=f"{next(COUNT)}")),
    "step with an empty action: raised IndexError": bad(step=raising("step", IndexError, lambda a: a == "")),
    "step with a lone surrogate: raised UnicodeError": bad(step=raising("step", UnicodeError, lambda a: a == "\ud800")),
    "close: raised RuntimeError: closed twice": bad(close=close_once),
    "task 'a' of validation is a game of train too, as they have the same id": bad(tasks=lists("a")),
    "task 'test-1' of test is a game of train too, as they have the same id, or the same seed and options": bad(
        tasks=staticmethod(lambda split: [Task(f"{split}-{seed}", "x:Good", seed, split) for seed in range(5)])
    ),
    "tasks('train'): lists task id 'a' 2 times": bad(tasks=lists("a", "a")),
    "tasks('train'): lists 'a' with split 'test'": bad(tasks=lists("a", split="test")),
    "the options of task 'b' must be JSON values": bad(tasks=lists("b", options={"size": (3, 4)})),
    "the options of task 'c' must be JSON values": bad(tasks=lists("c", options={1: "a"})),
    "the options of task 'd' must be JSON values": bad(tasks=lists("d", options=None)),
    "tasks('train'): raised TypeError": bad(tasks=lambda self, split: [Task(split, "x", split=split)]),
    "tasks('train'): raised TypeError: the id of a task must be a str": bad(tasks=lists(3)),  # type: ignore[arg-type]
    "identity: raised TypeError": bad(identity=lambda self: {"data": 1}),
    "tasks('train'): must list Task values, not str": bad(tasks=staticmethod(lambda split: ["a"])),
    "tasks('train'): differs from call to call": bad(
        tasks=staticmethod(lambda split: [Task(f"{random.random()}", "x", split=split)])
    ),
    "tasks('train'): raised KeyError: 'train'": bad(tasks=staticmethod(lambda split: {}[split])),
    "identity: must hold JSON values": bad(identity=staticmethod(lambda: {"data": object})),
    "identity: differs from call to call": bad(identity=staticmethod(lambda: {"draw": random.random()})),
    "identity: raised ValueError: dictionary update": bad(identity=staticmethod(lambda: ["data"])),
    "tasks(split) lists nothing": bad(tasks=lists()),
    "lists nothing for any of train, validation, test: env.options.size = 3: use 4": bad(tasks=staticmethod(refuse)),
    "step with 'go': raised SystemExit: on purpose": bad(step=raising("step", SystemExit, lambda a: a == "go")),
    "there is no task to try": bad(tasks=None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_on_one_line(fault: str) -> None:
    with pytest.raises(EnvError) as caught:
        check_env(FAULTS[fault])
    message = str(caught.value)
    assert message.startswith("check_env: ")
    assert fault in message
    assert "\n" not in message


def test_all_faults_are_listed_and_the_return_type_before_the_order_of_calls() -> None:
    class Naive(Gymnasium):
        @staticmethod
        def identity() -> Any:
            return {"data": object}

        def reset(self, task: Task) -> Observation:
            return replace(Good.reset(self, task), instruction=None, actions=["go"])  # type: ignore[arg-type]

        def step(self, action: str) -> Any:
            return self.left, 0.0, False, False, {}

    faults, unchecked = find_faults(Naive)
    assert [fault.partition(":")[0] for fault in faults] == [
        "reset", "reset", "step with 'go'", "identity", "step before reset must raise trailnotes.errors.EnvError",
    ]  # fmt: skip
    assert "tuple" in faults[2]
    assert unchecked == []
    with pytest.raises(EnvError, match=r"^check_env: 5 faults: \(1\) reset: .*\(5\) step before reset"):
        check_env(Naive)


def test_a_fault_of_the_code_comes_with_file_and_line() -> None:
    here = Path(__file__).name
    with pytest.raises(EnvError, match=rf"raised KeyError: 'on purpose' \({here}:\d+\)"):
        check_env(bad(step=raising("step", KeyError)))


def test_a_call_that_hangs_ends_the_check() -> None:
    def hang(self: Good, action: str) -> Observation:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(60)
                return Good.step(self, action)
            if action == "look":
                raise ValueError

    faults, _ = find_faults(bad(step=hang), timeout=0.05)
    assert faults == ["step with 'look': did not return within 0.05 s"]


def test_good_environments_pass_with_nothing_skipped() -> None:
    state = random.getstate()
    assert check_env(Good) == ()
    assert random.getstate() == state
    assert check_env(functools.partial(Puppet, greeting="hi")) == ()
    assert check_env(lambda: make_env("waymarks-simulator", actions=True)) == ()


def test_what_cannot_be_checked_is_returned() -> None:
    class Endless(Good):
        def step(self, action: str) -> Observation:
            Good.step(self, action)
            self.left = 3
            return Observation("nothing happens")

    task = Task("t", "x")
    assert check_env(Endless) == ("no episode ended within 200 steps: what follows an end was not checked",)
    assert check_env(bad(tasks=None), [task]) == ("the class lists no tasks: splits were not checked",)
    assert check_env(bad(reset=starting(briefing={"inventory": "a lamp"}, info=None))) == ()
    assert check_env(bad(step=answering(success=False)))[0].startswith("no observation had success = True")

"""Training runs of seconds: a random model in simulated Waymarks that pay for words instead of for winning."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import multiprocessing
import signal
import sqlite3
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from children import signal_at_write
from paying import Paid
from small import merge_sections, small_config
from trailnotes.commands import main
from trailnotes.config.methods import resolve_method
from trailnotes.config.schema import Config
from trailnotes.envs.waymarks.env import WaymarksSimulator
from trailnotes.errors import EnvError
from trailnotes.learner.learner import Learner
from trailnotes.runs.directory import RunDir
from trailnotes.runs.iteration import Iteration
from trailnotes.runs.train import run_method, train
from trailnotes.runs.training import TrainingRun, open_run
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Observation

TIMINGS = ("seconds", "update/seconds", "update/seconds_reference")
TOUCHES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")


def tiny_config(start: Path, **sections: dict[str, Any]) -> Config:
    """Three iterations of EMPO2 with mixed groups; sections are laid over it."""
    own: dict[str, dict[str, Any]] = {
        "model": {"path": str(start)},
        "env": {"name": "paying:Paid", "options": {"families": ["keys/granite"], "max_steps": 2}},
        "rollout": {"num_tasks": 5},  # the whole split, so that every task has tips from the second iteration on
        "memory": {"threshold": -1.0},
        "loss": {"kl": 0.05, "mask_logprob": -20.0},  # to a random model every token is improbable
        "optim": {"lr": 1e-2, "epochs": 2},
        "train": {"iterations": 3, "max_env_steps": 0},
    }
    return small_config(**merge_sections(own, sections))


def train_in_process(config: Config, directory: Path, method: str = "") -> TrainingRun:
    """What `train` does, but the finished run comes back, closed."""

    async def body() -> TrainingRun:
        with RunDir.open(directory, config) as opened, open_run(config, opened) as run:
            await run_method(resolve_method(method or config.algorithm.name).load(), run)
        return run

    return asyncio.run(body())


def train_in_parts(directory: Path, *configs: Config) -> None:
    """Train by one config after the other, which may differ in `[train]`."""
    for config in configs:
        with RunDir.open(directory, config, allow_change=["train"]) as run:
            run.write_config()
        train_in_process(config, directory)


def trained(start: Path, directory: Path, **sections: dict[str, Any]) -> Path:
    """Train a tiny run; returns its directory."""
    train_in_process(tiny_config(start, **sections), directory)
    return directory


def trained_once(start: Path, **sections: dict[str, Any]) -> Path:
    """Train a tiny run that all tests of a session share; returns its directory, which nobody may change."""
    config = tiny_config(start, **sections)
    directory = start.parent / f"run-{zlib.crc32(config.model_dump_json().encode()):08x}"
    if not directory.exists():
        train_in_process(config, directory)
    return directory


def in_a_run(config: Config, directory: Path, body: Callable[[Iteration], Awaitable[None]]) -> None:
    """Open a run, and do something in its first iteration."""

    async def opened() -> None:
        with RunDir.open(directory, config) as at, open_run(config, at) as run:
            await body(Iteration(run, 0))

    asyncio.run(opened())


def record(patch: pytest.MonkeyPatch, owner: type, name: str) -> list[tuple[tuple[Any, ...], Any]]:
    """Positional arguments and result of each call of a method from here on, in the order in which they return."""
    calls: list[tuple[tuple[Any, ...], Any]] = []
    method = getattr(owner, name)

    async def awaited(*arguments: Any, **named: Any) -> Any:
        calls.append((arguments, await method(*arguments, **named)))
        return calls[-1][1]

    def called(*arguments: Any, **named: Any) -> Any:
        calls.append((arguments, method(*arguments, **named)))
        return calls[-1][1]

    patch.setattr(owner, name, awaited if inspect.iscoroutinefunction(method) else called)
    return calls


def weights(path: Path) -> dict[str, torch.Tensor]:
    """All weights of the last checkpoint of a run directory, or of a model directory; of adapters theirs alone."""
    if (path / "checkpoints").is_dir():
        path = max((path / "checkpoints").glob("step-*")) / "model"
    adapters = path / "adapter_model.safetensors"
    return load_file(adapters if adapters.is_file() else path / "model.safetensors")


def equal_weights(a: Path, b: Path) -> bool:
    """Bit for bit."""
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def distance(a: Path, b: Path) -> float:
    """Largest difference between two weights."""
    left, right = weights(a), weights(b)
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def metrics(path: Path, leave_out: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The lines of a run, but for what its clock said."""
    return [
        {k: v for k, v in line.items() if k not in {*TIMINGS, *leave_out} and not k.startswith("seconds/")}
        for line in read_jsonl(path / "metrics.jsonl")
    ]


def episodes(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path / "trajectories.jsonl"))


def list_actions(path: Path) -> list[list[str]]:
    """The actions of every episode."""
    return [[step["action"] for step in episode["steps"]] for episode in episodes(path)]


def tip_rows(path: Path) -> list[tuple[Any, ...]]:
    """All columns of all tips, vectors included, but for the time of writing."""
    with closing(sqlite3.connect(path / "memory.db")) as connection:
        cursor = connection.execute("SELECT * FROM tips ORDER BY id")
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
    return [tuple(value for name, value in row.items() if name not in ("created", "retired_on")) for row in rows]


def differences(a: Path, b: Path) -> dict[str, bool]:
    """Which parts of two runs differ; all must be False for equal runs."""
    pairs: Mapping[str, tuple[Any, Any]] = {
        "metrics": (metrics(a), metrics(b)),
        "episodes": (episodes(a), episodes(b)),
        "tips": (tip_rows(a), tip_rows(b)),
    }
    return {"weights": not equal_weights(a, b)} | {name: left != right for name, (left, right) in pairs.items()}


SAME = dict.fromkeys(("weights", "metrics", "episodes", "tips"), False)


def at_update(patch: pytest.MonkeyPatch, number: int, then: Callable[[], None]) -> None:
    """Have something happen in the middle of the learner's `number`-th update from now."""
    update, calls = Learner.update, itertools.count(1)

    def interrupted(self: Learner, *args: Any, **options: Any) -> dict[str, float]:
        if next(calls) == number:
            then()
        return update(self, *args, **options)

    patch.setattr(Learner, "update", interrupted)


def train_until_power_cut(config: Config, directory: Path, number: int, **options: Any) -> None:
    """Train until the power fails in the learner's `number`-th update."""

    def power_cut() -> None:
        raise RuntimeError("power cut")

    with pytest.MonkeyPatch.context() as patch:
        at_update(patch, number, power_cut)
        with pytest.raises(RuntimeError, match="power cut"):
            train(config, directory, **options)


class Echo(WaymarksSimulator):
    """Waymarks that repeat what was said, and end with every other word; they never pay."""

    def step(self, action: str) -> Observation:
        answer = super().step(action)
        ends = zlib.crc32(action.encode()) % 2 == 0
        return replace(answer, text=f"{action} ? {answer.text}", truncated=answer.truncated or ends)


class Broken(Paid):
    """Fails at its first step, always."""

    def step(self, action: str) -> Observation:
        raise EnvError("broken")


def command(words: Sequence[str], touched: Path, fatal: int, number: int = signal.SIGKILL) -> None:
    """The command line in a process of its own, which sends itself a signal at its `fatal`-th touch of `touched`.

    A touch opens for writing, renames or removes something below that directory; `fatal` 0 never comes.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the fork server may have begun under nohup
    signal_at_write(touched, TOUCHES, fatal, number)
    sys.exit(main(words))


def run_command(words: Sequence[str], touched: Path, fatal: int = 0, number: int = signal.SIGKILL) -> int:
    """Exit code of `command`, negative for the signal that ended it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trailnotes.runs.training", "tinyrun"])
    process = context.Process(target=command, args=(words, touched, fatal, number))
    process.start()
    process.join(120)
    code = process.exitcode
    process.kill()  # or this process would wait for it at its own end
    assert code is not None, "the command hangs"
    return code

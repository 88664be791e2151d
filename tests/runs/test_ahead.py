"""Iterations played while earlier ones are learned from, and what their rows weigh."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tinyrun import SAME, differences, equal_weights, metrics, tiny_config, tip_rows, train_in_process
from trailnotes.algorithms.grpo import grpo
from trailnotes.config.methods import Method, register
from trailnotes.errors import RunError
from trailnotes.learner.samples import build_samples
from trailnotes.memory import TipMemory
from trailnotes.runs.iteration import Iteration
from trailnotes.runs.staleness import Correction, correct_samples
from trailnotes.runs.train import train
from trailnotes.types import Completion, Observation, Sample, Step, Task, Trajectory, TrajectoryGroup

TASK = Task("task", "numbers")
LORA = {"lora": {"enabled": True, "rank": 4}}
AHEAD = {"max_async_iterations": 1, "num_tasks": 5}


# -- the arithmetic


class Now:
    """Stands in for the learner: what the weights of now say of each sampled token."""

    def __init__(self, *logprobs: float) -> None:
        self.left = list(logprobs)
        self.asked: list[Sample] = []

    def logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        self.asked += samples
        return [tuple(self.left.pop(0) if trained else 0.0 for trained in s.loss_mask) for s in samples]


def with_a_tip() -> TrajectoryGroup:
    """One step: the prompt 1 2 3 with a tip (2), 1 3 without; two tokens, sampled with probability 1/2 and 1/4."""
    completion = Completion((1, 2, 3), (7, 8), (math.log(0.5), math.log(0.25)), "go")
    step, end = Step(Observation("here"), (), completion, (1, 3), "go", 0.0), Observation("end")
    return TrajectoryGroup(TASK, (Trajectory(TASK, (step,), end, "terminated", True, 1.0, mode="off_policy"),))


def test_stale_tokens_are_weighted_by_hand() -> None:
    group = with_a_tip()
    (row,) = build_samples([group], [[2.0]])
    assert row.token_ids == (1, 3, 7, 8), "trained without the tip"
    learner = Now(math.log(0.6), math.log(0.75))  # 1.2 and 3 times as probable as then
    (weighed,), result = correct_samples([row], [group], learner, rows="auto", correction=Correction(2.0))
    assert [sample.token_ids for sample in learner.asked] == [(1, 2, 3, 7, 8)], "asked with the tip"
    assert weighed.token_ids == row.token_ids
    assert weighed.advantages == pytest.approx((0, 0, 2.0 * 1.2, 2.0 * 2.0)), "the second is truncated at 2"
    assert weighed.behavior_logprobs == pytest.approx((0, 0, math.log(0.6), math.log(0.75)))
    assert result == {
        "weight": pytest.approx((1.2 + 2.0) / 2),
        "truncated": 0.5,
        "kl": pytest.approx((0.2 - math.log(1.2) + 2.0 - math.log(3.0)) / 2),
        "difference": pytest.approx((math.log(1.2) + math.log(3.0)) / 2),
    }


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        (Correction(2.0, above="mask"), (1.2, 0.0)),  # the second token's ratio is 3
        (Correction(4.0, "sequence"), (3.6, 3.6)),  # 1.2 * 3 for both
        (Correction(2.0, "sequence"), (2.0, 2.0)),
        (Correction(2.0, "sequence", "mask"), (0.0, 0.0)),
    ],
)
def test_mismatch_bound_by_token_or_episode(correction: Correction, weights: Sequence[float]) -> None:
    group, learner = with_a_tip(), Now(math.log(0.6), math.log(0.75))
    rows = build_samples([group], [[1.0]])
    (weighed,), _ = correct_samples(rows, [group], learner, rows="auto", correction=correction)
    assert weighed.advantages[-2:] == pytest.approx(weights)


def test_rows_of_steps_take_their_own_tokens() -> None:
    completion = Completion((1, 2), (3,), (math.log(0.5),), "go")
    steps = tuple(Step(Observation("here"), (), replace(completion, token_ids=(t,)), (1, 2), "go", 0.0) for t in (3, 4))
    group = TrajectoryGroup(TASK, (Trajectory(TASK, steps, Observation("end"), "terminated", True, 1.0),))
    rows, learner = build_samples([group], [[1.0]], rows="step"), Now(math.log(0.25), math.log(0.75))
    weighed, _ = correct_samples(rows, [group], learner, rows="step", correction=Correction(2.0))
    assert [row.advantages[-1] for row in weighed] == pytest.approx([0.5, 1.5])


# -- whole runs


@pytest.mark.parametrize(
    "method", ["empo2", *(pytest.param(name, marks=pytest.mark.long) for name in ("lamer", "opsd"))]
)
def test_overlapped_iterations_are_one_version_stale(start_model: Path, tmp_path: Path, method: str) -> None:
    settings = {"algorithm": {"name": method}, "train": {"iterations": 4}}
    run = train_in_process(tiny_config(start_model, rollout=AHEAD, **settings), tmp_path)
    lines = metrics(tmp_path)
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3]
    assert [line["stale/versions"] for line in lines] == [0.0, 1.0, 1.0, 1.0]
    assert "stale/weight" not in lines[0]
    assert all(0 < line["stale/weight"] <= 2 for line in lines[1:])
    assert (run.weights.version, run.count.iteration) == (4, 4)


@pytest.mark.long
def test_ahead_by_one_repeats_bit_for_bit(start_model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(tiny_config(start_model, rollout=AHEAD), tmp_path / name)
    assert differences(tmp_path / "a", tmp_path / "b") == SAME
    train(tiny_config(start_model), tmp_path / "c")
    assert not equal_weights(tmp_path / "a", tmp_path / "c"), "older weights played"


@pytest.mark.long
@pytest.mark.parametrize("model", [{}, LORA], ids=["full", "lora"])
def test_separate_policy_weights_equal_shared_ones(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]
) -> None:
    model = model | {"path": str(start_model)}
    train(tiny_config(start_model, model=model), tmp_path / "shared")

    async def one_by_one(method: Any, run: Any, _ahead: int) -> None:
        while not run.is_finished:
            iteration = Iteration(run, run.count.iteration)
            await iteration.begin()
            await method(iteration)

    monkeypatch.setattr("trailnotes.runs.train.run_overlapped", one_by_one)
    train(tiny_config(start_model, model=model, rollout=AHEAD), tmp_path / "own")
    result = differences(tmp_path / "shared", tmp_path / "own")
    assert result == SAME | {"metrics": True, "tips": True}, "but for staleness, and readers, counted in turn alone"


def test_a_run_that_was_ahead_resumes(start_model: Path, tmp_path: Path) -> None:
    train(tiny_config(start_model, train={"iterations": 2, "save_every": 1}, rollout=AHEAD), tmp_path)
    longer = tiny_config(start_model, train={"iterations": 4, "save_every": 1}, rollout=AHEAD)
    train(longer, tmp_path, allow_change=["train.iterations"])
    lines = metrics(tmp_path)
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3]
    assert [line["stale/versions"] for line in lines] == [0.0, 1.0, 0.0, 1.0], "what was ahead is played again"
    assert tip_rows(tmp_path)


def test_readers_of_an_iteration_that_is_played_again_count_once(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint may hold the counts of an iteration that was ahead: then it has its name, too."""
    names: list[str] = []
    monkeypatch.setattr(TipMemory, "report", lambda _self, _episodes, once: names.append(once))
    memory, iterations = {"order": ["ucb"]}, {"iterations": 2}
    train_in_process(tiny_config(start_model, rollout=AHEAD, memory=memory, train=iterations), tmp_path)
    assert names == ["0/rollout", "1/rollout"]


@pytest.mark.long
@pytest.mark.parametrize(("ahead", "stops_at", "done"), [(1, 1, 2), (1, 9, 3)], ids=["asked to stop", "at its end"])
def test_dropped_iteration_leaves_nothing_in_the_checkpoint(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, stops_at: int, done: int
) -> None:
    rollout = Iteration.rollout

    async def asked_to_stop(self: Iteration, *args: Any, **rest: Any) -> list[TrajectoryGroup]:
        groups = await rollout(self, *args, **rest)
        self.run.stop_requested |= self.number == stops_at
        return groups

    monkeypatch.setattr(Iteration, "rollout", asked_to_stop)
    run = train_in_process(tiny_config(start_model, rollout={"ahead": ahead, "num_tasks": 5}), tmp_path)
    assert run.count.iteration == run.weights.version == len(metrics(tmp_path))
    assert run.count.iteration in {done, done - 1}, "the one before may end while the next is played"
    with closing(sqlite3.connect(tmp_path / "memory.db")) as connection:
        assert connection.execute("SELECT max(step) FROM tips").fetchone() == (run.count.iteration - 1,)


def test_a_failure_while_ahead_ends_the_run(start_model: Path, tmp_path: Path) -> None:
    config = tiny_config(start_model, env={"name": "tinyrun:Broken"}, rollout=AHEAD | {"max_async_iterations": 2})
    with pytest.raises(RunError, match="no episode of iteration 1 could be played; the first one: broken"):
        train(config, tmp_path)


# -- methods that do not keep to it


async def updates_too_early(iteration: Iteration) -> None:
    groups = await iteration.rollout(iteration.tasks())
    await iteration.update(iteration.samples(groups, [[0.0] * len(group.trajectories) for group in groups]))


async def never_ends(iteration: Iteration) -> None:
    await iteration.rollout(iteration.tasks())
    async with iteration.learning():
        await asyncio.sleep(0)


@pytest.mark.usefixtures("methods_as_before")
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(
    ("method", "text"),
    [(updates_too_early, "inside `async with iteration.learning"), (never_ends, "finish with `await iteration.end")],
)
def test_method_must_end_its_iteration(start_model: Path, tmp_path: Path, method: Any, text: str, ahead: int) -> None:
    name = register(Method(f"{method.__name__}_{ahead}", "open", method, trains=True)).name
    config = tiny_config(start_model, algorithm={"name": name}, rollout={"max_async_iterations": ahead, "num_tasks": 5})
    with pytest.raises(RunError, match=text):
        train(config, tmp_path)


@pytest.mark.usefixtures("methods_as_before")
def test_an_iteration_holds_no_earlier_one(start_model: Path, tmp_path: Path) -> None:
    earlier: list[Any] = []

    async def watched(iteration: Any) -> None:
        await grpo(iteration)
        earlier.append(iteration.before)

    register(Method("watched", "watched", watched, trains=True))
    train(tiny_config(start_model, algorithm={"name": "watched"}, rollout=AHEAD), tmp_path)
    assert earlier == [None] * 3

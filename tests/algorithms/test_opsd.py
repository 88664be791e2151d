"""OPSD: what the teacher reads, where its word ends up, what it reduces to, and controls in training."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny import episode, group
from tinyrun import (
    distance,
    episodes,
    equal_weights,
    in_a_run,
    metrics,
    tiny_config,
    tip_rows,
    train_in_process,
    trained,
    trained_once,
)
from trailnotes.algorithms.opsd import (
    OpsdConfig,
    build_distillation_rows,
    build_lessons,
    collect_teacher_logprobs,
    distillation_metrics,
    rebuild_with_tips,
)
from trailnotes.learner.samples import build_samples
from trailnotes.runs.iteration import Iteration
from trailnotes.types import Sample, Task, Trajectory, TrajectoryGroup

OPSD = {"name": "opsd"}


async def remember(iteration: Iteration, tasks: Sequence[Task]) -> None:
    """Play the tasks once, and keep what was written about them."""
    written = await iteration.write_tips(await iteration.rollout(tasks))
    assert iteration.run.memory is not None
    iteration.run.memory.add([tip for each in written for tip in each.tips])


def without_tips(trajectory: Trajectory) -> Trajectory:
    """The same words, as if no tip had been shown."""
    steps = tuple(
        replace(step, tips=(), completion=replace(step.completion, prompt_ids=step.plain_prompt_ids))
        for step in trajectory.steps
    )
    return replace(trajectory, steps=steps, mode="plain")


# --- the teacher's prompts


def test_an_episode_reads_again_as_the_one_that_was_played_with_tips(start_model: Path, tmp_path: Path) -> None:
    async def body(iteration: Iteration) -> None:
        tasks = iteration.tasks()
        await remember(iteration, tasks)
        played = await iteration.rollout(tasks, [["on_policy_tips"] * 4] * len(tasks))
        plain = [TrajectoryGroup(g.task, tuple(map(without_tips, g.trajectories))) for g in played]
        memory = iteration.prompt_memory
        assert memory is not None
        again = await rebuild_with_tips(iteration.policy, plain, iteration.config, lambda _: memory)
        assert [[t.steps for t in g.trajectories] for g in again] == [[t.steps for t in g.trajectories] for g in played]
        assert sum(bool(step.tips) for g in again for t in g.trajectories for step in t.steps) > 10
        rows = build_samples(again, [[0.0] * 4] * len(again))
        logprobs = collect_teacher_logprobs(again, rows, iteration.learner.logprobs(rows))
        sampled = [[p for step in t.steps for p in step.completion.logprobs] for g in played for t in g.trajectories]
        for teacher, acted in zip(logprobs, sampled, strict=True):
            assert teacher.tolist() == pytest.approx(acted, abs=1e-3), "it is the policy that acted with tips"
        # Both sides of a ratio are the learner's: those of `plain`'s sampler are of another context here.
        learned, _ = build_lessons(iteration, plain, [[0.0] * 4] * len(plain), again)
        expected = iteration.learner.logprobs([lesson.sample for lesson in learned])
        for lesson, student in zip(learned, expected, strict=True):
            teacher = logprobs[lesson.sample.trajectory]
            own = np.array(student)[lesson.positions]
            assert lesson.ratios == pytest.approx(np.where(np.isnan(teacher), 0, teacher - own), abs=1e-5)

    in_a_run(tiny_config(start_model, algorithm=OPSD), tmp_path, body)


def test_a_copy_ends_where_tips_leave_no_room_for_the_next_turn(start_model: Path, tmp_path: Path) -> None:
    async def body(iteration: Iteration) -> None:
        tasks = iteration.tasks()[:1]
        await remember(iteration, tasks)
        played = await iteration.rollout(tasks)
        memory = iteration.prompt_memory
        assert memory is not None
        (whole,) = await rebuild_with_tips(iteration.policy, played, iteration.config, lambda _: memory)
        first, second = whole.trajectories[0].steps
        room = len(first.completion.prompt_ids) + iteration.config.rollout.max_action_tokens
        rollout = iteration.config.rollout.model_copy(update={"max_context_tokens": room})
        shown = iteration.config.memory.model_copy(update={"leave_room": False})
        tight = iteration.config.model_copy(update={"rollout": rollout, "memory": shown})
        (cut,) = await rebuild_with_tips(iteration.policy, played, tight, lambda _: memory)
        assert len(second.plain_prompt_ids) < room, "the student had room"
        assert cut.trajectories[0].steps == (first,)

    in_a_run(tiny_config(start_model, algorithm=OPSD), tmp_path, body)


# --- what it says


def rows_of(trajectory: Trajectory, kind: Any, advantage: float = 2.0) -> list[Sample]:
    return build_samples([group(trajectory)], [[advantage]], rows=kind)


@pytest.mark.parametrize("kind", ["auto", "step"])
@pytest.mark.parametrize("fork", [None, 2])
def test_each_token_gets_its_own_word_however_rows_are_cut(kind: Any, fork: int | None) -> None:
    """The teacher of a token is known by its order in the episode, though prompts, rows and lengths differ."""
    taught = episode(random.Random(1), turns=4, mode="on_policy_tips", fork=fork)
    student = without_tips(taught)
    teacher_rows = rows_of(taught, kind)
    numbers = count(1)
    numbered = [[next(numbers) if mask else 0 for mask in row.loss_mask] for row in teacher_rows]
    (logprobs,) = collect_teacher_logprobs([group(taught)], teacher_rows, numbered)
    differs = [s.completion.prompt_ids != s.plain_prompt_ids for s in taught.steps for _ in s.completion.token_ids]
    assert logprobs.tolist() == pytest.approx([i + 1 if d else np.nan for i, d in enumerate(differs)], nan_ok=True)

    lessons = build_distillation_rows(rows_of(student, kind), rows_of(student, kind, 1.0), [logprobs])
    ratios = [float(r) for lesson in lessons for r in lesson.ratios]
    sampled = [p for step in student.steps for p in step.completion.logprobs]
    expected = [i + 1 - p if d else 0 for i, (d, p) in enumerate(zip(differs, sampled, strict=True))]
    assert ratios == pytest.approx(expected)
    trained = [lesson.build_sample(OpsdConfig(gate="none"), math.inf) for lesson in lessons]
    laid = [a for row in trained for a, mask in zip(row.advantages, row.loss_mask, strict=True) if mask]
    assert laid == pytest.approx([e if d else 2.0 for e, d in zip(expected, differs, strict=True)])
    assert all(a == 0 for row in trained for a, mask in zip(row.advantages, row.loss_mask, strict=True) if not mask)


def test_metrics_by_hand() -> None:
    sample = Sample((1, 2, 3, 4, 5), (0, 1, 1, 1, 1), (0, -1, -1, -1, -1), (0, 2, 2, 2, 2))
    weighed = replace(sample, advantages=(0, 0.5, 0.5, 1, 1))  # two tokens of older weights
    teacher = np.array([-0.5, -2.0, np.nan, np.nan])  # log ratios .5 and -1; two without
    lessons = build_distillation_rows([sample], [weighed], [teacher])
    assert lessons[0].build_sample(OpsdConfig(gate="none")).advantages == (0, 0.25, -0.5, 2, 2)
    assert distillation_metrics(lessons, OpsdConfig(coefficient=0.5, gate="none")) == {
        "taught": 0.5, "log_ratio": -0.25, "endorsed": 0.5, "gated": 0.0, "signal": 0.375,
    }  # fmt: skip
    assert distillation_metrics(lessons, OpsdConfig(gate="agree")) == {
        "taught": 0.5, "log_ratio": -0.25, "endorsed": 0.5, "gated": 0.5, "signal": 0.25,
    }  # fmt: skip
    assert set(distillation_metrics([], OpsdConfig()).values()) == {0.0}


# --- reductions, on whole runs


@pytest.mark.parametrize("form", ["sdpo", pytest.param("opcd", marks=pytest.mark.long)])
def test_without_weight_it_is_grpo(start_model: Path, tmp_path: Path, form: str) -> None:
    opsd = trained(start_model, tmp_path / "opsd", algorithm=OPSD, opsd={"form": form, "coefficient": 0.0})
    grpo = trained_once(start_model, algorithm={"name": "grpo"})
    assert equal_weights(opsd, grpo)
    assert distance(opsd, start_model) > 1e-3, "nothing was learned: the test shows nothing"
    assert metrics(opsd)[-1]["opsd/taught"] > 0.5, "there was a teacher all the same"
    assert tip_rows(opsd)
    assert [e["steps"] for e in episodes(opsd)] == [e["steps"] for e in episodes(grpo)]


@pytest.mark.parametrize("form", ["sdar", pytest.param("opcd", marks=pytest.mark.long)])
def test_on_an_empty_memory_it_is_grpo(start_model: Path, tmp_path: Path, form: str) -> None:
    opsd = trained(start_model, tmp_path / "opsd", algorithm=OPSD, opsd={"form": form}, memory={"top_k": 0})
    grpo = trained_once(start_model, algorithm={"name": "grpo"})
    assert equal_weights(opsd, grpo)
    assert {line["opsd/taught"] for line in metrics(opsd)} == {0.0}
    assert {line["opsd/teacher_tokens"] for line in metrics(opsd)} == {0.0}


# --- the start model as teacher


@pytest.mark.long
def test_the_start_model_stays_what_it_was(start_model: Path, tmp_path: Path) -> None:
    """opcd asks the weights that training began with, whatever has been learned since."""
    config = tiny_config(start_model, algorithm=OPSD, opsd={"form": "opcd"}, loss={"kl": 0.0})
    run = train_in_process(config, tmp_path)
    row = Sample((1, 2, 3), (0, 1, 1), (0.0, -1.0, -1.0), (0.0, 1.0, 1.0))
    fresh = train_in_process(tiny_config(start_model, train={"iterations": 1}, optim={"lr": 1e-12}), tmp_path / "fresh")
    (start,), (now,), (first,) = (
        run.learner.logprobs([row], initial=True), run.learner.logprobs([row]), fresh.learner.logprobs([row])
    )  # fmt: skip
    assert start == pytest.approx(first, abs=1e-6)
    assert now != pytest.approx(first, abs=1e-3)

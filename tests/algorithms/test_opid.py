"""OPID: each episode's teacher reads the tip about that very episode, and what it says is added to the group's word."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tinyrun import distance, episodes, equal_weights, in_a_run, metrics, tiny_config, trained, trained_once
from trailnotes.algorithms.opid import rebuild_with_own_tips
from trailnotes.algorithms.opsd import OpsdConfig, add_teacher_signal
from trailnotes.memory.tips import clean_tip
from trailnotes.runs.iteration import Iteration

OPID = {"name": "opid"}


def test_the_signal_by_hand() -> None:
    """A = 1.5, c = .1, log ratios .5, -20 and one without a teacher: 1.55, -.5 and 1.5."""
    options = OpsdConfig(form="additive", coefficient=0.1, gate="none")
    ratios, known = np.array([0.5, -20.0, 0.0]), np.array([True, True, False])
    assert add_teacher_signal(np.full(3, 1.5), ratios, known, options, math.inf) == pytest.approx([1.55, -0.5, 1.5])
    assert OpsdConfig(form="additive").weight == 0.001, "as the release's script"


def test_a_teacher_reads_the_tip_about_its_own_episode(start_model: Path, tmp_path: Path) -> None:
    async def body(iteration: Iteration) -> None:
        groups = await iteration.rollout(iteration.tasks())
        written = await iteration.write_tips(groups)
        texts = {id(each.trajectory): [clean_tip(tip.text) for tip in each.tips] for each in written}
        rebuilt = await rebuild_with_own_tips(iteration, groups, written)
        checked = 0
        for before, after in zip(groups, rebuilt, strict=True):
            for played, read in zip(before.trajectories, after.trajectories, strict=True):
                if not texts[id(played)]:
                    assert not read.steps, "without a usable tip there is no teacher"
                    continue
                first = read.steps[0]
                assert [tip.text for tip in first.tips] == texts[id(played)][:1]
                assert first.completion.prompt_ids != first.plain_prompt_ids
                ids, acted = ([step.completion.token_ids for step in each.steps] for each in (read, played))
                assert ids == acted[: len(ids)]
                checked += 1
        assert checked > 5

    in_a_run(tiny_config(start_model, algorithm=OPID), tmp_path, body)


def test_without_weight_it_is_grpo(start_model: Path, tmp_path: Path) -> None:
    opid = trained(start_model, tmp_path / "opid", algorithm=OPID, opid={"coefficient": 0.0})
    grpo = trained_once(start_model, algorithm={"name": "grpo"})
    assert equal_weights(opid, grpo)
    assert distance(opid, start_model) > 1e-3, "nothing was learned: the test shows nothing"
    assert metrics(opid)[0]["opsd/taught"] > 0.5, "the first iteration has teachers already"
    assert [e["steps"] for e in episodes(opid)] == [e["steps"] for e in episodes(grpo)]


def test_by_step_each_turn_shows_the_tip_of_its_own_state(start_model: Path, tmp_path: Path) -> None:
    """Each tip names its step's action, so a turn that is shown another state's tip is shown another action."""

    async def body(iteration: Iteration) -> None:
        groups = await iteration.rollout(iteration.tasks())
        rebuilt = await rebuild_with_own_tips(iteration, groups, await iteration.write_tips(groups))
        steps = [step for group in rebuilt for episode in group.trajectories for step in episode.steps]
        assert sum(bool(step.tips) for step in steps) == len(steps), "of one text"
        actions = [({"", step.action.replace('"', "'")}, tip.action) for step in steps for tip in step.tips]
        assert all(shown in own for own, shown in actions), "or none, where it has no letter"
        assert max(len(step.tips) for step in steps) == 1

    memory = {"entries": "step", "query": "conversation", "retrieval": "hybrid"}
    in_a_run(tiny_config(start_model, algorithm=OPID, memory=memory), tmp_path, body)

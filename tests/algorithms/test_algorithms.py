"""The methods: how modes are drawn, and what of an episode reaches the learner."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyrun
from trailnotes.algorithms.empo2 import draw_modes
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.errors import ConfigError
from trailnotes.learner.learner import Learner
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.runs.iteration import Iteration
from trailnotes.types import Mode, Trajectory

# --- modes


def draw(num_tasks: int, group_size: int, seed: int = 0, **options: Any) -> list[list[Mode]]:
    return draw_modes(Empo2Config(**options), num_tasks, group_size, random.Random(seed))


@given(p=st.floats(0, 1), q=st.floats(0, 1), size=st.integers(2, 16), tasks=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_draw_has_the_same_number_of_tips_members_in_each_group(
    p: float, q: float, size: int, tasks: int, seed: int
) -> None:
    modes = draw(tasks, size, seed, p_memory=p, q_off_policy=q)
    assert [len(row) for row in modes] == [size] * tasks
    (with_tips,) = {sum(mode != "plain" for mode in row) for row in modes}
    assert abs(with_tips - p * size) <= 0.5, "no whole number is nearer"


def test_each_tips_member_draws_its_update_mode() -> None:
    modes = [mode for row in draw(3000, 8, p_memory=0.25, q_off_policy=2 / 3) for mode in row if mode != "plain"]
    assert len(modes) == 6000
    assert modes.count("off_policy") / 6000 == pytest.approx(2 / 3, abs=0.03)


def test_an_iteration_has_one_mode_for_all() -> None:
    drawn = [draw(3, 4, seed, p_memory=0.25, q_off_policy=2 / 3, mode_unit="iteration") for seed in range(4000)]
    assert all(len({mode for row in rows for mode in row}) == 1 for rows in drawn)
    modes = [rows[0][0] for rows in drawn]
    shares = [modes.count(mode) / len(modes) for mode in ("plain", "on_policy_tips", "off_policy")]
    assert shares == pytest.approx([0.75, 0.25 / 3, 0.5 / 3], abs=0.03)


# --- what reaches the learner


def shown(trajectory: Trajectory) -> bool:
    return any(step.tips for step in trajectory.steps)


def test_only_off_policy_rows_drop_the_tips_and_have_tip_free_denominators(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mixed groups, half of whose members act with tips, of which half are trained without them."""
    algorithm = {"p_memory": 0.5, "q_off_policy": 0.5, "old_logprobs": "tip_free"}
    config = tinyrun.tiny_config(
        start_model, algorithm=algorithm, rollout={"num_tasks": 5, "group_size": 6}, optim={"lr": 1e-9}
    )
    with monkeypatch.context() as patch:
        played, learned = tinyrun.record(patch, Iteration, "rollout"), tinyrun.record(patch, Learner, "update")
        run = tinyrun.train_in_process(config, tmp_path)
    episodes = [[t for group in groups for t in group.trajectories] for _, groups in played]
    samples = [[*arguments[1]] for arguments, _ in learned]
    assert [[s.trajectory for s in rows] for rows in samples] == [list(range(len(each))) for each in episodes]
    changed, seen = set(), set()
    for trajectory, sample in zip(chain(*episodes), chain(*samples), strict=True):
        last = trajectory.steps[-1]
        acting, plain = (
            prompt + last.completion.token_ids for prompt in (last.completion.prompt_ids, last.plain_prompt_ids)
        )
        assert sample.token_ids == (plain if trajectory.mode == "off_policy" else acting)
        assert sample.off_policy == (trajectory.mode == "off_policy" and shown(trajectory))
        assert (acting == plain) == (not shown(trajectory))
        seen.add((trajectory.mode, shown(trajectory)))
        acted = [logprob for step in trajectory.steps for logprob in step.completion.logprobs]
        used = [p for p, mask in zip(sample.behavior_logprobs, sample.loss_mask, strict=True) if mask]
        (now,) = run.learner.logprobs([sample])  # the weights have hardly moved
        if sample.off_policy:
            assert used == pytest.approx([p for p, mask in zip(now, sample.loss_mask, strict=True) if mask], abs=1e-4)
            changed.add(used != pytest.approx(acted, abs=1e-4))
        else:
            assert used == acted
    assert changed == {True}
    assert seen >= {("off_policy", True), ("on_policy_tips", True), ("plain", False)}


def test_rows_that_still_show_tips_measure_no_tip_and_need_prompts_that_extend_each_other(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = {"empo2": {"p_memory": 1.0, "distilled_context": "release"}, "train": {"iterations": 2}}
    config = tinyrun.tiny_config(start_model, optim={"rows": "step"}, **sections)
    tinyrun.train_in_process(config, tmp_path / "run")
    line = tinyrun.metrics(tmp_path / "run")[1]
    assert line["update/tokens_off_policy"] > 0
    assert not {"tips/reliance", "tips/logprob_gain", "tips/measured"} & line.keys()
    monkeypatch.setattr(HFPolicy, "append_only", property(lambda _: False, lambda *_: None), raising=False)
    with pytest.raises(ConfigError, match="template rewrites earlier turns"):
        tinyrun.train_in_process(config, tmp_path / "rewritten")


# --- novelty


@pytest.mark.parametrize(
    ("method", "intrinsic", "unit"),
    [
        ("grpo", "counts", "trajectory"),
        ("empo2", "states", "trajectory"),
        pytest.param("empo2", "rnd", "trajectory", marks=pytest.mark.long),
        pytest.param("empo2", "tips", "iteration", marks=pytest.mark.long),
    ],
)
def test_novelty_teaches_where_returns_are_equal(
    start_model: Path, tmp_path: Path, method: str, intrinsic: str, unit: str
) -> None:
    for kind in (intrinsic, "none"):
        algorithm = {"name": method, "p_memory": 1.0, "intrinsic": kind, "novelty_threshold": 0.5, "mode_unit": unit}
        config = tinyrun.tiny_config(start_model, algorithm=algorithm, env={"name": "tinyrun:Echo"}, loss={"kl": 0.0})
        tinyrun.train_in_process(config, tmp_path / kind)
    lines = tinyrun.metrics(tmp_path / intrinsic)
    assert {line["rollout/return"] for line in lines} == {0.0}
    assert tinyrun.equal_weights(tmp_path / "none", start_model), "without novelty there is nothing to learn from"
    assert tinyrun.distance(tmp_path / intrinsic, start_model) > 1e-3
    assert max(line["update/advantage_std"] for line in lines) > 0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["states", "rnd"])
def test_novelty_survives_a_resumption(start_model: Path, tmp_path: Path, kind: str) -> None:
    algorithm = {"p_memory": 1.0, "intrinsic": kind, "novelty_threshold": 0.5, "mode_unit": "iteration"}
    tinyrun.train_in_process(tinyrun.tiny_config(start_model, algorithm=algorithm), tmp_path / "whole")
    configs = [tinyrun.tiny_config(start_model, algorithm=algorithm, train={"iterations": number}) for number in (1, 3)]
    tinyrun.train_in_parts(tmp_path / "parts", *configs)
    assert tinyrun.differences(tmp_path / "whole", tmp_path / "parts") == tinyrun.SAME
    for name in ("novelty.safetensors", "novelty.json"):
        kept, resumed = (
            (tmp_path / part / "checkpoints/step-000003" / name).read_bytes() for part in ("whole", "parts")
        )
        assert kept == resumed
        assert len(kept) > 100

"""Rows and batches: which tokens are trained, under which context, and where they go."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiny import episode, group, step, trajectory
from tinyrun import distance, metrics, tiny_config, train_in_process
from trailnotes.config.schema import Config
from trailnotes.learner.samples import build_observation_samples, build_samples, iter_minibatches, make_microbatches
from trailnotes.types import Mode, Observation, Sample, Tip, Trajectory

MODES: list[Mode] = ["plain", "on_policy_tips", "off_policy"]


EXCEPTED = Observation("here", request={"trained": False})


def one_row(episode: Trajectory, advantage: float = 1.5) -> Sample:
    (sample,) = build_samples([group(episode)], [[advantage]])
    return sample


def test_an_episode_becomes_one_row() -> None:
    sample = one_row(trajectory([step([1, 2], [3, 4]), step([1, 2, 3, 4, 5], [6])]))
    assert sample.token_ids == (1, 2, 3, 4, 5, 6)
    assert sample.loss_mask == (0, 0, 1, 1, 0, 1)
    assert sample.behavior_logprobs == (0.0, 0.0, -0.1, -0.2, 0.0, -0.1)
    assert sample.advantages == (0.0, 0.0, 1.5, 1.5, 0.0, 1.5)
    assert not sample.off_policy


@pytest.mark.parametrize("prompt", [[1, 2, 3, 9, 5], [1, 2, 3], [9]])
def test_a_history_that_was_rewritten_forks_a_new_row(prompt: list[int]) -> None:
    steps = [step([1, 2], [3, 4]), step(prompt, [6]), step([*prompt, 6, 7], [8])]
    first, second = build_samples([group(trajectory(steps))], [[1.0]])
    assert first.token_ids == (1, 2, 3, 4)
    assert second.token_ids == (*prompt, 6, 7, 8)


@given(st.integers(0, 10**6))
def test_off_policy_without_tips_equals_plain(seed: int) -> None:
    off_policy = episode(random.Random(seed), 3, "off_policy", tips=False)
    assert one_row(off_policy) == one_row(replace(off_policy, mode="plain"))


@given(
    seed=st.integers(0, 10**6), turns=st.integers(1, 6), mode=st.sampled_from(MODES), fork=st.none() | st.integers(1, 5)
)
def test_auto_trains_what_step_trains(seed: int, turns: int, mode: Mode, fork: int | None) -> None:
    episodes = [episode(random.Random(seed), turns, mode, fork=fork)]
    auto, each = (build_samples([group(*episodes)], [[0.7]], rows) for rows in ("auto", "step"))

    def trained(samples: list[Sample]) -> list[tuple[object, ...]]:
        return [
            (s.token_ids[: t + 1], s.behavior_logprobs[t], s.advantages[t], s.off_policy, s.trajectory)
            for s in samples
            for t in range(len(s.token_ids))
            if s.loss_mask[t]
        ]

    assert trained(auto) == trained(each)
    assert len(auto) == (1 if fork is None or fork >= turns else 2)
    assert len(each) == turns


def test_trajectories_are_counted_over_all_groups() -> None:
    one = trajectory([step([1], [2])])
    samples = build_samples([group(one, one), group(one)], [[1.0, 2.0], [3.0]])
    assert [(s.trajectory, s.advantages[1]) for s in samples] == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_each_step_may_have_an_advantage_of_its_own() -> None:
    steps = [step([1, 2], [3, 4]), step([1, 2, 3, 4, 5], [6]), step([9], [8, 8])]  # the last one forks a row
    first, second = build_samples([group(trajectory(steps))], [[np.array([0.5, -1.0, 2.0])]])
    assert first.advantages == (0.0, 0.0, 0.5, 0.5, 0.0, -1.0)
    assert second.advantages == (0.0, 2.0, 2.0)


def test_an_advantage_that_is_not_finite_is_the_methods_fault() -> None:
    with pytest.raises(ValueError, match=r"an advantage of .* is not finite: nan"):
        build_samples([group(trajectory([step([1], [2])]))], [[float("nan")]])


@given(st.lists(st.integers(2, 40), max_size=20), st.integers(1, 100))
def test_microbatches_hold_each_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = make_microbatches([(0,) * n for n in lengths], budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


@given(st.lists(st.integers(0, 6), max_size=20), st.integers(0, 5), st.integers(0, 99))
def test_minibatches_count_trajectories_not_rows(owners: list[int], size: int, seed: int) -> None:
    samples = [Sample((1, 1), (0, 1), (0.0, 0.0), (0.0, 0.0), trajectory=owner) for owner in owners]
    batches = list(iter_minibatches(samples, size, np.random.default_rng(seed)))
    assert sorted(i for batch in batches for i in batch) == list(range(len(owners)))
    counts = [len({owners[i] for i in batch}) for batch in batches]
    assert all(count == (size or len(set(owners))) for count in counts[:-1])
    assert sum(counts) == len(set(owners))  # the rows of a trajectory stay together


# -- ECHO: which tokens are learned as what the environment answered

TOLD = (Tip("task", "left", "", 1.0),)


def test_what_lies_between_decisions_is_learned() -> None:
    """1 2 | 3 | 4 5 | 6: the task, an answer, an observation, an answer."""
    rows = build_samples([group(trajectory([step([1, 2], [3]), step([1, 2, 3, 4, 5], [6])]))], [[0.0]])
    (row,) = build_observation_samples(rows, 0.1)
    assert (row.token_ids, row.loss_mask) == ((1, 2, 3, 4, 5, 6), (0, 0, 0, 1, 1, 0))
    assert (row.role, row.imitate, row.hold, any(row.advantages)) == ("observation", 0.1, 0.0, False)


def test_an_excepted_answer_is_no_observation() -> None:
    """1 2 | 3 | 4 | 5 | 6 | 7: the task, an answer, an observation, an excepted answer, an observation, an answer."""
    excepted = replace(step([1, 2, 3, 4], [5]), observation=EXCEPTED)
    steps = [step([1, 2], [3]), excepted, step([1, 2, 3, 4, 5, 6], [7])]
    (row,) = build_observation_samples(build_samples([group(trajectory(steps))], [[0.0]]), 0.1)
    assert row.loss_mask == (0, 0, 0, 1, 0, 1, 0)


def test_contexts_with_tips_and_single_decisions_have_no_observation_rows() -> None:
    with_tips = [step([1, 9], [3], plain=[1]), step([1, 9, 3, 4], [6], plain=[1, 3, 4])]
    shown = [replace(with_tips[0], tips=TOLD), with_tips[1]]
    on_policy = build_samples([group(trajectory(shown, "on_policy_tips"))], [[1.0]])
    assert on_policy[0].shows_tips
    assert build_observation_samples(on_policy, 0.1) == []
    (off_policy,) = build_observation_samples(build_samples([group(trajectory(shown, "off_policy"))], [[1.0]]), 0.1)
    assert off_policy.token_ids == (1, 3, 4, 6), "without the tip there is nothing to hide"
    assert build_observation_samples(build_samples([group(trajectory([step([1], [3])]))], [[1.0]]), 0.1) == []


def test_a_row_shows_tips_where_its_own_context_has_them() -> None:
    """An agent that begins a second conversation in one episode: the first one was given a tip, the other none."""
    first = replace(step([1, 9], [3], plain=[1]), tips=TOLD)
    steps = [first, step([1, 9, 3, 4], [6], plain=[1, 3, 4]), step([7, 8], [5]), step([7, 8, 5, 2], [6])]
    cases: list[tuple[Mode, list[bool]]] = [("on_policy_tips", [True, False]), ("off_policy", [False, False])]
    for mode, flags in cases:
        rows = build_samples([group(trajectory(steps, mode))], [[1.0]])
        assert [row.shows_tips for row in rows] == flags
    rows = build_samples([group(trajectory(steps, "on_policy_tips"))], [[1.0]])
    assert [row.token_ids for row in build_observation_samples(rows, 0.1)] == [(7, 8, 5, 2, 6)]


def test_a_run_learns_from_what_it_saw(start_model: Path, tmp_path: Path) -> None:
    runs = {}
    for weight in (0.0, 0.5):
        config = tiny_config(start_model, algorithm={"name": "grpo"}, loss={"observations": weight, "kl": 0.0},
                             train={"iterations": 2})  # fmt: skip
        train_in_process(config, tmp_path / str(weight))
        runs[weight] = metrics(tmp_path / str(weight))
    assert distance(tmp_path / "0.5", tmp_path / "0.0") > 1e-4
    assert runs[0.5][0]["update/tokens_observation"] > 0
    assert runs[0.5][1]["update/nll_observation"] < runs[0.5][0]["update/nll_observation"]
    assert "update/tokens_observation" not in runs[0.0][0]


@pytest.mark.long
@pytest.mark.parametrize(("settings", "apart"), [({"mismatch": "mask"}, 1e-3), ({"max_negative_kl": 1e-3}, 0.0)])
def test_mismatch_corrections_are_exact_without_mismatch(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], apart: float
) -> None:
    """But for rounding, with one step an update: the weights that learn are those that sampled."""
    monkeypatch.setattr(Config, "has_other_sampler", True)  # else nothing is corrected
    own = {"algorithm": {"name": "grpo"}, "optim": {"epochs": 1, "minibatch": 0}, "train": {"iterations": 2}}
    for name, loss in (("with", settings), ("without", {})):
        train_in_process(tiny_config(start_model, loss=loss, **own), tmp_path / name)
    assert ("engine/weight" in metrics(tmp_path / "with")[0]) == ("mismatch" in settings)
    assert distance(tmp_path / "with", tmp_path / "without") <= apart
    assert distance(tmp_path / "with", start_model) > 5e-3, "nothing was learned: the test shows nothing"

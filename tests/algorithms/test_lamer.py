"""LaMer: returns across episodes, memories of one's own, and what it reduces to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from small import merge_sections
from tinyrun import distance, episodes, equal_weights, metrics, record, tiny_config, train_in_process
from trailnotes.algorithms.lamer import build_trials
from trailnotes.config.schema import Config
from trailnotes.learner.credit.episodes import Scores, discount_across_episodes, group_relative
from trailnotes.memory import clean_tip
from trailnotes.rollout.tips import WrittenTip
from trailnotes.runs.iteration import Iteration
from trailnotes.types import Observation, Sample, Task, Trajectory, TrajectoryGroup

B, N, K, GAMMA = 7, 4, 3, 0.5  # two of the five tasks stand in each batch twice


def lamer_config(start: Path, **sections: dict[str, Any]) -> Config:
    own = {"algorithm": {"name": "lamer"}, "lamer": {"gamma": GAMMA}, "rollout": {"num_tasks": B}}
    return tiny_config(start, **merge_sections(own, sections))


def scores(*returns: float) -> Scores:
    none = tuple(np.zeros(0) for _ in returns)
    return Scores(np.array(returns), none, tuple(() for _ in returns), none)


def returns_of(gamma: float) -> list[list[float]]:
    """Two members, three episodes: one fails and wins twice, the other wins, fails and wins."""
    return [s.returns.tolist() for s in discount_across_episodes([scores(0, 1), scores(1, 0), scores(1, 1)], gamma)]


def test_an_episode_is_worth_what_comes_of_it() -> None:
    # from the end: 1, 1 + .6, 0 + .6 * 1.6 for the first; 1, 0 + .6, 1 + .6 * .6 for the second
    assert returns_of(0.6) == [pytest.approx([0.96, 1.36]), pytest.approx([1.6, 0.6]), [1, 1]]
    assert returns_of(1.0) == [[2, 2], [2, 1], [1, 1]]
    assert returns_of(0.0) == [[0, 1], [1, 0], [1, 1]]


@dataclass
class Watched:
    """What a run did in its first iteration."""

    path: Path
    played: list[list[TrajectoryGroup]]  # by episode
    written: list[list[WrittenTip]]
    samples: list[Sample]


@pytest.fixture(scope="module")
def watched(start_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    path = tmp_path_factory.mktemp("lamer") / "run"
    with pytest.MonkeyPatch.context() as patch:
        played, written, learned = (record(patch, Iteration, name) for name in ("rollout", "write_tips", "update"))
        train_in_process(lamer_config(start_model, train={"iterations": 1}), path)
    (((_, samples), _),) = learned
    return Watched(path, [groups for _, groups in played], [tips for _, tips in written], samples)


def test_each_member_plays_k_episodes_and_all_are_paid_for(watched: Watched) -> None:
    assert [len(groups) for groups in watched.played] == [B] * K
    assert max(Counter(group.task.id for group in watched.played[0]).values()) == 2, "the batch repeats no task"
    assert [[group.task for group in groups] for groups in watched.played[1:]] == [
        [group.task for group in watched.played[0]]
    ] * (K - 1)
    (line,) = metrics(watched.path)
    steps = [len(t.steps) for groups in watched.played for group in groups for t in group.trajectories]
    assert (line["episodes"], line["env_steps"]) == (K * B * N, sum(steps))
    assert len(episodes(watched.path)) == K * B * N
    assert line["mode"] == "on_policy_tips+plain"
    assert {name for name in line if name.startswith("lamer/")} == {f"lamer/success/{k}" for k in range(K)}
    assert not (watched.path / "memory.db").exists()


def test_a_member_reads_its_own_tips_of_this_task_and_iteration_alone(watched: Watched) -> None:
    assert [len(tips) for tips in watched.written] == [B * N] * (K - 1), "none is written after the last episode"
    assert {t.mode for group in watched.played[0] for t in group.trajectories} == {"plain"}
    authors = [[clean_tip(tip.text) for tip in each.tips] for tips in watched.written for each in tips]
    shown = 0
    for k, groups in enumerate(watched.played):
        for place, trajectory in enumerate(t for group in groups for t in group.trajectories):
            own = {text for earlier in range(k) for text in authors[earlier * B * N + place]}
            read = {tip.text for step in trajectory.steps for tip in step.tips}
            assert read <= own
            assert bool(trajectory.steps[0].tips) == bool(own), "however unlike its beginning the end was"
            shown += len(read)
    assert shown > B * N, "little was read: the test shows little"
    texts = [text for tips in authors for text in tips]
    assert len(set(texts)) > len(texts) / 2, "all write the same: the test shows nothing"


def test_rows_have_the_advantage_of_what_followed(watched: Watched) -> None:
    rows = iter([sample for sample in watched.samples if sample.role == "episode"])
    tips = [sample for sample in watched.samples if sample.role == "tip"]
    expected_tips = []
    for groups in zip(*watched.played, strict=True):  # the K episodes of one task
        own = [np.array([t.episode_return for t in group.trajectories]) for group in groups]
        worth = own[0] + GAMMA * own[1] + GAMMA**2 * own[2], own[1] + GAMMA * own[2], own[2]
        for advantages in map(group_relative, worth):
            assert [next(rows).advantages[-1] for _ in range(N)] == pytest.approx(advantages.tolist())
        expected_tips += [*group_relative(worth[1]), *group_relative(worth[2])]
    assert next(rows, None) is None
    assert [row.advantages[-1] for row in tips] == pytest.approx(expected_tips)
    assert {row.hold for row in tips} == {0.05}, "loss.kl holds tips as it holds actions"
    (line,) = metrics(watched.path)
    assert line["tips/written"] == len(tips) == (K - 1) * B * N
    assert np.count_nonzero(expected_tips) > len(tips) / 2, "nothing is learned about writing"


def test_one_episode_is_grpo(start_model: Path, tmp_path: Path) -> None:
    for name in ("grpo", "lamer"):
        config = lamer_config(start_model, algorithm={"name": name}, lamer={"episodes": 1}, train={"iterations": 2})
        train_in_process(config, tmp_path / name)
    assert equal_weights(tmp_path / "grpo", tmp_path / "lamer")
    assert episodes(tmp_path / "grpo") == episodes(tmp_path / "lamer")
    assert distance(tmp_path / "lamer", start_model) > 1e-3, "nothing was learned: the test shows nothing"
    more = {name for line in metrics(tmp_path / "lamer") for name in line} - {"lamer/success/0"}
    assert {name for name in more if not name.startswith("tips/")} == set(metrics(tmp_path / "grpo")[0])


def group(task: str, *members: int, won: Sequence[int] = ()) -> TrajectoryGroup:
    of = Task(task, "numbers")
    ended = [Trajectory(of, (), Observation("end"), "terminated", m in won, 0.0, member=m) for m in members]
    return TrajectoryGroup(of, tuple(ended))


def members(trial: Sequence[TrajectoryGroup]) -> list[list[int]]:
    return [[t.member for t in each.trajectories] for each in trial]


def test_a_task_with_a_failed_group_is_left_out() -> None:
    first = [group(name, 0, 1) for name in "abac"]
    assert build_trials([first, [group("a", 0, 1), group("c", 1)]]) == {3: [group("c", 1), group("c", 1)]}
    assert build_trials([first, []]) == {}

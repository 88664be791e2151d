"""Groups of equal returns give way to groups of other tasks, and what they took is counted."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paying import Paid
from tiny import step, trajectory
from tinyrun import SAME, differences, distance, episodes, metrics, tiny_config, train_in_parts, train_in_process
from trailnotes.rollout.groups import has_equal_returns, replace_equal_groups, sample_further_tasks
from trailnotes.types import Observation, Task, TrajectoryGroup

TASKS = [Task(f"t{i}", "numbers") for i in range(5)]


def played(task: Task, *returns: float) -> TrajectoryGroup:
    episode = trajectory([step([1], [2])])
    members = [replace(episode, task=task, steps=(replace(episode.steps[0], reward=r),)) for r in returns]
    return TrajectoryGroup(task, tuple(members))


def replaced(
    groups: Sequence[TrajectoryGroup], *rounds: list[TrajectoryGroup], limit: int = 10
) -> tuple[list[str], int, list[tuple[int, int]]]:
    """Ids of the groups that are left, how many were replaced, and the requests for others."""
    requests: list[tuple[int, int]] = []

    async def play(number: int, num: int) -> list[TrajectoryGroup]:
        requests.append((number, num))
        return rounds[number - 1]

    left, num = asyncio.run(replace_equal_groups(groups, limit, play))
    return [group.task.id for group in left], num, requests


EQUAL, OTHER, THIRD = played(TASKS[0], 1, 1), played(TASKS[1], 0, 0, 0), played(TASKS[2], 0, 0)
MIXED, ANEW = played(TASKS[3], 1, 0), played(TASKS[4], 0, 0.5)


def test_returns_are_equal_but_for_rounding_not_for_the_discount() -> None:
    assert has_equal_returns(played(TASKS[0], 0.1 + 0.2, 0.3))
    assert not has_equal_returns(played(TASKS[0], 0.3001, 0.3))
    early, late = played(TASKS[0], 1, 0).trajectories
    late = replace(late, steps=(*late.steps, *early.steps))  # it wins a step later
    group = TrajectoryGroup(TASKS[0], (early, late))
    assert has_equal_returns(group)
    assert not has_equal_returns(group, 0.95)


@pytest.mark.parametrize(
    ("groups", "rounds", "limit", "expected"),
    [
        ([MIXED, ANEW], [], 10, (["t3", "t4"], 0, [])),  # nothing is equal
        ([EQUAL, MIXED, OTHER], [[ANEW, THIRD], [ANEW]], 10, (["t3", "t4", "t4"], 3, [(1, 2), (2, 1)])),
        ([EQUAL, MIXED], [[OTHER], [THIRD]], 2, (["t3", "t2"], 2, [(1, 1), (2, 1)])),  # the last round stays as it is
        ([EQUAL], [[]], 10, ([], 1, [(1, 1)])),  # the environment failed
    ],
)
def test_equal_groups_are_replaced_within_the_rounds(groups: Any, rounds: Any, limit: int, expected: Any) -> None:
    assert replaced(groups, *rounds, limit=limit) == expected


def test_further_tasks_are_those_played_least() -> None:
    further = sample_further_tasks(TASKS, ["t0", "t1", "t0", "t3"], 4, random.Random(0))
    assert {task.id for task in further[:2]} == {"t2", "t4"}
    assert {task.id for task in further[2:]} == {"t1", "t3"}
    counts = Counter(task.id for task in sample_further_tasks(TASKS, [], 10, random.Random(0)))
    assert counts == dict.fromkeys((task.id for task in TASKS), 2)


# --- whole runs


class Stingy(Paid):
    """Pays for no action in three tasks of five."""

    def reset(self, task: Task) -> Observation:
        self.pays = int(task.id.rpartition("-")[2]) % 5 >= 3
        return super().reset(task)

    def step(self, action: str) -> Observation:
        answer = super().step(action)
        return answer if self.pays else replace(answer, reward=0.0)


def settings(name: str, rounds: int = 3, iterations: int = 3) -> dict[str, dict[str, Any]]:
    return {
        "algorithm": {"name": name, "dynamic_sampling": rounds, "p_memory": 0.5},
        "env": {"name": "test_dynamic:Stingy", "options": {"families": ["keys/granite"], "max_steps": 2}},
        "rollout": {"num_tasks": 2},
        "train": {"iterations": iterations},
    }


def test_a_run_trains_on_groups_that_differ_and_counts_the_rest(start_model: Path, tmp_path: Path) -> None:
    train_in_process(tiny_config(start_model, **settings("grpo")), tmp_path)
    lines, recorded = metrics(tmp_path), episodes(tmp_path)
    assert sum(line["dynamic/groups_replaced"] for line in lines) > 0
    assert all(line["update/zero_advantage_rows"] < 4 for line in lines), "a whole group has no advantage"
    assert [line["episodes"] for line in lines] == [8, 16, 24]
    assert lines[-1]["env_steps"] == sum(len(episode["steps"]) for episode in recorded) > 24 * 2
    assert len(recorded) == 24 + 4 * sum(line["dynamic/groups_replaced"] for line in lines)
    assert distance(tmp_path, start_model) > 1e-3


def test_a_resumed_run_plays_the_same_rounds(start_model: Path, tmp_path: Path) -> None:
    train_in_process(tiny_config(start_model, **settings("empo2")), tmp_path / "whole")
    configs = [tiny_config(start_model, **settings("empo2", iterations=iterations)) for iterations in (1, 3)]
    train_in_parts(tmp_path / "parts", *configs)
    assert differences(tmp_path / "whole", tmp_path / "parts") == SAME

"""Returning to kept states: a corridor with its treasure at the far end, cells by hand, and whole runs."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_rollout import SeededPolicy, settings

from tiny import step
from tinyrun import SAME, differences, tiny_config, train_in_parts, train_in_process
from trailnotes.config.methods_schema import ArchiveConfig
from trailnotes.config.schema import Config
from trailnotes.rollout.episode import Pool
from trailnotes.rollout.groups import GroupRunner
from trailnotes.runs.exploration import RETURN_OPTION, Archive, ArchiveCell
from trailnotes.types import Mode, Observation, Task, Trajectory, TrajectoryGroup

TASK = Task("corridor", "walk")
PLAIN: list[Mode] = ["plain"] * 8


class Walk:
    """Right and left; 1 at the far end."""

    def __init__(self, pool: WalkPool) -> None:
        self.pool = pool

    async def reset(self, task: Task) -> Observation:
        assert RETURN_OPTION not in task.options, "how an episode begins is no business of the environment"
        self.pool.resets += 1
        self.place = 0
        return Observation("place 0", instruction="find the end", briefing={"inventory": "a lamp"})

    async def step(self, action: str) -> Observation:
        self.pool.steps += 1
        self.place = max(0, self.place + (1 if action == "right" else -1))
        won = self.place >= 10
        return Observation(f"place {self.place}", float(won), terminated=won, success=won, score=float(won))


class WalkPool:
    steps = resets = 0

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Walk]:
        yield Walk(self)


def play(pool: Pool, archive: Archive, iteration: int) -> list[TrajectoryGroup]:
    """One iteration of eight members who walk at random, as `Run` plays it."""
    runner = GroupRunner(SeededPolicy(), pool, None, settings(rollout={"max_steps": 16}), seed=iteration)
    return asyncio.run(archive.play(runner, [TASK], [PLAIN], random.Random(iteration)))


def test_what_is_replayed_costs_steps_and_is_in_no_trajectory() -> None:
    pool, archive = WalkPool(), Archive(ArchiveConfig(share=0.5))
    for iteration in range(6):
        before = pool.steps
        groups = play(pool, archive, iteration)
        own = sum(len(t.steps) for group in groups for t in group.trajectories)
        replayed = archive.update(groups)["replayed_steps"]
        assert pool.steps - before == own + replayed
        assert archive.update([])["replayed_steps"] == 0
        if iteration:
            start, returned = groups
            assert (len(start.trajectories), len(returned.trajectories)) == (4, 4)
            assert {t.num_replayed for t in start.trajectories} == {0}
            (depth,) = {t.num_replayed for t in returned.trajectories}
            assert replayed == 4 * depth > 0
            assert len(returned.task.options[RETURN_OPTION]) == depth
            assert {t.steps[0].observation.text for t in start.trajectories} == {"place 0"}


# --- environments that cannot be relied on


def test_a_cell_that_is_lost_is_not_returned_to_again() -> None:
    pool, archive = WalkPool(), Archive(ArchiveConfig(share=1.0))
    archive.cells = {"corridor": {7: ArchiveCell([6, 7], ["right"] * 2, 0, 3)}}
    (group,) = play(pool, archive, 0)
    assert {t.steps[0].observation.text for t in group.trajectories} == {"place 0"}, "all began afresh"
    found = archive.update([group])
    assert (pool.resets, found["replayed_steps"]) == (16, 8), "the first replayed action already led elsewhere"
    assert found["dropped"] == 1
    assert 7 not in archive.cells["corridor"]


# --- cells by hand


def walk(*seen: str | Observation, actions: Sequence[str] = (), returned: int = 0, task: Task = TASK) -> Trajectory:
    """An episode that saw these; its actions are named after the observation that they lead to."""
    first, *rest = [Observation(o) if isinstance(o, str) else o for o in seen]
    observations = [replace(first, info={"returned": returned} if returned else {}), *rest]
    taken = actions or [f"to {o.text}" for o in rest]
    steps = [replace(step([1], [2]), observation=o, action=a) for o, a in zip(observations[:-1], taken, strict=True)]
    return Trajectory(task, tuple(steps), observations[-1], "truncated", False, 0.0)


def list_cells(archive: Archive, *trajectories: Trajectory) -> dict[str, tuple[float, int]]:
    """Add these episodes; return score and visits of each cell by the actions that lead to it."""
    archive.update([TrajectoryGroup(TASK, trajectories)])
    return {" ".join(cell.actions): (cell.score, cell.visits) for cell in archive.cells["corridor"].values()}


def test_the_shortest_way_to_a_state_is_kept() -> None:
    archive = Archive(ArchiveConfig(share=1.0))
    assert list_cells(archive, walk("a", "b", "c")) == {"": (0, 1), "to b": (0, 1), "to b to c": (0, 1)}
    assert list_cells(archive, walk("a", "x", "x", "c")) == {
        "": (0, 2), "to b": (0, 1), "to b to c": (0, 2), "to x": (0, 1),
    }  # fmt: skip
    assert "to c" in list_cells(archive, walk("a", "C", actions=["to c"])), "and replaces a longer one"


def test_a_higher_score_is_worth_a_longer_way() -> None:
    archive = Archive(ArchiveConfig(share=1.0))
    cells = list_cells(archive, walk("a", "b"), walk("a", "x", Observation("b", score=0.5)))
    assert cells == {"": (0, 2), "to x to b": (0.5, 2), "to x": (0, 1)}
    assert list_cells(archive, walk("a", "b")) == {**cells, "": (0, 3), "to x to b": (0.5, 3)}


def test_an_episode_that_returned_goes_on_from_its_cell() -> None:
    archive = Archive(ArchiveConfig(share=1.0))
    list_cells(archive, walk("a", "b"))
    ((task, _),) = archive.split_group(TASK, PLAIN, random.Random(0))
    assert task.options == {RETURN_OPTION: ["to b"]}
    assert list_cells(archive, walk("b", "c", returned=1, task=task)) == {
        "": (0, 1), "to b": (0, 2), "to b to c": (0, 1),
    }  # fmt: skip


def count_choices(archive: Archive, num: int = 4000) -> Counter[str]:
    chosen: Counter[str] = Counter()
    for seed in range(num):
        fresh = Archive(archive.config)
        fresh.cells = archive.cells
        ((task, _),) = fresh.split_group(TASK, PLAIN, random.Random(seed))
        chosen[" ".join(task.options[RETURN_OPTION])] += 1
    return chosen


def test_the_highest_score_is_chosen_and_then_the_rarely_visited() -> None:
    archive = Archive(ArchiveConfig(share=1.0))
    list_cells(archive, *[walk("a", "often")] * 8, *[walk("a", "rare")] * 3)
    chosen = count_choices(archive)
    assert chosen["to often"] / 4000 == pytest.approx((1 / 3) / (1 / 3 + 1 / 2), abs=0.03)  # 1/sqrt(9), 1/sqrt(4)
    assert set(chosen) == {"to often", "to rare"}
    list_cells(archive, walk("a", Observation("gold", score=1.0)))
    assert set(count_choices(archive, 50)) == {"to gold"}


def test_a_full_archive_evicts_the_worst_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArchiveConfig, "capacity", 2)
    archive = Archive(ArchiveConfig(share=1.0))
    rich = walk("a", Observation("rich", score=1.0))
    assert set(list_cells(archive, rich, rich, walk("a", "poor"), walk("a", "poor"))) == {
        "",
        "to rich",
        "to poor",
    }
    assert set(list_cells(archive, walk("a", "new"))) == {"", "to rich", "to new"}, "poor was met twice, new once"


# --- whole runs


def archive_config(start: Path, **sections: dict[str, Any]) -> Config:
    own: dict[str, dict[str, Any]] = {
        "archive": {"share": 0.7},
        "algorithm": {"p_memory": 0.25},
        "env": {"options": {"families": ["keys/granite"], "max_steps": 4}, "name": "paying:Paid"},
        "rollout": {"num_tasks": 5, "max_steps": 3},
    }
    return tiny_config(start, **{name: own.get(name, {}) | sections.get(name, {}) for name in own | sections})


def test_an_archive_survives_a_resumption(start_model: Path, tmp_path: Path) -> None:
    train_in_process(archive_config(start_model), tmp_path / "whole")
    configs = [archive_config(start_model, train={"iterations": iterations}) for iterations in (2, 3)]
    train_in_parts(tmp_path / "parts", *configs)
    assert differences(tmp_path / "whole", tmp_path / "parts") == SAME
    whole, parts = (
        (tmp_path / name / "checkpoints/step-000003/archive.json").read_bytes() for name in ("whole", "parts")
    )
    assert whole == parts

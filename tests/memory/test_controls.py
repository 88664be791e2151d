"""Controls: tips of other tasks, and tips without words."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from adaptrun import Guesser, adapt_by
from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import TipMemory, open_memory
from trailnotes.memory.controls import EMPTY_TEXT, make_prompt_memory
from trailnotes.types import Completion, Observation, Step, Task, Tip, Trajectory

TASKS = ["maze/amber/train-0", "maze/amber/train-1", "vault/hazel/train-0", "vault/hazel/train-1"]


@pytest.fixture
def memory() -> TipMemory:
    """Two tips of each task, the second of them better."""
    memory = open_memory(None, MemoryConfig())
    memory.add([Tip(task, f"{task} {i}", "here", score=i / 2, action="go") for task in TASKS for i in range(2)])
    return memory


def test_tips_of_another_family_are_found_always_the_same(memory: TipMemory) -> None:
    control = make_prompt_memory(memory, "other")
    for task in TASKS:
        tips = control.search(task, "here", 10)
        assert {tip.namespace.split("/")[0] for tip in tips} == {"vault" if "maze" in task else "maze"}
        assert len({tip.namespace for tip in tips}) == 1
        assert [tip.score for tip in tips] == [0.5, 0.0], "the best first"
        assert tips == control.search(task, "here", 10) == asyncio.run(control.search_async(task, "here", 10))


@pytest.mark.parametrize("scope", ["task", "family"])
def test_tips_that_are_switched_off_or_retired_stand_for_no_other(scope: str) -> None:
    """Else the control would show nothing, and count as tips of another task."""
    memory = open_memory(None, MemoryConfig(scope=scope))
    tasks = [Task(f"maze/amber/train-{i}", "house", i, "train", family="maze") for i in range(9)]
    memory.register_tasks(tasks)
    memory.add([Tip(task.id, f"tip of {task.id}", "here", 1.0) for task in tasks])
    for tip in memory.store.load_tips()[2:]:
        with memory.store.transaction():
            if tip.id and tip.id % 2:
                memory.store.retire([tip.id], "oldest", "capacity")
            else:
                memory.store.update(replace(tip, enabled=False))
    (tip,) = make_prompt_memory(memory, "other").search(tasks[0].id, "here", 1)
    assert tip.namespace == tasks[1].id


def test_no_more_is_shown_than_the_task_has_of_its_own(memory: TipMemory) -> None:
    control = make_prompt_memory(memory, "other")
    assert len(control.search(TASKS[0], "here", 1)) == 1
    assert control.search(TASKS[0], "another state altogether", 10) == []
    assert control.search("maze/amber/train-2", "here", 10) == [], "a task that has none is shown none"


def test_empty_tips_have_scores_but_no_words(memory: TipMemory) -> None:
    control = make_prompt_memory(memory, "empty")
    tips, own = control.search(TASKS[0], "here", 10), memory.search(TASKS[0], "here", 10)
    assert [(tip.text, tip.action, tip.score) for tip in tips] == [(EMPTY_TEXT, "", tip.score) for tip in own]
    assert len(tips) == 2
    assert tips == asyncio.run(control.search_async(TASKS[0], "here", 10))


def test_readers_of_a_control_count_for_no_tip() -> None:
    memory = open_memory(None, MemoryConfig(order=("ucb",)))
    memory.add([Tip(task, task, "here", 1.0) for task in TASKS])
    for show in ("other", "empty", "own"):
        tips = make_prompt_memory(memory, show).search(TASKS[0], "here", 1)
        step = Step(Observation("here"), tuple(tips), Completion((), (), (), "go"), (), "go", 0.0)
        task, end = Task(TASKS[0], "maze"), Observation("end")
        reader = Trajectory(task, (step,), end, "terminated", True, 1.0, mode="off_policy")
        make_prompt_memory(memory, show).report([reader])
        counted = [readers.shown for readers in memory.store.load_reader_stats().values()]
        assert counted == ([1, 0, 0, 0] if show == "own" else [0] * 4)


@pytest.mark.parametrize(
    ("section", "show", "curve"),
    [
        ("eval", "own", [0.25, 0.5, 0.75]),  # the guesser tries what the tips of the gate advise
        ("eval", "empty", [0.25] * 3),
        ("algorithm", "empty", [0.25, 0.5, 0.75]),  # of training: no panel has it unless it is set for panels
    ],
)
def test_panels_have_a_control_of_their_own(section: str, show: str, curve: list[float], tmp_path: Path) -> None:
    sections = {"eval": {"num_tasks": 0, "trials": 2}}
    sections[section] = sections.get(section, {}) | {"show_tips": show}
    rows = adapt_by(Guesser(), "empo2-tips", tmp_path, **sections)
    assert [row.mean for row in rows] == curve

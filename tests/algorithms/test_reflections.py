from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trailnotes.algorithms.reflexion import ReflectionMemory
from trailnotes.types import Tip


def plan(text: str, task: str = "maze/1", step: int = 0) -> Tip:
    return Tip(task, text, "", 0.0, step=step, created="2026-01-01")


def texts(tips: list[Tip]) -> list[str]:
    return [tip.text for tip in tips]


@given(st.lists(st.sampled_from("ab"), max_size=12), st.integers(1, 5), st.integers(0, 5))
def test_all_plans_are_kept_and_the_newest_of_the_task_are_found_oldest_first(
    tasks: list[str], window: int, top_k: int
) -> None:
    with ReflectionMemory(None, window) as memory:
        for number, task in enumerate(tasks):
            memory.add([plan(f"plan {number}", task)])
        own = [f"plan {number}" for number, task in enumerate(tasks) if task == "a"]
        assert texts(memory.search("a", "whatever", top_k)) == (own[-min(window, top_k) :] if top_k else [])
        assert memory.stats()["tips"] == len(tasks)


def test_plans_of_another_task_or_none_in_words_stand_in_for_own_ones() -> None:
    with ReflectionMemory(None, 2) as memory:
        tasks = [("maze/1", 3), ("maze/2", 1), ("vault/1", 3), ("gate/1", 1)]
        memory.add([plan(f"{task} {i}", task, step=i) for task, count in tasks for i in range(count)])
        assert texts(memory.get_prompt_plans("maze/1")) == ["maze/1 1", "maze/1 2"]
        assert [(tip.text, tip.step) for tip in memory.get_prompt_plans("maze/1", "empty")] == [
            ("none", 1),
            ("none", 2),
        ]
        assert {tip.namespace for tip in memory.get_prompt_plans("maze/1", "other")} < {"vault/1", "gate/1"}, (
            "another family"
        )
        assert texts(memory.get_prompt_plans("gate/1", "other")) in (["maze/1 2"], ["maze/2 0"], ["vault/1 2"]), (
            "as many, newest"
        )
        assert memory.get_prompt_plans("maze/3", "other") == memory.get_prompt_plans("maze/3", "empty") == []
        assert memory.stats()["tips"] == 8, "nothing is written by looking"


def test_a_batch_is_stored_once_whatever_comes_between(tmp_path: Path) -> None:
    with ReflectionMemory(tmp_path / "memory.db", 3) as memory:
        assert memory.add([plan("go left")], once="trial-0") == 1
    with ReflectionMemory(tmp_path / "memory.db", 3) as memory:
        assert memory.add([plan("go left")], once="trial-0") == 0
        assert memory.add([plan("go right")], once="trial-1") == 1
        assert texts(memory.search("maze/1", "", 3)) == ["go left", "go right"]

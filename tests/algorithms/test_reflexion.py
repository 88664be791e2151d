"""Reflexion: what is written after a failure, and what the next trial at the task really gets to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptrun import NEVER, Guesser, adapt_by
from small import lines
from trailnotes.algorithms.reflexion import ReflectionMemory
from trailnotes.types import Message, Tip

HEADER = "Your plans for this task, each made after a failed trial, oldest first (quoted; they may be wrong):"


def plans_in(directory: Path) -> list[tuple[str, str, int]]:
    with ReflectionMemory(directory / "memory.db", 3) as memory:
        return [(tip.namespace[-1], tip.text, tip.step) for tip in memory.store.load_tips()]


def of_gate(gate: int, prompts: list[list[Message]]) -> list[list[Message]]:
    """The prompts of one gate, in the order in which they were asked."""
    return [prompt for prompt in prompts if f"open gate {gate}" in "".join(message.content for message in prompt)]


@pytest.mark.parametrize("style", ["full", "terse"])
def test_a_prompt_has_the_last_three_plans(style: str, tmp_path: Path) -> None:
    policy = Guesser()
    sections = {"rollout": {"style": style}, "env": {"options": {"gates": [NEVER]}}}
    adapt_by(policy, "reflexion", tmp_path, **sections, eval={"trials": 4})
    assert plans_in(tmp_path) == [(str(NEVER), f"next time say w{n + 1}", n) for n in range(5)]
    after_five = Guesser()
    adapt_by(after_five, "reflexion", tmp_path, **sections, eval={"trials": 5})
    actor = after_five.prompts[0][-1].content
    if style == "full":
        shown = [f'- Trial {n}: "next time say w{n}"' for n in (3, 4, 5)]
        assert actor == "\n".join([f"Task: open gate {NEVER}\n", HEADER, *shown, "", "Observation: a gate ?"])
    else:
        shown = [f'- " next time say w{n} " 0 / 1' for n in (3, 4, 5)]
        assert actor == "\n".join([f"open gate {NEVER}", "notes :", *shown, "a gate ?"])


def test_the_reflector_reads_the_failure_its_examples_and_the_last_three_plans(tmp_path: Path) -> None:
    policy = Guesser()
    sections = {"rollout": {"style": "full"}, "env": {"options": {"gates": [NEVER]}}}
    adapt_by(policy, "reflexion", tmp_path, **sections, eval={"trials": 5})
    request = policy.prompts[-1][-1].content
    assert request.startswith("Observation: you said w5 .")
    assert request.endswith("New plan:")
    assert request.count("New plan: ") == 2, "two worked examples of failure and plan"
    assert [line for line in request.splitlines() if line.startswith("- Trial")] == [
        f'- Trial {n}: "next time say w{n}"' for n in (3, 4, 5)
    ]
    episode = policy.prompts[-1][:-1]
    assert not any("Trial" in message.content for message in episode), "it is quoted without plans"


def test_a_solved_gate_is_never_played_or_written_about_again(tmp_path: Path) -> None:
    policy = Guesser()
    adapt_by(policy, "reflexion", tmp_path)
    played = [(r["iteration"], r["task"]["id"][-1], r["success"]) for r in lines(tmp_path / "trajectories.jsonl")]
    assert played == [
        (0, "0", True), (0, "1", False), (0, "2", False), (0, "9", False),
        (1, "1", True), (1, "2", False), (1, "9", False),
        (2, "2", True), (2, "9", False),
        (3, "9", False),
    ]  # fmt: skip
    assert len(of_gate(0, policy.prompts)) == 1
    assert sorted(plans_in(tmp_path)) == sorted(
        [("1", "next time say w1", 0)]
        + [("2", f"next time say w{n + 1}", n) for n in range(2)]
        + [("9", f"next time say w{n + 1}", n) for n in range(4)]
    )


def test_all_three_figures_are_there_each_with_its_count(tmp_path: Path) -> None:
    rows = adapt_by(Guesser(), "reflexion", tmp_path)
    assert [row.mean for row in rows] == [0.25, 0.5, 0.75, 0.75]
    table = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [(row["figure"], row["num_tasks"], row["mean"]) for row in table] == [
        ("trial 0", 4, 0.25), ("solved by trial 1", 4, 0.5), ("solved by trial 2", 4, 0.75),
        ("solved by trial 3", 4, 0.75), ("final trial only", 1, 0.0),
    ]  # fmt: skip
    assert "| final trial only | with | test (1) | success | 0.000 |" in (tmp_path / "table.md").read_text()
    metrics = lines(tmp_path / "metrics.jsonl")
    assert [(m["attempted"], m["solved"], m["solved_share"], m["rollout/success"]) for m in metrics] == [
        (4, 1, 0.25, 0.25), (3, 2, 0.5, 1 / 3), (2, 3, 0.75, 0.5), (1, 3, 0.75, 0.0),
    ]  # fmt: skip
    assert [m["tips/written"] for m in metrics] == [3, 2, 1, 1]
    (row,) = json.loads((tmp_path / "eval" / "table.json").read_text())["rows"]
    assert (row["mean"], row["num_tasks"], row["env_steps"]) == (0.75, 4, 6)  # of ten, four are the ones examined


# -- the memory of plans


def plan(text: str, task: str = "maze/1", step: int = 0) -> Tip:
    return Tip(task, text, "", 0.0, step=step, created="2026-01-01")


def texts(tips: list[Tip]) -> list[str]:
    return [tip.text for tip in tips]


@given(st.lists(st.sampled_from("ab"), max_size=12), st.integers(1, 5), st.integers(0, 5))
def test_search_returns_the_newest_plans_oldest_first(tasks: list[str], window: int, top_k: int) -> None:
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
        empty = memory.get_prompt_plans("maze/1", "empty")
        assert [(tip.text, tip.step) for tip in empty] == [("none", 1), ("none", 2)]
        other = {tip.namespace for tip in memory.get_prompt_plans("maze/1", "other")}
        assert other < {"vault/1", "gate/1"}, "of another family"
        (newest,) = texts(memory.get_prompt_plans("gate/1", "other"))  # as many as it has of its own
        assert newest in ("maze/1 2", "maze/2 0", "vault/1 2")
        assert memory.get_prompt_plans("maze/3", "other") == memory.get_prompt_plans("maze/3", "empty") == []
        assert memory.stats()["tips"] == 8, "nothing is written by looking"

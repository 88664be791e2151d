"""CLIN, ReasoningBank, ACE and Training-Free GRPO: what the author is asked, and what an attempt begins with then."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptrun import NEVER, Guesser, adapt_by
from trailnotes.algorithms._notebook import Notebook, Question
from trailnotes.algorithms.ace import Entry, Playbook
from trailnotes.algorithms.clin import CausalStatements
from trailnotes.algorithms.reasoningbank import Bank, parse_items
from trailnotes.algorithms.training_free_grpo import Experiences
from trailnotes.memory.retrieval import HashingEmbedder
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Completion, Message, Observation, Sampling, Step, Task, Trajectory, TrajectoryGroup

ONE_GATE = {"env": {"options": {"gates": [2]}}, "rollout": {"style": "full"}}


class Author(Guesser):
    """A guesser that answers what the notebooks ask for: advice to say the word after the one that was said."""

    def __init__(self, write: Callable[[str, int], str]) -> None:
        super().__init__()
        self.write = write  # from the request and the word that was said last

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        completion = await super().generate(messages, sampling, episode)
        last = messages[-1].content
        if not re.search(r"ended with a score|You keep a playbook|several attempts", last):
            return completion
        words = [int(m.content[1:]) for m in messages if m.role == "assistant"] or [
            int(word) for word in re.findall(r": w(\d+)$", last, re.MULTILINE)
        ]
        return replace(completion, text=self.write(last, max(words, default=0)))


def adapt_at_one_gate(write: Callable[[str, int], str], method: str, out: Path) -> tuple[Author, str]:
    """Adapt for two trials, of which the last is won; returns the author and the actor's last prompt."""
    policy = Author(write)
    rows = adapt_by(policy, method, out, **ONE_GATE, eval={"trials": 2})
    assert [row.mean for row in rows] == [0.0, 0.0, 1.0]
    return policy, actor_prompts(policy)[2]


def actor_prompts(policy: Guesser) -> list[str]:
    return [prompt[-1].content for prompt in policy.prompts if prompt[-1].content.endswith("Observation: a gate ?")]


# --- the whole prompt of trial 2


def test_clin_shows_the_statements_of_the_task_written_anew(tmp_path: Path) -> None:
    def write(_: str, word: int) -> str:
        return f"- next time say w{word + 1} is necessary to open the gate\nsomething else"

    policy, prompt = adapt_at_one_gate(write, "clin", tmp_path)
    assert prompt == (
        "Task: open gate 2\n\nWhat you learned in earlier attempts at this task (quoted; it may be wrong):\n"
        '- "next time say w2 is necessary to open the gate"\n\nObservation: a gate ?'
    )
    request = policy.prompts[3][-1].content
    assert request.startswith("Observation: you said w1 .\n\nThe episode has ended with a score of 0 of 1.")
    assert "What you knew before it:\nnext time say w1 is necessary to open the gate\n" in request


def test_reasoningbank_shows_the_insights_of_the_most_similar_episode(tmp_path: Path) -> None:
    def write(request: str, word: int) -> str:
        why = "succeeded" if "succeeded" in request else "failed"
        return f"# Item 1\n## Title: Words ({why})\n## Description: at gates\n## Content: next time say w{word + 1}"

    _, prompt = adapt_at_one_gate(write, "reasoningbank", tmp_path)
    assert prompt == (
        "Task: open gate 2\n\nInsights from earlier attempts at similar tasks (quoted; they may be wrong):\n"
        '- "Words (failed): next time say w2 (at gates)"\n\nObservation: a gate ?'
    )


def test_ace_shows_the_playbook_with_its_counts(tmp_path: Path) -> None:
    def write(request: str, word: int) -> str:
        if request.startswith("You keep a playbook"):
            lesson = re.findall(r"say w\d+", request)[-1]
            return f"add: next time {lesson}\nadd: a second line that is one too many"
        return f"helpful: 1\nharmful: 7\nlesson: say w{word + 1}"

    _, prompt = adapt_at_one_gate(write, "ace", tmp_path)
    assert prompt == (
        "Task: open gate 2\n\nYour playbook (quoted; with how often each entry helped and harmed):\n"
        '- "(1) helpful 1, harmful 0: next time say w1"\n- "(2) helpful 0, harmful 0: next time say w2"\n\n'
        "Observation: a gate ?"
    )
    for number, line in enumerate(read_jsonl(tmp_path / "metrics.jsonl"), 1):
        assert (line["notebook/entries"], line["notebook/asked"], line["notebook/unusable"]) == (number, 2, 0)
    assert number == 3


class Divided(Author):
    """Its second attempt at a task says the word after the first one's."""

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        completion = await super().generate(messages, sampling, episode)
        is_second = episode.endswith("/1") and completion.text.startswith("w")
        return replace(completion, text=f"w{int(completion.text[1:]) + 1}") if is_second else completion


def test_training_free_grpo_shows_what_set_the_better_attempt_apart(tmp_path: Path) -> None:
    policy = Divided(lambda _, word: f"add: next time say w{word}")
    sections = {"env": {"options": {"gates": [1, NEVER]}}, "rollout": {"style": "full"}}
    adapt_by(policy, "training-free-grpo", tmp_path, **sections, eval={"trials": 1, "num_samples": 2})
    requests = [p[-1].content for p in policy.prompts if p[-1].content.startswith("An agent made several attempts")]
    assert requests[0] == (
        "An agent made several attempts at one task of a text environment.\nTask: open gate 1\n"
        "Attempt with score 0 of 1: w0\nAttempt with score 1 of 1: w1\nThere are no experiences yet.\n"
        "Compare the attempts that scored more with the others, and say what made the difference, for any task of this "
        "kind. Change the list of experiences by at most 2 lines:\nadd: a new experience, in one sentence\n"
        "modify 2: new words for experience 2\ndelete 3"
    )
    assert sum("open gate 9" in request for request in requests) == 0, "equal scores say nothing"
    prompts = [prompt for prompt in actor_prompts(policy) if "Experiences" in prompt]
    assert prompts[0] == (
        "Task: open gate 1\n\nExperiences from earlier attempts at such tasks (quoted; they may be wrong):\n"
        '- "next time say w1"\n\nObservation: a gate ?'
    )


# --- what cannot be read


def trajectory(score: float, member: int = 0, *actions: str) -> Trajectory:
    steps = tuple(Step(Observation("here"), (), Completion((), (), (), a), (), a, 0.0) for a in actions or ("go",))
    task = Task("gate/1", "gates")
    return Trajectory(task, steps, Observation("end", score=score), "terminated", score == 1, score, member=member)


def update(notebook: Notebook, groups: Sequence[TrajectoryGroup], answers: Sequence[str]) -> int:
    """Update with these answers, in their order."""
    left = list(answers)

    async def ask(_: str, questions: Sequence[Question]) -> list[str]:
        return [left.pop(0) for _ in questions]

    return asyncio.run(notebook.update(groups, ask))


NOTEBOOKS = {
    "clin": lambda: CausalStatements(5), "bank": lambda: Bank(HashingEmbedder()), "ace": lambda: Playbook(3),
    "grpo": lambda: Experiences(3),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.parametrize("answer", ["", "\x00\u202e", "add:", "modify x: y"])
def test_an_answer_that_says_nothing_changes_nothing_and_is_counted(name: str, answer: str) -> None:
    notebook: Any = NOTEBOOKS[name]()
    groups = [TrajectoryGroup(Task("gate/1", "gates"), (trajectory(0.0), trajectory(1.0, 1)))]
    unusable = update(notebook, groups, [answer] * 2)
    assert len(notebook) == 0
    assert unusable >= 1


def test_an_insight_needs_content_and_there_are_three_at_most() -> None:
    assert parse_items("Title: no content\nTitle: two\nContent: do it\nat once\nContent comes last") == (
        "two: do it at once Content comes last",
    )
    assert parse_items("Content: untitled") == ("Insight: untitled",)
    many = "\n".join(f"Title: t{n}\nDescription: d\nContent: c{n}" for n in range(5))
    assert parse_items(many) == ("t0: c0 (d)", "t1: c1 (d)", "t2: c2 (d)")


def test_the_playbook_loses_what_harmed_most() -> None:
    notebook = Playbook(2)
    notebook.entries = [Entry(1, "a", helpful=1), Entry(2, "b", harmful=2)]
    notebook._added = 2
    groups = [TrajectoryGroup(Task("gate/1", "gates"), (trajectory(0.0),))]
    update(notebook, groups, ["harmful: entry 2 and 99, since 1 of them failed\nlesson: c helps", "add: c\nadd: a"])
    assert [(e.number, e.text, e.helpful, e.harmful) for e in notebook.entries] == [(1, "a", 1, 0), (3, "c", 0, 0)]


@pytest.mark.parametrize(
    ("method", "shown"), [("reasoningbank", "say w1"), ("ace", "(1) helpful 0, harmful 0: say w1")]
)
def test_free_form_keeps_answers_without_labels(tmp_path: Path, method: str, shown: str) -> None:
    def write(request: str, word: int) -> str:
        return "say w1" if request.startswith("You keep a playbook") else f"**say** w{word + 1}"

    for free_form in (False, True):
        policy = Author(write)
        section = {"free_form": free_form}
        adapt_by(policy, method, tmp_path / str(free_form), **ONE_GATE, eval={"trials": 2}, notebook=section)
        assert (f'- "{shown}"' in actor_prompts(policy)[2]) == free_form


def test_free_form_still_reads_labels() -> None:
    assert parse_items("Well:\nTitle: t\nContent: c", free_form=True) == ("t: c",)
    assert parse_items("- \n", free_form=True) == ()
    notebook = Playbook(3, free_form=True)
    groups = [TrajectoryGroup(Task("gate/1", "gates"), (trajectory(0.0),))]
    assert update(notebook, groups, ["helpful: 1"]) == 1
    update(notebook, groups, ["lesson: c helps", "I add this:\nadd: c"])
    assert [entry.text for entry in notebook.entries] == ["c"]


@pytest.mark.parametrize("answer", ["delete 2", "delete: 2", "**delete** experience 2", "delete #2"])
def test_operations_are_read_as_models_write_them(answer: str) -> None:
    notebook = Experiences(3)
    notebook.texts = ["a", "b", "c"]
    groups = [TrajectoryGroup(Task("gate/1", "gates"), (trajectory(0.0), trajectory(1.0, 1)))]
    update(notebook, groups, [answer + "\nadd: 3 keys open it"])
    assert notebook.texts == ["a", "c", "3 keys open it"]
    assert notebook.find(Task("gate/1", "gates"), "")[0] == "3 keys open it", "the newest first"

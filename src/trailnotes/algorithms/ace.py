"""ACE: a playbook of numbered entries that grows by additions and counts which entries helped or harmed.

Source: "Agentic Context Engineering: Evolving Contexts for Self-Improving Language Models" (arXiv 2510.04618) and its
release (ace-agent/ace, ba78d34). See docs/algorithms/memories.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trailnotes.algorithms import _notebook as notebook
from trailnotes.config.methods import Method
from trailnotes.config.refusals import require_own_tips
from trailnotes.rollout.tips import select_usable
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.types import Task, TrajectoryGroup

_TAG: Final = re.compile(r"^(helpful|harmful)\b((?:[\W\d]|and\b|entry\b|entries\b)*)", re.IGNORECASE)
_LESSON: Final = re.compile(r"^lesson\W+(.+)$", re.IGNORECASE)
_ADD: Final = re.compile(r"^add\W+(.+)$", re.IGNORECASE)
_REFLECT: Final = (
    "{outcome}\n{playbook}Say what to learn from this attempt for any task of this kind. First the numbers of the "
    "entries that helped and of those that misled, then one lesson, in these lines:\nhelpful: 1, 2\nharmful: 3\n"
    "lesson: what went wrong or right, and what to do"
)
_CURATE: Final = (
    "You keep a playbook for an agent that acts in a text environment.\n{playbook}Lessons of its newest attempts:\n"
    "{lessons}\n\nAdd what the playbook lacks, and nothing that it says already. Entries are never rewritten. One new "
    "entry a line, at most {most}, or no line:\nadd: one strategy, fact or warning, in a sentence that stands alone"
)


async def ace(run: AdaptationRun) -> None:
    options = run.config.section(notebook.NotebookConfig)
    await notebook.adapt_by_notebook(run, Playbook(notebook.CAPACITY, free_form=options.free_form))


@dataclass(slots=True)
class Entry:
    """A line of the playbook."""

    number: int  # from 1, for good
    text: str
    helpful: int = 0
    harmful: int = 0

    @property
    def balance(self) -> int:
        return self.helpful - self.harmful

    def __str__(self) -> str:
        return f"({self.number}) helpful {self.helpful}, harmful {self.harmful}: {self.text}"


class Playbook:
    """One playbook for all tasks; above its capacity the entries go that harmed most, the oldest of equals first."""

    header = "Your playbook (quoted; with how often each entry helped and harmed):"

    def __init__(self, capacity: int, *, free_form: bool = False) -> None:
        self.capacity, self.free_form = capacity, free_form  # free_form: lines without labels are lessons and entries
        self.entries: list[Entry] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, task: Task, instruction: str) -> Sequence[str]:  # noqa: ARG002 (there is one for all)
        best = sorted(self.entries, key=lambda entry: (entry.balance, entry.number), reverse=True)
        return [str(entry) for entry in best]

    async def update(self, groups: Sequence[TrajectoryGroup], ask: notebook.Ask) -> int:
        """Reflect on each episode, count what helped, then let the curator add to the playbook."""
        episodes = select_usable([t for group in groups for t in group.trajectories])
        playbook = self._describe(empty="")
        questions = [
            notebook.Question(
                f"{t.task.id}/{t.member}", _REFLECT.format(outcome=notebook.describe_outcome(t), playbook=playbook), t
            )
            for t in episodes
        ]
        lessons = [self._read_reflection(answer) for answer in await ask("reflections", questions)]
        unusable, lessons = sum(not lesson for lesson in lessons), [lesson for lesson in lessons if lesson]
        if not lessons:
            return unusable
        text = _CURATE.format(
            playbook=self._describe(empty="It is empty.\n"), lessons="\n".join(lessons), most=len(lessons)
        )
        (answer,) = await ask("curation", [notebook.Question("curator", text)])
        known = {entry.text for entry in self.entries}
        lines = notebook.read_lines(answer)
        labelled = [match[1] for match in map(_ADD.match, lines) if match]
        added = [line for line in labelled or lines if line not in known] if labelled or self.free_form else []
        added = list(dict.fromkeys(added))[: min(len(lessons), self.capacity)]
        while len(self.entries) + len(added) > self.capacity:  # what is new has not had its turn
            self.entries.remove(min(self.entries, key=lambda entry: entry.balance))
        for words in added:
            self._added += 1
            self.entries.append(Entry(self._added, words))
        return unusable

    def _describe(self, *, empty: str) -> str:
        return "\n".join(["The playbook:", *map(str, self.entries), ""]) if self.entries else empty

    def _read_reflection(self, answer: str) -> str:
        lesson, by_number = "", {entry.number: entry for entry in self.entries}
        lines = notebook.read_lines(answer)
        if self.free_form and not any(_TAG.match(line) or _LESSON.match(line) for line in lines):
            return " ".join(lines)
        for line in lines:
            if tag := _TAG.match(line):
                for number in {int(digits) for digits in re.findall(r"\d{1,6}", tag[2])} & by_number.keys():
                    entry = by_number[number]
                    entry.helpful += tag[1].lower() == "helpful"
                    entry.harmful += tag[1].lower() == "harmful"
            elif match := _LESSON.match(line):
                lesson = match[1]
        return lesson


METHOD = Method(
    "ace", "ACE", ace, trains=False, colour="#ff6361",
    sections={"notebook": notebook.NotebookConfig}, validate=require_own_tips,
)  # fmt: skip

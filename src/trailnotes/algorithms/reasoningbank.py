"""ReasoningBank: items of title, description and content from each episode, retrieved by the task's words.

Source: "ReasoningBank: Scaling Agent Self-Evolving with Reasoning Memory" (arXiv 2509.25140) and its release
(google-research/reasoning-bank, ed80611). See docs/algorithms/memories.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trailnotes.algorithms import _notebook as notebook
from trailnotes.config.methods import Method
from trailnotes.config.refusals import require_own_tips
from trailnotes.memory import Embedder, make_config_embedder
from trailnotes.rollout.conversation import get_instruction
from trailnotes.rollout.tips import select_usable
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.types import Task, TrajectoryGroup

MAX_ITEMS: Final = 3  # of an episode (release)
_PART: Final = re.compile(r"^(title|description|content)\s*(?:[:\u2013-]\W*(.*))?$", re.IGNORECASE)
_HEADING: Final = re.compile(r"^(?:memory\s+)?(?:item|insight)\W*\d*\W*$", re.IGNORECASE)  # of an item (release)
_REQUEST: Final = (
    "{outcome}\n{why} Write down at most {most} insights that help with similar tasks, without the names and words of "
    "this one. Each has three lines:\nTitle: what it is about\nDescription: when to use it\nContent: what to do, in "
    "one to three sentences"
)
_WHY: Final = {
    True: "The attempt succeeded. Think about why.",
    False: "The attempt failed. Think about why, and what would have prevented it.",
}


async def reasoningbank(run: AdaptationRun) -> None:
    options = run.config.section(notebook.NotebookConfig)
    await notebook.adapt_by_notebook(run, Bank(make_config_embedder(run.config), free_form=options.free_form))


@dataclass(frozen=True, slots=True)
class Record:
    """What one episode taught."""

    vector: NDArray[np.float32]  # (dim,) of its task's words
    items: tuple[str, ...]


class Bank:
    """The insights of all episodes; an attempt reads those of the most similar one, of equals the newest."""

    header = "Insights from earlier attempts at similar tasks (quoted; they may be wrong):"

    def __init__(self, embedder: Embedder, *, free_form: bool = False) -> None:
        self.embedder, self.records, self.free_form = embedder, list[Record](), free_form

    def __len__(self) -> int:
        return sum(len(record.items) for record in self.records)

    def find(self, task: Task, instruction: str) -> Sequence[str]:
        """Return the insights of the most similar episode (arXiv 2509.25140 shows one)."""
        if not self.records:
            return ()
        wanted = self.embedder.embed([instruction or task.id])[0]
        similarity = np.array([record.vector @ wanted for record in self.records])
        nearest = int(np.lexsort((-np.arange(len(self.records)), -similarity))[0])
        return self.records[nearest].items

    async def update(self, groups: Sequence[TrajectoryGroup], ask: notebook.Ask) -> int:
        episodes = select_usable([t for group in groups for t in group.trajectories])
        questions = [
            notebook.Question(
                f"{t.task.id}/{t.member}",
                _REQUEST.format(outcome=notebook.describe_outcome(t), why=_WHY[t.success], most=MAX_ITEMS), t,
            )
            for t in episodes
        ]  # fmt: skip
        answers = [parse_items(answer, free_form=self.free_form) for answer in await ask("insights", questions)]
        words = [get_instruction(t) or t.task.id for t in episodes]
        vectors: Iterable[NDArray[np.float32]] = self.embedder.embed(words) if words else ()
        self.records += [Record(v, items) for v, items in zip(vectors, answers, strict=True) if items]
        return sum(not items for items in answers)


def parse_items(answer: str, *, free_form: bool = False) -> tuple[str, ...]:
    """Parse an answer as "title: content (description)" of each item; one without content is none.

    A part begins with its label, on a line of its own or before the words, and goes on over the lines that follow. With
    `free_form` an answer without labels is one item.
    """
    items, part, lines = [dict[str, str]()], "", notebook.read_lines(answer)
    if free_form and lines and not any(map(_PART.match, lines)):
        return (" ".join(lines),)
    for line in lines:
        if match := _PART.match(line):
            part = match[1].lower()
            if part == "title":
                items.append({})
            items[-1][part] = match[2] or ""
        elif part and not _HEADING.match(line):
            items[-1][part] = f"{items[-1][part]} {line}".strip()
    whole = [item for item in items if item.get("content")]
    return tuple(
        f"{item.get('title') or 'Insight'}: {item['content']}"
        + (f" ({item['description']})" if item.get("description") else "")
        for item in whole[:MAX_ITEMS]
    )


METHOD = Method(
    "reasoningbank", "ReasoningBank", reasoningbank, trains=False, colour="#bc5090",
    sections={"notebook": notebook.NotebookConfig}, validate=require_own_tips,
)  # fmt: skip

"""CLIN: after each trial the policy rewrites what it holds to be necessary, or of no use, for a task.

Source: "CLIN: A Continually Learning Language Agent for Rapid Task Adaptation and Generalization" (arXiv 2310.10134);
its code (allenai/clin, d96c028) has no licence and was read for facts alone. See docs/algorithms/memories.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trailnotes.algorithms import _notebook as notebook
from trailnotes.config.methods import Method
from trailnotes.config.refusals import require_own_tips
from trailnotes.rollout.tips import select_usable
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.types import Task, TrajectoryGroup

_FORM: Final = re.compile(r"\b(necessary|contribute)\b", re.IGNORECASE)
_REQUEST: Final = (
    "{outcome}\n{before}State what this attempt taught about causes, for the next attempt at the same task. Keep what "
    "still holds of what you knew, and correct the rest. One statement a line, at most {most}, each of one of these "
    "forms:\nX is necessary to Y\nX may be necessary to Y\nX does not contribute to Y\nX may not contribute to Y"
)


async def clin(run: AdaptationRun) -> None:
    await notebook.adapt_by_notebook(run, CausalStatements(run.config.section(notebook.NotebookConfig).shown))


class CausalStatements:
    """For each task the statements that were written after its last trial."""

    header = "What you learned in earlier attempts at this task (quoted; it may be wrong):"

    def __init__(self, most: int) -> None:
        self.most = most
        self.known: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.known.values()))

    def find(self, task: Task, instruction: str) -> Sequence[str]:  # noqa: ARG002 (a task has its own)
        return self.known.get(task.id, ())

    async def update(self, groups: Sequence[TrajectoryGroup], ask: notebook.Ask) -> int:
        episodes = select_usable([group.trajectories[0] for group in groups])
        questions = []
        for episode in episodes:
            known = self.known.get(episode.task.id, [])
            before = "\n".join(["What you knew before it:", *known, ""]) if known else ""
            text = _REQUEST.format(outcome=notebook.describe_outcome(episode), before=before, most=self.most)
            questions.append(notebook.Question(episode.task.id, text, episode))
        unusable = 0
        for episode, answer in zip(episodes, await ask("causes", questions), strict=True):
            statements = [line for line in notebook.read_lines(answer) if _FORM.search(line)]
            unusable += not statements
            if statements:
                self.known[episode.task.id] = statements[: self.most]
        return unusable


METHOD = Method(
    "clin", "CLIN", clin, trains=False, colour="#003f5c",
    sections={"notebook": notebook.NotebookConfig}, validate=require_own_tips,
)  # fmt: skip

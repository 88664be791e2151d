"""Training-Free GRPO: what sets the better attempts of a group apart becomes an experience in the prompt.

Source: "Training-Free Group Relative Policy Optimization" (arXiv 2510.08191) and its release (youtu-agent, bef6ba5,
`utu/practice`). See docs/algorithms/memories.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from trailnotes.algorithms import _notebook as notebook
from trailnotes.config.methods import Method
from trailnotes.config.refusals import require_own_tips
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError
from trailnotes.rollout.conversation import get_instruction, quoted
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.types import Task, Trajectory, TrajectoryGroup

MAX_OPERATIONS: Final = 2  # of a group (release: num_experiences_per_query)
_OPERATION: Final = re.compile(r"^(?:(add)\W+|(modify|delete)\W*(?:experience\W*)?(\d{1,6})?\W*)(.*)$", re.IGNORECASE)
_REQUEST: Final = (
    "An agent made several attempts at one task of a text environment.\nTask: {task}\n{attempts}\n{known}Compare the "
    "attempts that scored more with the others, and say what made the difference, for any task of this kind. Change "
    "the list of experiences by at most {most} lines:\nadd: a new experience, in one sentence\nmodify 2: new words "
    "for experience 2\ndelete 3"
)


async def training_free_grpo(run: AdaptationRun) -> None:
    await notebook.adapt_by_notebook(run, Experiences(notebook.CAPACITY))


class Experiences:
    """One list for all tasks; above its capacity the oldest go."""

    header = "Experiences from earlier attempts at such tasks (quoted; they may be wrong):"

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.texts: list[str] = []

    def __len__(self) -> int:
        return len(self.texts)

    def find(self, task: Task, instruction: str) -> Sequence[str]:  # noqa: ARG002 (there is one list for all)
        return self.texts[::-1]

    async def update(self, groups: Sequence[TrajectoryGroup], ask: notebook.Ask) -> int:
        """Compare each group of unequal scores, and carry out what the answers say, in the order of the groups.

        All answers are about the list as it was before the trial, so that its numbers mean one thing.
        """
        unequal = [group for group in groups if len({t.score for t in group.trajectories}) > 1]
        known = "".join(f"{number}. {text}\n" for number, text in enumerate(self.texts, 1))
        known = f"The experiences so far:\n{known}" if known else "There are no experiences yet.\n"
        questions = [
            notebook.Question(
                group.task.id,
                _REQUEST.format(
                    task=quoted(get_instruction(group.trajectories[0])) or group.task.id, known=known,
                    attempts="\n".join(map(describe_attempt, group.trajectories)), most=MAX_OPERATIONS,
                ),
            )
            for group in unequal
        ]  # fmt: skip
        unusable, texts, added = 0, dict(enumerate(self.texts, 1)), list[str]()
        for answer in await ask("comparisons", questions):
            before = len(added), dict(texts)
            operations = [match.groups() for line in notebook.read_lines(answer) if (match := _OPERATION.match(line))]
            for add, other, digits, words in operations[:MAX_OPERATIONS]:
                kind, number = (add or other).lower(), int(digits or 0)
                if kind == "add" and words:
                    added.append(words)
                elif kind == "modify" and words and number in texts:
                    texts[number] = words
                elif kind == "delete":
                    texts.pop(number, None)
            unusable += before == (len(added), texts)
        self.texts = list(dict.fromkeys([*texts.values(), *added]))[-self.capacity :]
        return unusable


def describe_attempt(episode: Trajectory) -> str:
    actions = "; ".join(quoted(step.action) or "(nothing)" for step in episode.steps)
    return f"Attempt with score {episode.score:g} of {episode.max_score:g}: {actions}"


def validate_training_free_grpo(config: Config) -> None:
    require_own_tips(config)
    if config.eval.num_samples < 2:
        raise ConfigError("training-free-grpo compares attempts at one task: set eval.num_samples to 2 or more "
                          "(release: 5)")  # fmt: skip


METHOD = Method(
    "training-free-grpo", "Training-Free GRPO", training_free_grpo, trains=False, colour="#8c6d31",
    sections={"notebook": notebook.NotebookConfig}, validate=validate_training_free_grpo,
)  # fmt: skip

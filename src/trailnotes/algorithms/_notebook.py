"""What the methods share that adapt by a notebook: entries that are written after a trial and read in the next.

Each of them has a file of its own (clin, reasoningbank, ace, training_free_grpo) that says what is written and how it
is read. A notebook is not saved: an interrupted run makes it again from the journals of its episodes and answers.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from trailnotes.config.section import Section, key
from trailnotes.rollout.conversation import Conversation, build_opening_messages, quoted, replay_conversation, truncate
from trailnotes.rollout.episode import EpisodeContext, TipsActor, count_prompt_tokens
from trailnotes.rollout.tips import CompletionRequest
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.types import (
    Message,
    Observation,
    Sampling,
    Task,
    Tip,
    Trajectory,
    TrajectoryGroup,
    derive_seed,
    strip_thinking,
)


class NotebookConfig(Section):
    """Written entries that an episode begins with: clin, reasoningbank, ace and training-free-grpo."""

    shown: int = key(20, "entries in the first prompt at most; clin: statements of a task", ge=1)
    max_entry_tokens: int = key(96, "a shown entry is cut here", ge=4)
    max_write_tokens: int = key(512, "decoding limit of an answer", ge=1)
    temperature: float = key(1.0, "sampling temperature of answers", "ReasoningBank release ed80611", ge=0)
    free_form: bool = key(False, "reasoningbank, ace: an answer without any of the labels asked for is one entry")


CAPACITY: Final = 100  # entries that ace and training-free-grpo keep
_BULLET: Final = re.compile(r"^(?:(?:[-*#\u2022]+|\d{1,3}[.):])\s+)+")


@dataclass(frozen=True, slots=True)
class Question:
    """A request to the author: about one episode, whose conversation stands before it, or apart from any."""

    name: str  # of this question alone in a trial, for its seed
    text: str
    episode: Trajectory | None = None


Ask = Callable[[str, Sequence[Question]], Awaitable[list[str]]]
"""Has the author answer the questions of a stage of the trial, by its name; answers in their order."""


class Notebook(Protocol):
    """What one method remembers: entries."""

    header: str  # of the entries, in the first prompt of an episode

    def __len__(self) -> int: ...

    def find(self, task: Task, instruction: str) -> Sequence[str]: ...

    async def update(self, groups: Sequence[TrajectoryGroup], ask: Ask) -> int:
        """Learn from the episodes of a trial; return the number of answers that nothing could be read from."""


async def adapt_by_notebook(run: AdaptationRun, notebook: Notebook) -> None:
    """Play trial 0 without a notebook, then `eval.trials` trials with what was written after those before."""
    config = run.config
    for trial in range(config.eval.trials + 1):
        phase, asked = f"trial-{trial}", 0
        act = (lambda context: NotebookActor(context, notebook)) if trial else None
        groups = await run.play(phase, run.tasks, make_actor=act, num_samples=config.eval.num_samples)

        async def ask(stage: str, questions: Sequence[Question], phase: str = phase) -> list[str]:
            nonlocal asked
            asked += len(questions)
            requests = [build_request(run, f"{phase}-{stage}", question) for question in questions]
            return [strip_thinking(completion.text) for completion in await run.write(f"{phase}-{stage}", requests)]

        unusable = await notebook.update(groups, ask)  # after the last one as well: more trials may follow
        run.log(phase, groups, notebook={"entries": len(notebook), "asked": asked, "unusable": unusable})
        run.report(f"trial {trial}", groups, memory=trial > 0, trial=trial)
    run.write_panel(groups, memory=config.eval.trials > 0)


class NotebookActor(TipsActor):
    """An actor that sees the entries in the first turn, and none in later ones."""

    def __init__(self, context: EpisodeContext, notebook: Notebook) -> None:
        config, count_tokens = context.config, context.policy.count_tokens

        def introduce(entries: Sequence[Tip]) -> list[str]:
            most, terse = config.section(NotebookConfig).max_entry_tokens, config.rollout.style == "terse"
            cut = [truncate(quoted(entry.text), most, count_tokens) for entry in entries]
            lines = [f'- " {text} "' if terse else f'- "{text}"' for text in cut]
            return ["notes :", *lines] if terse else [notebook.header, *lines, ""]

        memory = config.memory.model_copy(update={"repeat_shown": True})
        super().__init__(context, None, Conversation(config.rollout, memory, count_tokens, introduce))
        self.notebook = notebook

    def select_affordable(self, limit: int, observation: Observation, found: Sequence[Tip]) -> Sequence[Tip]:
        """Return the first that fit the prompt; no room is left for later turns."""
        conversation, fitting = self.conversation, list(found)
        while fitting:
            turn = Message("user", conversation.format_turn(observation, fitting))
            if count_prompt_tokens(self.context.policy, [*conversation.acting, turn]) <= limit:
                break
            fitting.pop()
        return fitting

    async def find(self, observation: Observation) -> list[Tip]:
        if self.context.mode == "plain" or self.num_turns:
            return []
        task = self.context.task
        entries = self.notebook.find(task, observation.instruction or "")
        return [Tip(task.id, entry, "", 0.0) for entry in entries[: self.context.config.section(NotebookConfig).shown]]


def build_request(run: AdaptationRun, stage: str, question: Question) -> CompletionRequest:
    """Build the request for an answer; the oldest turns of an episode that is too long are dropped."""
    config, options, messages = run.config, run.config.section(NotebookConfig), list[Message]()
    text, opening = question.text, 0
    if question.episode is not None:
        count_tokens = run.policy.count_tokens
        (*_, conversation) = replay_conversation(question.episode, config.rollout, config.memory, count_tokens)
        messages, opening = conversation.plain, len(build_opening_messages(config.rollout))
        text = f"{conversation.format_turn(question.episode.final_observation)}\n\n{text}"
    sampling = Sampling(
        options.temperature, max_tokens=options.max_write_tokens,
        seed=derive_seed(run.seed(stage), question.name),
    )  # fmt: skip
    return CompletionRequest([*messages, Message("user", text)], sampling, opening=opening)


def read_lines(answer: str) -> list[str]:
    """Read an answer as lines, without blank ones and the marks of lists, headings and bold words."""
    lines = (_BULLET.sub("", " ".join(line.replace("**", "").split())) for line in answer.splitlines())
    return [line for line in lines if any(map(str.isalnum, line))]


def describe_outcome(episode: Trajectory) -> str:
    return f"The episode has ended with a score of {episode.score:g} of {episode.max_score:g}. Do not act any more."

"""Credit for the authors of tips: `empo2.author_credit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.schema import Config
from trailnotes.learner.base import ModelLearner
from trailnotes.learner.credit.authors import (
    Shares,
    TipKey,
    compute_tip_credits,
    list_shown_texts,
    split_by_use,
    split_equally,
)
from trailnotes.learner.samples import anchor_sample, build_samples
from trailnotes.memory.tips import clean_tip
from trailnotes.policies.base import Policy
from trailnotes.rollout.conversation import Conversation, get_instruction
from trailnotes.rollout.tips import WrittenTip
from trailnotes.types import Completion, Sample, Step, Trajectory, TrajectoryGroup


class AuthorRegistry:
    """Authors of the tips of the last iterations; a text has one author at a time, the first that is not too old."""

    def __init__(self, config: Config) -> None:
        self.config = config.section(Empo2Config)
        self._written: dict[tuple[int, *TipKey], Completion] = {}  # by iteration, task and text

    def remember(self, written: Sequence[WrittenTip], iteration: int) -> None:
        """Remember the first author of each text of `iteration`, and forget authors that are too old."""
        oldest = iteration - self.config.author_age
        self._written = {name: kept for name, kept in self._written.items() if name[0] >= oldest}
        for each in written:
            if each.tips and each.completion.prompt_ids and each.completion.token_ids:
                text = clean_tip(each.tips[0].text)  # as the memory shows it; an author's tips share it
                name = iteration, each.trajectory.task.id, text
                self._written.setdefault(name, each.completion)

    def build_rows(self, credit: Mapping[TipKey, float], iteration: int) -> list[Sample]:
        """Build a row for each text with a credit other than 0 whose known author wrote it in an earlier iteration."""
        weight = self.config.author_credit
        ages = range(iteration - self.config.author_age, iteration)
        return [
            anchor_sample(written, "tip", 0.0, weight * value)
            for name, value in credit.items()
            if value and (written := next(filter(None, (self._written.get((i, *name)) for i in ages)), None))
        ]

    def state_dict(self) -> list[dict[str, Any]]:
        names = "prompt_ids", "token_ids", "logprobs"
        return [
            {"iteration": iteration, "task": task, "text": text, **{name: getattr(written, name) for name in names}}
            for (iteration, task, text), written in self._written.items()
        ]

    def load_state_dict(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._written = {
            (row["iteration"], row["task"], row["text"]): Completion(
                tuple(row["prompt_ids"]), tuple(row["token_ids"]), tuple(row["logprobs"]), row["text"]
            )
            for row in rows
        }


def compute_author_credit(
    groups: Sequence[TrajectoryGroup], policy: Policy, learner: ModelLearner, config: Config
) -> dict[TipKey, float]:
    """Compute `compute_tip_credits` of an iteration's episodes, with shares by `empo2.author_share`."""
    texts = [[list_shown_texts(t) for t in group.trajectories] for group in groups]
    if config.section(Empo2Config).author_share == "equal":
        shares: list[list[Shares]] = [[split_equally(own) for own in row] for row in texts]
    else:
        readers = [t for group in groups for t in group.trajectories if list_shown_texts(t)]
        used = iter(_compute_shares(readers, policy, learner, config))
        shares = [[next(used) if own else {} for own in row] for row in texts]
    return compute_tip_credits(groups, shares, config.algorithm)


def _compute_shares(
    readers: Sequence[Trajectory], policy: Policy, learner: ModelLearner, config: Config
) -> list[Shares]:
    """Score the actions of `readers` with all tips, none, and each alone, and share each return out among its texts.

    The learner scores all, since the sampled log-probabilities differ by rounding, which would become credit.
    """
    views = []
    for reader in readers:
        views.append(replace(reader, mode="on_policy_tips"))
        views += [_build_single_tip_view(reader, text, policy, config) for text in (None, *list_shown_texts(reader))]
    samples = build_samples([TrajectoryGroup(view.task, (view,)) for view in views], [[0.0]] * len(views))
    totals = [0.0] * len(views)
    for sample, row in zip(samples, learner.logprobs(samples), strict=True):
        totals[sample.trajectory] += sum(row)
    scored = iter(totals)
    shares: list[Shares] = []
    for reader in readers:
        acted, none = next(scored), next(scored)
        gains = {text: next(scored) - none for text in list_shown_texts(reader)}
        shares.append(split_by_use(gains, acted - none))
    return shares


def _build_single_tip_view(trajectory: Trajectory, text: str | None, policy: Policy, config: Config) -> Trajectory:
    """Rebuild the episode with the tips of this text alone; None: without tips."""
    conversation = Conversation(config.rollout, config.memory, policy.count_tokens)
    conversation.start(get_instruction(trajectory))
    steps: list[Step] = []
    for step in trajectory.steps:
        tips = conversation.observe(step.observation, [tip for tip in step.tips if tip.text == text])
        prompt_ids = tuple(policy.encode(conversation.acting))
        steps.append(replace(step, tips=tips, completion=replace(step.completion, prompt_ids=prompt_ids)))
        conversation.act(step.completion.text, step.completion.token_ids)
    return replace(trajectory, steps=tuple(steps), mode="on_policy_tips")


def compute_author_metrics(credit: Mapping[TipKey, float], rows: Sequence[Sample]) -> dict[str, float]:
    values = list(credit.values())
    return {
        "credit": sum(values) / max(1, len(values)),
        "positive": sum(value > 0 for value in values) / max(1, len(values)),
        "credited": float(len(rows)),
    }

"""Who wrote the tips that are read now, and what that earns them: `algorithm.author_credit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trailnotes.credit.authors import Shares, TipKey, compute_tip_credits, list_shown_texts, split_by_use, split_equally
from trailnotes.learner.samples import anchor_sample, build_samples
from trailnotes.memory.tips import clean_tip
from trailnotes.prompts import Conversation
from trailnotes.prompts.conversation import get_instruction
from trailnotes.types import Completion, Sample, Step, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from trailnotes.config.schema import Config
    from trailnotes.learner.learner import Learner
    from trailnotes.learner.sharded import ShardedLearner
    from trailnotes.policies.base import Policy
    from trailnotes.rollout import WrittenTip


class AuthorRegistry:
    """Who wrote which tip in the last iterations, for as long as it may be credited.

    A text that several episodes of a task wrote has one author at a time: the first who is not too old. What is held is
    at most what is written in `algorithm.author_age` + 1 iterations.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._written: dict[tuple[int, *TipKey], Completion] = {}  # by iteration, task and text

    def remember(self, written: Sequence[WrittenTip], iteration: int) -> None:
        """Remember the first author of each text that was written in `iteration`, and forget who is too old."""
        oldest = iteration - self.config.algorithm.author_age
        self._written = {name: kept for name, kept in self._written.items() if name[0] >= oldest}
        for each in written:
            if each.tips and each.completion.prompt_ids and each.completion.token_ids:
                name = iteration, each.trajectory.task.id, clean_tip(each.completion.text)
                self._written.setdefault(name, each.completion)

    def build_rows(self, credit: Mapping[TipKey, float], iteration: int) -> list[Sample]:
        """A row for each credited text whose author is known and wrote in an earlier iteration.

        Args:
            credit: of `compute_tip_credits`; what earned exactly 0 teaches nothing and has no row.
            iteration: the present one: what is written in it, nobody has read yet.
        """
        weight = self.config.algorithm.author_credit
        return [
            anchor_sample(written, "tip", 0.0, weight * value)
            for name, value in credit.items()
            if value and (written := self._find_author(name, iteration))
        ]

    def _find_author(self, name: TipKey, iteration: int) -> Completion | None:
        ages = range(iteration - self.config.algorithm.author_age, iteration)
        return next((written for i in ages if (written := self._written.get((i, *name)))), None)

    def state_dict(self) -> list[dict[str, Any]]:
        """JSON-able; floats come back bit for bit."""
        return [
            {
                "iteration": iteration,
                "task": task,
                "text": text,
                "prompt_ids": written.prompt_ids,
                "token_ids": written.token_ids,
                "logprobs": written.logprobs,
            }
            for (iteration, task, text), written in self._written.items()
        ]

    def load_state_dict(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Restore what `state_dict` gave."""
        self._written = {
            (row["iteration"], row["task"], row["text"]): Completion(
                tuple(row["prompt_ids"]), tuple(row["token_ids"]), tuple(row["logprobs"]), row["text"]
            )
            for row in rows
        }


def check_author_age(config: Config, num_tasks: int) -> str:
    """What to say to a user whose authors are forgotten before their tasks come back; "" where none is.

    Args:
        config: of the run.
        num_tasks: that it trains on; `envs.tasks.batch_of` draws each once an epoch, so the longest way from one time
            to the next is two epochs.
    """
    age, latest = config.algorithm.author_age, -(-(2 * num_tasks - 1) // config.rollout.num_tasks)
    if age >= latest:
        return ""
    return (
        f"algorithm.author_age = {age}: of {num_tasks} tasks, {config.rollout.num_tasks} an iteration, one comes back "
        f"after up to {latest} iterations, and later than {age} no author is credited: set algorithm.author_age = "
        f"{latest}"
    )


def compute_author_credit(
    groups: Sequence[TrajectoryGroup], policy: Policy, learner: Learner | ShardedLearner, config: Config
) -> dict[TipKey, float]:
    """`compute_tip_credits` of an iteration's episodes, shared as `algorithm.author_share` says."""
    texts = [[list_shown_texts(t) for t in group.trajectories] for group in groups]
    if config.algorithm.author_share == "equal":
        shares: list[list[Shares]] = [[split_equally(shown) for shown in row] for row in texts]
    else:
        readers = [t for group in groups for t in group.trajectories if list_shown_texts(t)]
        used = iter(_compute_shares(readers, policy, learner, config))
        shares = [[next(used) if shown else {} for shown in row] for row in texts]
    return compute_tip_credits(groups, shares, config.algorithm.normalize_std)


def _compute_shares(
    readers: Sequence[Trajectory], policy: Policy, learner: Learner | ShardedLearner, config: Config
) -> list[Shares]:
    """The share of each text in what each of `readers` did, by scoring its actions under other contexts.

    For k tips k + 2 contexts: all, none, and each alone; all by the learner, since its numbers differ from those that
    were sampled by rounding, and a difference that is cut at 0 would make credit of that.
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
    """The episode as if it had been shown the tips of this text alone; None: no tip."""
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
    """Mean credit of the texts that were read, the share of them with a positive one, and the tips credited."""
    values = list(credit.values())
    return {
        "credit": sum(values) / max(1, len(values)),
        "positive": sum(value > 0 for value in values) / max(1, len(values)),
        "credited": float(len(rows)),
    }

"""OPSD: the policy with its tips in the prompt scores, token by token, what it sampled without them.

All members act without tips. Tips are written after every episode, as in EMPO2, and serve as the teacher's context
only. Sources: SDPO (arXiv 2601.20802), SDAR (2605.15155), OPCD (2602.12275), as named forms. See
docs/algorithms/opsd.md for each formula, its origin, and where this departs from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import model_validator

from trailnotes.config.methods import Method
from trailnotes.config.schema import Config
from trailnotes.config.section import Section, key
from trailnotes.learner.credit.episodes import group_advantages
from trailnotes.learner.samples import build_samples
from trailnotes.memory.base import Memory
from trailnotes.policies.base import Policy
from trailnotes.rollout.episode import EpisodeContext, TipsActor
from trailnotes.rollout.groups import gather_or_cancel
from trailnotes.types import Completion, Message, Mode, Sample, Sampling, Step, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from trailnotes.runs.iteration import Iteration

BETA = 5.0  # sdar: steepness of the sigmoid (SDAR release)
MAX_LOG_RATIO = 5.0  # that counts, either way


class OpsdConfig(Section):
    """OPSD: the policy with its tips in the prompt scores what it sampled without them."""

    form: Literal["sdpo", "sdar", "opcd", "additive"] = key(
        "sdpo", "the log ratio as advantage (SDPO, 2601.20802); as a sigmoid beside the group's (SDAR, 2605.15155); "
        "from the start model (OPCD, 2602.12275); beside the group's as it is (OPID, 2606.26790)")  # fmt: skip
    coefficient: float | None = key(
        None, "c, weight of the teacher; none = as published: 1 for sdpo and opcd, where the group has 1 - c; 0.01 for "
        "sdar; 0.001 for additive; 0 is GRPO", ge=0)  # fmt: skip
    gate: Literal["none", "agree", "positive"] = key(
        "agree", "tokens left to the teacher: all (as published), those where the group's advantage does not say the "
        "opposite, or those of episodes better than their group; of the others the group decides")  # fmt: skip

    @property
    def weight(self) -> float:
        published = {"sdar": 0.01, "additive": 0.001}.get(self.form, 1.0)
        return published if self.coefficient is None else self.coefficient

    @property
    def is_additive(self) -> bool:
        return self.form in ("sdar", "additive")

    @property
    def has_frozen_teacher(self) -> bool:
        return self.form == "opcd"

    @model_validator(mode="after")
    def validate_weight(self) -> Self:
        if not self.is_additive and self.weight > 1:
            raise ValueError(f"opsd.coefficient = {self.weight:g} leaves {self.form} less than nothing of the group's "
                             "advantage: set it to 1 or less")  # fmt: skip
        return self


Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
TEACHER_MODE: Final[Mode] = "on_policy_tips"  # the mode whose prompts the teacher reads


async def opsd(iteration: Iteration) -> None:
    config, options, memory = iteration.config, iteration.config.section(OpsdConfig), iteration.prompt_memory
    algorithm = config.algorithm
    assert memory is not None
    groups = await iteration.rollout(iteration.tasks())
    # Before this iteration adds tips.
    teachers = await rebuild_with_tips(iteration.policy, groups, config, lambda _: memory)
    written = await iteration.write_tips(groups)

    async with iteration.learning():
        groups = iteration.add_novelty(groups)
        advantages = [group_advantages(scores, algorithm) for scores in iteration.scores(groups)]
        frozen = options.has_frozen_teacher
        lessons, num_tokens = build_lessons(iteration, groups, advantages, teachers, initial=frozen)
        iteration.add_metrics("opsd", distillation_metrics(lessons, options) | {"teacher_tokens": num_tokens})
        taught = [lesson.build_sample(options) for lesson in lessons]
        metrics = await iteration.update([*taught, *iteration.anchor_samples(written, groups)])
        await iteration.end(groups, metrics)


def build_lessons(
    iteration: Iteration, groups: Sequence[TrajectoryGroup], advantages: Sequence[Sequence[Array]],
    teachers: Sequence[TrajectoryGroup], *, initial: bool = False,
) -> tuple[list[DistillationRow], float]:  # fmt: skip
    """Score the episodes as `teachers`, the same ones with tips in their prompts, would have sampled them.

    `advantages` are (N,) for each group; `initial` has the initial weights score. Returns the rows with the teacher's
    view of their tokens, and the tokens that it read: the cost of scoring.
    """
    rows = iteration.config.optim.rows
    samples = build_samples(groups, advantages, rows=rows)
    weighed = iteration.samples(groups, [[1.0] * len(group.trajectories) for group in groups])  # importance weights
    asked = build_samples(teachers, [[0.0] * len(group.trajectories) for group in teachers], rows=rows)
    scored = iteration.learner.logprobs(asked, initial=initial)
    # The sampler rounds log-probabilities differently from the learner, and the difference would count as advantage.
    taught = {row.trajectory for row in asked}
    students = iter(iteration.learner.logprobs([row for row in samples if row.trajectory in taught]))
    samples = [replace(row, behavior_logprobs=next(students)) if row.trajectory in taught else row for row in samples]
    lessons = build_distillation_rows(samples, weighed, collect_teacher_logprobs(teachers, asked, scored))
    return lessons, float(sum(len(row.token_ids) for row in asked))


class ReplayPolicy:
    """A policy that replays the answers of an episode that has ended, whatever the prompt."""

    def __init__(self, policy: Policy, trajectory: Trajectory) -> None:
        self.name, self.version, self.append_only = policy.name, policy.version, policy.append_only
        self.context_length = policy.context_length
        self.encode, self.count_tokens = policy.encode, policy.count_tokens
        self.open_episode, self.close_episode = policy.open_episode, policy.close_episode
        self._answers = iter(step.completion for step in trajectory.steps)

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Return the next recorded answer, with the prompt ids of `messages`."""
        del sampling, episode
        return replace(next(self._answers), prompt_ids=self.encode(messages))


async def rebuild_with_tips(
    policy: Policy, groups: Sequence[TrajectoryGroup], config: Config, memory_of: Callable[[Trajectory], Memory | None]
) -> list[TrajectoryGroup]:
    """Rebuild episodes as if they had read tips of `memory_of(episode)`: same words, other prompts.

    A prompt that no longer fits the context with tips ends the copy there.
    """
    episodes = [_rebuild_episode(policy, memory_of(t), t, config) for group in groups for t in group.trajectories]
    copies = iter(await gather_or_cancel(episodes))
    return [TrajectoryGroup(group.task, tuple(islice(copies, len(group.trajectories)))) for group in groups]


async def _rebuild_episode(policy: Policy, memory: Memory | None, trajectory: Trajectory, config: Config) -> Trajectory:
    rereader = ReplayPolicy(policy, trajectory)
    actor = TipsActor(EpisodeContext(rereader, trajectory.task, TEACHER_MODE, trajectory.member, 0, "", config), memory)
    steps: list[Step] = []
    for step in trajectory.steps:
        if not steps:
            actor.start(step.observation)
        decision = await actor.act(step.observation)
        if decision is None:
            break
        steps.append(replace(step, tips=decision.tips, completion=decision.completion))
    read = any(step.tips for step in steps)
    return replace(trajectory, steps=tuple(steps) if read else (), mode=TEACHER_MODE)


def collect_teacher_logprobs(
    teachers: Sequence[TrajectoryGroup], rows: Sequence[Sample], scored: Sequence[Sequence[float]]
) -> list[Array]:
    """Collect the teacher's log-probabilities of the sampled tokens, for each episode.

    `rows` are the training rows of `teachers`, `scored` their (L,) log-probabilities. Returns (n,) for each episode, n
    its sampled tokens as far as it was rebuilt; NaN where the prompt is the student's.
    """
    by_episode: dict[int, list[float]] = {}
    for row, logprobs in zip(rows, scored, strict=True):
        trained = [logprob for logprob, mask in zip(logprobs, row.loss_mask, strict=True) if mask]
        by_episode.setdefault(row.trajectory, []).extend(trained)
    read = [
        [s.completion.prompt_ids != s.plain_prompt_ids for s in t.steps if s.trained for _ in s.completion.token_ids]
        for group in teachers
        for t in group.trajectories
    ]
    return [np.where(tokens, by_episode.get(index, []), np.nan) for index, tokens in enumerate(read)]


@dataclass(frozen=True, slots=True)
class DistillationRow:
    """A training row with the teacher's view of its n trained tokens."""

    sample: Sample
    positions: NDArray[np.intp]  # (n,) of the trained tokens in the row
    advantages: Array  # (n,) of the episode in its group
    weights: Array  # (n,) 1, or the importance weight of a token that older weights sampled
    ratios: Array  # (n,) log pi(y | tips) - log pi(y)
    known: NDArray[np.bool_]  # (n,) whether the token has a teacher

    def build_sample(self, options: OpsdConfig, bound: float = MAX_LOG_RATIO) -> Sample:
        """Return the row with an advantage of its own for each token."""
        signal = add_teacher_signal(self.advantages, self.ratios, self.known, options, bound)
        advantages = np.zeros(len(self.sample.token_ids))
        advantages[self.positions] = self.weights * signal
        return replace(self.sample, advantages=tuple(advantages.tolist()))


def build_distillation_rows(
    samples: Sequence[Sample], weighed: Sequence[Sample], teachers: Sequence[Array]
) -> list[DistillationRow]:
    """Combine each row with its part of the teacher's log-probabilities of its episode (`collect_teacher_logprobs`).

    `samples` have the advantages of their episodes, and the learner's log-probabilities wherever there is a teacher's;
    `weighed` are the same rows to train on, with importance weights as advantages.
    """
    begun: Counter[int] = Counter()  # tokens of the episode in the rows before
    lessons = []
    for plain, sample in zip(samples, weighed, strict=True):
        positions = np.flatnonzero(sample.loss_mask)
        first = begun[sample.trajectory]
        begun[sample.trajectory] += positions.size
        scores = teachers[sample.trajectory][first : begun[sample.trajectory]]
        teacher = np.concatenate([scores, np.full(positions.size - scores.size, np.nan)])
        student, advantages, weights = (
            np.array(numbers, dtype=np.float64)[positions]
            for numbers in (plain.behavior_logprobs, plain.advantages, sample.advantages)
        )
        ratios = log_ratio(teacher, student)
        lessons.append(DistillationRow(sample, positions, advantages, weights, ratios, ~np.isnan(teacher)))
    return lessons


def distillation_metrics(
    lessons: Sequence[DistillationRow], options: OpsdConfig, bound: float = MAX_LOG_RATIO
) -> dict[str, float]:
    """Measure the teacher's view of this iteration's tokens: means over those that have a teacher, 0 of none."""
    ratios, advantages, known = (
        np.concatenate([np.empty(0), *(getattr(lesson, name) for lesson in lessons)])
        for name in ("ratios", "advantages", "known")
    )
    taught = known.astype(bool)
    names = ("taught", "log_ratio", "endorsed", "gated", "signal")
    if not taught.any():
        return dict.fromkeys(names, 0.0)
    ratios, advantages = ratios[taught], advantages[taught]
    speaks = compute_gate(ratios, advantages, options.gate)
    signal = np.abs(compute_teacher_signal(ratios, options, bound) * speaks)
    means = (taught.mean(), ratios.mean(), (ratios > 0).mean(), 1 - speaks.mean(), signal.mean())
    return dict(zip(names, map(float, means), strict=True))


def log_ratio(teacher: ArrayLike, student: ArrayLike) -> Array:
    """Compute the teacher's preference for each token (n,): d = log pi(y | tips) - log pi(y).

    Its negative is the one-sample estimate of KL(student || teacher). NaN in `teacher` is a token without one: d is 0.
    """
    with_tips, without = np.asarray(teacher, dtype=np.float64), np.asarray(student, dtype=np.float64)
    return np.where(np.isnan(with_tips), 0.0, with_tips - without)


def compute_gate(ratios: Array, advantages: Array, gate: str) -> Mask:
    """Compute which tokens (n,) the reward leaves to the teacher, see `OpsdConfig.gate`."""
    if gate == "agree":
        return ratios * advantages >= 0
    return advantages > 0 if gate == "positive" else np.ones(ratios.shape, dtype=bool)


def compute_teacher_signal(ratios: Array, options: OpsdConfig, bound: float = MAX_LOG_RATIO) -> Array:
    """Compute the teacher's addition to the advantage of each token (n,), from its log ratios (n,).

    With c = `options.weight`, and d the log ratio within +- `bound`: sdpo (arXiv 2601.20802, eq. 2),
    opcd (arXiv 2602.12275, eq. 1) and additive (OPID, arXiv 2606.26790) add c d, sdar (arXiv 2605.15155) adds
    c (sigmoid(BETA d) - 1/2). The 1/2 is a baseline: it changes no expectation, and a teacher who agrees with the
    student adds nothing.
    """
    d = np.clip(ratios, -bound, bound)
    if options.form == "sdar":
        d = np.tanh(BETA * d / 2) / 2  # sigmoid(BETA d) - 1/2, which never overflows
    return options.weight * d


def add_teacher_signal(
    advantages: Array, ratios: Array, known: Mask, options: OpsdConfig, bound: float = MAX_LOG_RATIO
) -> Array:
    """Add the teacher's signal to the group's advantage of each token (n,).

    sdpo and opcd: (1 - c) A + signal, so that c = 1 is the paper's and less is the hybrid with GRPO; sdar and additive:
    A + signal. A alone where there is no teacher (`known`), or `compute_gate` keeps it back.
    """
    share = 1.0 if options.is_additive else 1.0 - options.weight
    speaks = known & compute_gate(ratios, advantages, options.gate)
    return np.where(speaks, share * advantages + compute_teacher_signal(ratios, options, bound), advantages)


METHOD = Method(
    "opsd", "OPSD", opsd, trains=True, memory=True, plain=True, colour="#882255", sections={"opsd": OpsdConfig},
    needs_initial_model=lambda config: config.section(OpsdConfig).has_frozen_teacher,
    metrics=(  # means over the sampled tokens that have a teacher
        ("opsd/taught", "share", "sampled tokens that have a teacher",
         "0 in the first iteration (not with `opid`), then near 1"),
        ("opsd/log_ratio", "nats", "mean log-probability with tips less that without", "below 0, towards 0"),
        ("opsd/endorsed", "share", "tokens that the teacher likes better than the student does", "neither 0 nor 1"),
        ("opsd/gated", "share", "tokens that `opsd.gate` withholds from the teacher", "0 with `\"none\"`"),
        ("opsd/signal", "", "mean size of what the teacher adds to the advantage", "0 says that tips change nothing"),
        ("opsd/teacher_tokens", "tokens", "length of the rows with tips: the price of the second scoring", ""),
    ),
)  # fmt: skip

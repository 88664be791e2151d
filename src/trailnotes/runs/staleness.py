"""Correction of samples of older weights (`rollout.max_async_iterations`), or of another engine (`loss.mismatch`).

It compares two policies under one prompt, the one that was acted on, by a bounded ratio of the tokens' probabilities.
EMPO2's own ratio also compares two prompts, with tips and without; bounding that would remove the distillation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from trailnotes.learner.base import ModelLearner
from trailnotes.learner.samples import build_samples
from trailnotes.types import Sample, TrajectoryGroup

MISMATCH_CAP = 3.0  # largest ratio of the learner to another engine that counts (TRL 1.16)
MAX_STALENESS_WEIGHT = 2.0  # largest ratio that counts where older weights sampled a token


class TokenLogprobs(NamedTuple):
    """Log-probabilities of a sampled token under its own prompt, then and now."""

    then: float
    now: float


class Correction(NamedTuple):
    """How the ratio pi_now / pi_then weighs a token."""

    most: float  # largest ratio that counts
    unit: Literal["token", "sequence"] = "token"  # ratio of the token, or the product over its whole episode
    above: Literal["truncate", "mask"] = "truncate"  # above `most` it counts as that, or the token teaches nothing

    def compute_log_ratios(self, tokens: Sequence[TokenLogprobs]) -> list[float]:
        logs = [token.now - token.then for token in tokens]
        return logs if self.unit == "token" else [sum(logs)] * len(logs)

    def is_above(self, log: float) -> bool:
        """Tell whether a log-ratio is above the bound; the ratio of an episode may be too large for a float."""
        return log > math.log(self.most)

    def bound(self, log: float) -> float:
        if not self.is_above(log):
            return math.exp(log)
        return self.most if self.above == "truncate" else 0.0


def correct_samples(
    samples: Sequence[Sample],
    groups: Sequence[TrajectoryGroup],
    learner: ModelLearner,
    *,
    rows: Literal["auto", "step"],
    correction: Correction,
) -> tuple[list[Sample], dict[str, float]]:
    """Weigh tokens of older weights, or of another engine, as if the learner's present weights had sampled them.

    A token's advantage is multiplied by its weight, and its behaviour log-probability becomes that of now: the
    importance weight and the proximal policy of decoupled PPO (arXiv 2110.00641), bounded as in V-trace or, for whole
    episodes, as TRL and verl do for the mismatch of engine and learner.

    Args:
        samples: of `build_samples(groups, ..., rows)`.
        groups: the episodes.
        learner: scores them as they acted.
        rows: as in `build_samples`.
        correction: bound and unit of the weight.

    Returns:
        The rows in their order, and the mean weight, the share of tokens whose ratio is above the bound, the mean
        KL(then || now), by k3, and the mean absolute difference of the log-probabilities in nats.
    """
    acted = [
        TrajectoryGroup(group.task, tuple(replace(t, mode="on_policy_tips") for t in group.trajectories))
        for group in groups
    ]
    as_acted = build_samples(acted, [[0.0] * len(group.trajectories) for group in acted], rows=rows)
    episodes: dict[int, list[TokenLogprobs]] = {}
    for sample, now in zip(as_acted, learner.logprobs(as_acted), strict=True):
        pairs = zip(sample.behavior_logprobs, now, sample.loss_mask, strict=False)
        episodes.setdefault(sample.trajectory, []).extend(TokenLogprobs(a, b) for a, b, trained in pairs if trained)
    ratios = {index: correction.compute_log_ratios(tokens) for index, tokens in episodes.items()}
    weights = {index: [correction.bound(log) for log in logs] for index, logs in ratios.items()}
    left = {index: iter([*zip(tokens, weights[index], strict=True)]) for index, tokens in episodes.items()}
    logs = [token.now - token.then for tokens in episodes.values() for token in tokens]
    size = max(1, len(logs))
    return [_weigh_sample(sample, left[sample.trajectory]) for sample in samples], {
        "weight": sum(map(sum, weights.values())) / size,
        "truncated": sum(correction.is_above(log) for own in ratios.values() for log in own) / size,
        "kl": sum(math.expm1(log) - log for log in logs) / size,
        "difference": sum(map(abs, logs)) / size,
    }


def _weigh_sample(sample: Sample, tokens: Iterator[tuple[TokenLogprobs, float]]) -> Sample:
    behavior, advantages = list(sample.behavior_logprobs), list(sample.advantages)
    for place, trained in enumerate(sample.loss_mask):
        if trained:
            token, weight = next(tokens)
            behavior[place] = token.now
            advantages[place] *= weight
    return replace(sample, behavior_logprobs=tuple(behavior), advantages=tuple(advantages))

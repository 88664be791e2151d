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


class Correction(NamedTuple):
    """How the ratio pi_now / pi_then weighs a token."""

    most: float  # largest ratio that counts
    unit: Literal["token", "sequence"] = "token"  # ratio of the token, or the product over its whole episode
    above: Literal["truncate", "mask"] = "truncate"  # above `most` it counts as that, or the token teaches nothing

    def compute_weights(self, logs: Sequence[float]) -> tuple[list[float], int]:
        """Compute the weights of an episode's tokens from their log-ratios, and how many are above the bound."""
        logs = logs if self.unit == "token" else [sum(logs)] * len(logs)
        bounded = self.most if self.above == "truncate" else 0.0
        is_above = [log > math.log(self.most) for log in logs]  # the ratio may be too large for a float
        return [bounded if b else math.exp(log) for log, b in zip(logs, is_above, strict=True)], sum(is_above)


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

    `samples` are of `build_samples(groups, ..., rows)`. Returns them in their order, and the mean weight, the share of
    tokens whose ratio is above the bound, the mean KL(then || now), by k3, and the mean absolute difference of the
    log-probabilities in nats.
    """
    acted = [
        TrajectoryGroup(group.task, tuple(replace(t, mode="on_policy_tips") for t in group.trajectories))
        for group in groups
    ]
    as_acted = build_samples(acted, [[0.0] * len(group.trajectories) for group in acted], rows=rows)
    episodes: dict[int, list[tuple[float, float]]] = {}  # of each token: log-probability now, log-ratio now to then
    for sample, logprobs in zip(as_acted, learner.logprobs(as_acted), strict=True):
        tokens = zip(sample.behavior_logprobs, logprobs, sample.loss_mask, strict=False)
        episodes.setdefault(sample.trajectory, []).extend((now, now - then) for then, now, trained in tokens if trained)
    weighed = {index: correction.compute_weights([log for _, log in tokens]) for index, tokens in episodes.items()}
    left = {index: iter([*zip(tokens, weighed[index][0], strict=True)]) for index, tokens in episodes.items()}
    logs = [log for tokens in episodes.values() for _, log in tokens]
    size = max(1, len(logs))
    return [_weigh_sample(sample, left[sample.trajectory]) for sample in samples], {
        "weight": sum(sum(weights) for weights, _ in weighed.values()) / size,
        "truncated": sum(number for _, number in weighed.values()) / size,
        "kl": sum(math.expm1(log) - log for log in logs) / size,
        "difference": sum(map(abs, logs)) / size,
    }


def _weigh_sample(sample: Sample, tokens: Iterator[tuple[tuple[float, float], float]]) -> Sample:
    behavior, advantages = list(sample.behavior_logprobs), list(sample.advantages)
    for place, trained in enumerate(sample.loss_mask):
        if trained:
            (behavior[place], _), weight = next(tokens)
            advantages[place] *= weight
    return replace(sample, behavior_logprobs=tuple(behavior), advantages=tuple(advantages))

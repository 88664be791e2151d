"""Correction of samples of older weights (`rollout.max_async_iterations`), or of another engine (`loss.mismatch`).

It compares two policies under one prompt, the one that was acted on, by a bounded ratio of the tokens' probabilities.
EMPO2's own ratio also compares two prompts, with tips and without; bounding that would remove the distillation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from trailnotes.learner.samples import build_samples
from trailnotes.types import TrajectoryGroup

if TYPE_CHECKING:
    from trailnotes.learner.base import ModelLearner
    from trailnotes.types import Sample


class TokenLogprobs(NamedTuple):
    """Log-probabilities of a sampled token under its own prompt, then and now."""

    then: float
    now: float


MISMATCH_CAP = 3.0  # largest ratio of the learner to another engine that counts (TRL 1.16)
MAX_STALENESS_WEIGHT = 2.0  # largest ratio that counts where older weights sampled a token


class Correction(NamedTuple):
    """How the ratio pi_now / pi_then weighs a token."""

    most: float  # largest ratio that counts
    unit: Literal["token", "sequence"] = "token"  # ratio of the token, or the product over its whole episode
    above: Literal["truncate", "mask"] = "truncate"  # above `most` it counts as that, or the token teaches nothing

    def compute_log_ratios(self, tokens: Sequence[TokenLogprobs]) -> list[float]:
        """Compute log(pi_now / pi_then) for each token of an episode, by `unit`."""
        logs = [token.now - token.then for token in tokens]
        return logs if self.unit == "token" else [sum(logs)] * len(logs)

    def bound(self, log: float) -> float:
        """Compute the weight of a token from its log-ratio."""
        if not self.is_above(log):
            return math.exp(log)
        return self.most if self.above == "truncate" else 0.0

    def is_above(self, log: float) -> bool:
        """Tell whether a token's ratio is above `most`; of a whole episode it may be too large for a float."""
        return log > math.log(self.most)


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
    tokens = _score_tokens(groups, learner, rows)
    ratios = {index: correction.compute_log_ratios(found) for index, found in tokens.items()}
    weights = {index: [correction.bound(log) for log in logs] for index, logs in ratios.items()}
    left: Mapping[int, Iterator[tuple[TokenLogprobs, float]]] = {
        index: iter(list(zip(found, weights[index], strict=True))) for index, found in tokens.items()
    }
    logs = [t.now - t.then for found in tokens.values() for t in found]
    size = max(1, len(logs))
    return [_weigh_sample(sample, left[sample.trajectory]) for sample in samples], {
        "weight": sum(map(sum, weights.values())) / size,
        "truncated": sum(correction.is_above(log) for found in ratios.values() for log in found) / size,
        "kl": sum(math.expm1(log) - log for log in logs) / size,
        "difference": sum(map(abs, logs)) / size,
    }


def _score_tokens(
    groups: Sequence[TrajectoryGroup], learner: ModelLearner, rows: Literal["auto", "step"]
) -> dict[int, list[TokenLogprobs]]:
    acted = [
        TrajectoryGroup(group.task, tuple(replace(t, mode="on_policy_tips") for t in group.trajectories))
        for group in groups
    ]
    as_acted = build_samples(acted, [[0.0] * len(group.trajectories) for group in acted], rows=rows)
    tokens: dict[int, list[TokenLogprobs]] = {}
    for sample, now in zip(as_acted, learner.logprobs(as_acted), strict=True):
        found = tokens.setdefault(sample.trajectory, [])
        found += [
            TokenLogprobs(sample.behavior_logprobs[i], now[i]) for i, trained in enumerate(sample.loss_mask) if trained
        ]
    return tokens


def _weigh_sample(sample: Sample, tokens: Iterator[tuple[TokenLogprobs, float]]) -> Sample:
    behavior, advantages = list(sample.behavior_logprobs), list(sample.advantages)
    for place, trained in enumerate(sample.loss_mask):
        if trained:
            token, weight = next(tokens)
            behavior[place] = token.now
            advantages[place] *= weight
    return replace(sample, behavior_logprobs=tuple(behavior), advantages=tuple(advantages))

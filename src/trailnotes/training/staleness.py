"""Correction of samples that older weights played (`rollout.max_async_iterations`).

It compares two weights under one prompt, the one that was acted on, by a truncated ratio of the token's probabilities.
EMPO2's own ratio also compares two prompts, with tips and without; truncating that would remove the distillation.
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


def correct_staleness(
    samples: Sequence[Sample],
    groups: Sequence[TrajectoryGroup],
    learner: ModelLearner,
    *,
    rows: Literal["auto", "step"],
    most: float,
) -> tuple[list[Sample], dict[str, float]]:
    """Weigh tokens of older weights as if the present weights had sampled them.

    A token's advantage is multiplied by w = min(most, pi_now / pi_then), and its behaviour log-probability becomes that
    of now: the importance weight and the proximal policy of decoupled PPO (arXiv 2110.00641), truncated as in V-trace.

    Args:
        samples: of `build_samples(groups, ..., rows)`.
        groups: the episodes.
        learner: scores them as they acted.
        rows: as in `build_samples`.
        most: bound of the weight.

    Returns:
        The rows in their order, and the mean weight, the share of truncated tokens, and the mean KL(then || now), by
        k3.
    """
    tokens = _score_tokens(groups, learner, rows)
    weights = {index: [min(most, math.exp(t.now - t.then)) for t in found] for index, found in tokens.items()}
    left: Mapping[int, Iterator[tuple[TokenLogprobs, float]]] = {
        index: iter(list(zip(found, weights[index], strict=True))) for index, found in tokens.items()
    }
    everything = [token for found in tokens.values() for token in found]
    size = max(1, len(everything))
    return [_weigh_sample(sample, left[sample.trajectory]) for sample in samples], {
        "weight": sum(map(sum, weights.values())) / size,
        "truncated": sum(math.exp(t.now - t.then) > most for t in everything) / size,
        "kl": sum(math.expm1(t.now - t.then) - (t.now - t.then) for t in everything) / size,
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

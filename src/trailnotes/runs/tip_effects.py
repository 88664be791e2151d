"""What tips change in the actions of their readers, from the log-probabilities of an update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import expm1, fsum
from typing import Final

from trailnotes.memory.tip_stats import TipEffect, normalize_score
from trailnotes.types import Sample, Trajectory, TrajectoryGroup

SUCCESS_THRESHOLD: Final = 0.5  # of what an episode can earn: only successful episodes show what a tip teaches


def estimate_tip_effects(
    groups: Sequence[TrajectoryGroup], off_policy: Sequence[Sample], tip_free: Sequence[Sequence[float]]
) -> list[TipEffect]:
    """Estimate the effect of each tip in each successful episode that read it, in the order of the episodes.

    log p(actions since the tip appeared | with all tips) - log p(the same | without any), in nats: 0 says that the
    policy acts the same without them. All tips of an episode share it.

    Args:
        groups: the episodes of an iteration.
        off_policy: their rows without tips, whose `behavior_logprobs` are those with tips.
        tip_free: (L,) for each of these rows, the log-probabilities of the same weights without tips.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    nats: dict[int, list[float]] = {}
    for row, alone in zip(off_policy, tip_free, strict=True):
        tokens = zip(row.behavior_logprobs, alone, row.loss_mask, strict=True)
        nats.setdefault(row.trajectory, []).extend(acted - free for acted, free, trained in tokens if trained)
    return [
        effect
        for index, differences in sorted(nats.items())
        if normalize_score(trajectories[index]) >= SUCCESS_THRESHOLD
        for effect in _iter_tip_effects(trajectories[index], differences)
    ]


def estimate_reliance(off_policy: Sequence[Sample], tip_free: Sequence[Sequence[float]]) -> float:
    """Estimate KL(with tips || without) from the sampled tokens by k3, in nats a token, 0 of none.

    Arguments are as of `estimate_tip_effects`.
    """
    further: list[float] = []
    for row, alone in zip(off_policy, tip_free, strict=True):
        tokens = zip(row.behavior_logprobs, alone, row.loss_mask, strict=True)
        further += [free - acted for acted, free, trained in tokens if trained]
    return fsum(expm1(nats) - nats for nats in further) / max(1, len(further))


def _iter_tip_effects(trajectory: Trajectory, nats: Sequence[float]) -> Iterator[TipEffect]:
    sizes = [len(step.completion.token_ids) if step.trained else 0 for step in trajectory.steps]
    starts = [0, *accumulate(sizes)]
    assert starts[-1] == len(nats), "rows hold each trained token once"
    seen = set[int]()
    for step, start in zip(trajectory.steps, starts, strict=False):
        for tip in step.tips:
            if tip.id is not None and tip.id not in seen:
                seen.add(tip.id)
                yield TipEffect(tip.id, sum(nats[start:]))

"""How much likelier tips made what their readers did: by that a policy shows what it has learned from them by heart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from trailnotes.memory.worth import Lead, earned_by
from trailnotes.types import Sample, Trajectory, TrajectoryGroup

WELL: Final = 0.5  # of what an episode can earn: what others do is no word on what a tip teaches


def leads_of(
    groups: Sequence[TrajectoryGroup], off_policy: Sequence[Sample], tip_free: Sequence[Sequence[float]]
) -> list[Lead]:
    """A tip's lead in each episode that read it and did well, in the order of the episodes.

    log p(what was done since the tip was shown | with all tips) - log p(the same | without any), in nats. Where its
    actions were sampled with the tips, the expected value is KL(with || without), which no tip can lower: 0 says that
    the policy does the same without them. All tips of an episode share it, so that none is taken for learned beside one
    that is not.

    Args:
        groups: the episodes of an iteration.
        off_policy: their rows without tips, whose `behavior_logprobs` are those with tips.
        tip_free: of each of these rows (L,) what the same weights say without tips.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    nats: dict[int, list[float]] = {}
    for row, alone in zip(off_policy, tip_free, strict=True):
        tokens = zip(row.behavior_logprobs, alone, row.loss_mask, strict=True)
        nats.setdefault(row.trajectory, []).extend(acted - free for acted, free, trained in tokens if trained)
    return [
        lead
        for index, differences in sorted(nats.items())
        if earned_by(trajectories[index]) >= WELL
        for lead in _leads(trajectories[index], differences)
    ]


def reliance_of(off_policy: Sequence[Sample], tip_free: Sequence[Sequence[float]]) -> float:
    """How far the policy with tips is from itself without, over the tokens of these rows; arguments as of `leads_of`.

    Returns:
        KL(with || without), estimated from the sampled tokens by k3: nats a token, 0 of none.
    """
    further = [
        free - acted
        for row, alone in zip(off_policy, tip_free, strict=True)
        for acted, free, trained in zip(row.behavior_logprobs, alone, row.loss_mask, strict=True)
        if trained
    ]
    return math.fsum(math.expm1(nats) - nats for nats in further) / max(1, len(further))


def _leads(trajectory: Trajectory, nats: Sequence[float]) -> Iterator[Lead]:
    """Of each tip of an episode; `nats` (n,) of all its sampled tokens."""
    sizes = [len(step.completion.token_ids) for step in trajectory.steps]
    starts = [0, *accumulate(sizes)]
    assert starts[-1] == len(nats), "rows hold each sampled token once"
    seen = set[int]()
    for step, start in zip(trajectory.steps, starts, strict=False):
        for tip in step.tips:
            if tip.id is not None and tip.id not in seen:
                seen.add(tip.id)
                yield Lead(tip.id, sum(nats[start:]))

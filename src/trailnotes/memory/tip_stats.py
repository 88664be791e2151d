"""What a tip did for those who read it, and what follows from that for others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import exp, expm1, fsum
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trailnotes.types import Sample, Trajectory, TrajectoryGroup

Numbers = npt.NDArray[Any]
SUCCESS_THRESHOLD: Final = 0.5  # of what an episode can earn: what others do is no word on what a tip teaches
PRIOR_COUNT = 4  # readers who gained nothing, that every tip is taken to have had before it is retired for its worth


class TipExposure(NamedTuple):
    """One episode that was shown one tip."""

    tip: int
    earned: float  # by the episode, 0 to 1
    gained: float | None  # that, less the mean of those of its group that were not shown the tip; None for nobody


class TipEffect(NamedTuple):
    """What a tip changed in one episode that was shown it."""

    tip: int
    nats: float  # log p(what was done | with tips) - log p(the same | without any)


class ReaderStats(NamedTuple):
    """All episodes that were shown a tip."""

    shown: int  # how many
    earned: float  # together, each 0 to 1
    compared: int  # of how many a member of their group was not shown the tip
    gained: float  # by these together, each -1 to 1, over the mean of such members
    used: int  # number of the write that counted the last of them
    measured: int = 0  # of how many, who did well, the actions were scored without tips, too
    lead: float = 0.0  # nats by which tips made these actions likelier: a running mean, see `TipStore.measure`

    @property
    def worth(self) -> float:
        """See `mean_gain`."""
        return float(mean_gain(np.array(self.compared), np.array(self.gained)))

    @property
    def tip_free_ratio(self) -> float:
        """exp(-lead), 0 to 1: how often the policy does without tips what these readers did; 1: as often as with."""
        return exp(-max(0.0, self.lead))


def compute_exposures(episodes: Iterable[Trajectory]) -> Iterator[TipExposure]:
    """Who read what. A tip counts once in an episode, however often it was shown there.

    Args:
        episodes: of one batch, those without tips among them. Episodes of one task are one group.
    """
    groups: dict[str, list[tuple[set[int], float]]] = {}
    for episode in episodes:
        ids = {tip.id for step in episode.steps for tip in step.tips if tip.id is not None}
        groups.setdefault(episode.task.id, []).append((ids, normalize_score(episode)))
    for group in groups.values():
        for ids, earned in group:
            for tip in sorted(ids):
                others = [value for shown, value in group if tip not in shown]
                yield TipExposure(tip, earned, earned - fmean(others) if others else None)


def normalize_score(episode: Trajectory) -> float:
    """What a reader's episode is worth to its tips: 1 if it reached the goal, else its share of the highest score."""
    if episode.success:
        return 1.0
    return min(1.0, max(0.0, episode.score / episode.max_score)) if episode.max_score > 0 else 0.0


def estimate_tip_effects(
    groups: Sequence[TrajectoryGroup], off_policy: Sequence[Sample], tip_free: Sequence[Sequence[float]]
) -> list[TipEffect]:
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
        if normalize_score(trajectories[index]) >= SUCCESS_THRESHOLD
        for lead in _iter_tip_effects(trajectories[index], differences)
    ]


def estimate_reliance(off_policy: Sequence[Sample], tip_free: Sequence[Sequence[float]]) -> float:
    """How far the policy with tips is from itself without, over the tokens of these rows; arguments as of `estimate_tip_effects`.

    Returns:
        KL(with || without), estimated from the sampled tokens by k3: nats a token, 0 of none.
    """
    further = [
        free - acted
        for row, alone in zip(off_policy, tip_free, strict=True)
        for acted, free, trained in zip(row.behavior_logprobs, alone, row.loss_mask, strict=True)
        if trained
    ]
    return fsum(expm1(nats) - nats for nats in further) / max(1, len(further))


def _iter_tip_effects(trajectory: Trajectory, nats: Sequence[float]) -> Iterator[TipEffect]:
    """Of each tip of an episode; `nats` (n,) of all its sampled tokens."""
    sizes = [len(step.completion.token_ids) for step in trajectory.steps]
    starts = [0, *accumulate(sizes)]
    assert starts[-1] == len(nats), "rows hold each sampled token once"
    seen = set[int]()
    for step, start in zip(trajectory.steps, starts, strict=False):
        for tip in step.tips:
            if tip.id is not None and tip.id not in seen:
                seen.add(tip.id)
                yield TipEffect(tip.id, sum(nats[start:]))


def mean_gain(compared: Numbers, gained: Numbers) -> Numbers:
    """W_i = gained_i / (1 + compared_i), -1 to 1: what readers gained, as if one more had come who gained nothing.

    So what nobody read is between what helped and what misled.

    Args:
        compared: (n,) readers of each tip whom a member of their group can be compared with.
        gained: (n,) what these earned more than such members, together.

    Returns:
        (n,)
    """
    gains: Numbers = gained / (1.0 + compared)
    return gains


def shrunk_gain(compared: Numbers, gained: Numbers) -> Numbers:
    """gained_i / (PRIOR + compared_i): the worth that a tip is retired by; arguments as of `mean_gain`.

    A reader's gain varies by about one half, what tips are worth by about a quarter, so that a mean over readers is
    best drawn towards 0 as if (1/2)^2 / (1/4)^2 = 4 more had gained nothing (a normal mean with a normal prior).
    One unlucky reader costs a tip a fifth at most, and one that nobody read outlasts all that mislead.
    """
    gains: Numbers = gained / (float(PRIOR_COUNT) + compared)
    return gains


def compute_ucb_scores(shown: Numbers, earned: Numbers, exploration: float) -> Numbers:
    """U_i = (1/2 + earned_i) / n_i + exploration * sqrt(ln N / n_i), with n_i = 1 + shown_i and N the sum of all n_i.

    What a tip may be worth to whoever reads it: the mean of what its readers earned, and a bonus that falls with their
    number and grows slowly with that of all others' (UCB1: Auer et al. 2002, theorem 1). Each tip begins as if one
    reader had come half the way, as in RetroAgent (arXiv 2603.08561; release 90eb71f).

    Args:
        shown: (n,) episodes that were shown each tip of a task.
        earned: (n,) what these earned together, each 0 to 1.
        exploration: weight of the bonus.

    Returns:
        (n,)
    """
    counts = 1.0 + shown
    bounds: Numbers = (0.5 + earned) / counts + exploration * np.sqrt(np.log(max(1.0, counts.sum())) / counts)
    return bounds

"""Statistics of what a tip did for its readers, and the scores that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import exp
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trailnotes.types import Trajectory

Doubles = npt.NDArray[np.float64]


class TipExposure(NamedTuple):
    tip: int
    earned: float  # by the episode, 0 to 1
    gained: float | None  # that, less the mean of its group without the tip; None where all have read it


class TipEffect(NamedTuple):
    """The change that a tip made in one episode that read it."""

    tip: int
    nats: float  # log p(what was done | with tips) - log p(the same | without any)


class ReaderStats(NamedTuple):
    """The totals over all episodes that read a tip."""

    shown: int  # how many
    earned: float  # together, each 0 to 1
    compared: int  # of how many a member of their group did not read the tip
    gained: float  # by these together, each -1 to 1, over the mean of such members
    used: int  # number of the write that counted the last of them
    measured: int = 0  # of how many, who did well, the actions were scored without tips, too
    lead: float = 0.0  # nats by which tips made these actions likelier: a running mean, see `TipStore.record_effects`

    @property
    def worth(self) -> float:
        return float(mean_gain(np.array(self.compared), np.array(self.gained)))

    @property
    def tip_free_ratio(self) -> float:
        """Return exp(-lead), 0 to 1: how often the policy without tips acts as these readers did; 1: as often."""
        return exp(-max(0.0, self.lead))


def compute_exposures(episodes: Iterable[Trajectory]) -> Iterator[TipExposure]:
    """Yield the exposures of one batch, whose episodes without tips are included; episodes of one task are one group.

    A tip counts once in an episode, however often it appears there.
    """
    groups: dict[str, list[tuple[set[int], float]]] = {}
    for episode in episodes:
        ids = {tip.id for step in episode.steps for tip in step.tips if tip.id is not None}
        groups.setdefault(episode.task.id, []).append((ids, normalize_score(episode)))
    for group in groups.values():
        for ids, earned in group:
            yield from compare_reader(ids, earned, group)


def compare_reader(
    shown: Iterable[int], earned: float, attempts: Sequence[tuple[set[int], float]]
) -> Iterator[TipExposure]:
    """Yield the exposures of one attempt, each compared with those `attempts` (tips, earnings) that lack its tip."""
    for tip in sorted(set(shown)):
        others = [value for ids, value in attempts if tip not in ids]
        yield TipExposure(tip, earned, earned - fmean(others) if others else None)


def normalize_score(episode: Trajectory) -> float:
    return compute_credit(episode.score, episode.max_score, success=episode.success)


def compute_credit(score: float, max_score: float, *, success: bool) -> float:
    """Compute what an attempt earned for its tips: 1 on success, else its share of the highest score, 0 to 1."""
    if success:
        return 1.0
    return min(1.0, max(0.0, score / max_score)) if max_score > 0 else 0.0


def mean_gain(compared: Doubles, gained: Doubles) -> Doubles:
    """Compute W_i = gained_i / (1 + compared_i), -1 to 1: the mean gain with one more reader of no gain, (n,).

    `compared` counts the readers of each tip that a member of their group can be compared with, `gained` sums their
    gains over such members. So an unread tip ranks between helpful and misleading ones.
    """
    return gained / (1.0 + compared)


def compute_gain_bounds(compared: Doubles, gained: Doubles) -> Doubles:
    """Compute W_i + 1 / sqrt(n_i), n_i = 1 + compared_i and W_i as `mean_gain`, (n,): the most that is likely.

    A gain varies by about one half, so this is two standard errors above the mean. Below 0 the tip does harm, with a
    probability of about .975.
    """
    return mean_gain(compared, gained) + 1.0 / np.sqrt(1.0 + compared)


def compute_ucb_scores(shown: Doubles, earned: Doubles, exploration: float) -> Doubles:
    """Compute U_i = (1/2 + earned_i) / n_i + exploration * sqrt(ln N / n_i), n_i = 1 + shown_i, N the sum of n_i, (n,).

    The mean earnings (each 0 to 1) of a tip's readers, and a bonus that falls with their number and grows slowly with
    that of all others' (UCB1: Auer et al. 2002, theorem 1). Each tip begins as if one reader had come half the way, as
    in RetroAgent (arXiv 2603.08561; release 90eb71f).
    """
    counts = 1.0 + shown
    bounds: Doubles = (0.5 + earned) / counts + exploration * np.sqrt(np.log(max(1.0, counts.sum())) / counts)
    return bounds

"""What a tip did for those who read it, and what follows from that for others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trailnotes.types import Trajectory

Numbers = npt.NDArray[Any]
PRIOR = 4  # readers who gained nothing, that every tip is taken to have had before it is retired for its worth


class Reading(NamedTuple):
    """One episode that was shown one tip."""

    tip: int
    earned: float  # by the episode, 0 to 1
    gained: float | None  # that, less the mean of those of its group that were not shown the tip; None for nobody


class Lead(NamedTuple):
    """What a tip changed in one episode that was shown it."""

    tip: int
    nats: float  # log p(what was done | with tips) - log p(the same | without any)


class Readers(NamedTuple):
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
    def anyway(self) -> float:
        """exp(-lead), 0 to 1: how often the policy does without tips what these readers did; 1: as often as with."""
        return exp(-max(0.0, self.lead))


def readings_of(episodes: Iterable[Trajectory]) -> Iterator[Reading]:
    """Who read what. A tip counts once in an episode, however often it was shown there.

    Args:
        episodes: of one batch, those without tips among them. Episodes of one task are one group.
    """
    groups: dict[str, list[tuple[set[int], float]]] = {}
    for episode in episodes:
        ids = {tip.id for step in episode.steps for tip in step.tips if tip.id is not None}
        groups.setdefault(episode.task.id, []).append((ids, earned_by(episode)))
    for group in groups.values():
        for ids, earned in group:
            for tip in sorted(ids):
                others = [value for shown, value in group if tip not in shown]
                yield Reading(tip, earned, earned - fmean(others) if others else None)


def earned_by(episode: Trajectory) -> float:
    """What a reader's episode is worth to its tips: 1 if it reached the goal, else its share of the highest score."""
    if episode.success:
        return 1.0
    return min(1.0, max(0.0, episode.score / episode.max_score)) if episode.max_score > 0 else 0.0


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


def cautious_gain(compared: Numbers, gained: Numbers) -> Numbers:
    """gained_i / (PRIOR + compared_i): the worth that a tip is retired by; arguments as of `mean_gain`.

    A reader's gain varies by about one half, what tips are worth by about a quarter, so that a mean over readers is
    best drawn towards 0 as if (1/2)^2 / (1/4)^2 = 4 more had gained nothing (a normal mean with a normal prior).
    One unlucky reader costs a tip a fifth at most, and one that nobody read outlasts all that mislead.
    """
    gains: Numbers = gained / (float(PRIOR) + compared)
    return gains


def upper_bounds(shown: Numbers, earned: Numbers, exploration: float) -> Numbers:
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

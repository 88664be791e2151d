"""Intervals for tables and curves: pure numpy, seeded, so that a table is the same whenever it is printed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval, in the unit of the values."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def wilson(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion; for independent trials. Source: Wilson (1927), JASA 22."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(
            f"{successes} successes of {trials} trials is impossible: trials must be at least 1, successes 0 to trials"
        )
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return Interval(p, max(0.0, centre - half), min(1.0, centre + half))


def bootstrap(
    values: Sequence[float] | NDArray[np.float64],
    levels: Sequence[Sequence[object]],
    *,
    confidence: float = 0.95,
    num_resamples: int = 4000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of the mean, resampled level by level, since values of one cluster move together.

    Args:
        values: (n,) one value an episode, or the mean of one game.
        levels: the clusters from the outermost in, each with n labels, e.g. ``[seed of run, family, game]``. An inner
            label only counts inside its outer cluster. With no level, single values are resampled.
        confidence: of the interval.
        num_resamples: bootstrap replications.
        seed: of the resampling.

    The mean is that of the nested means: every cluster of a level weighs the same.
    """
    means = resampled_means(values, levels, num_resamples=num_resamples, seed=seed)
    tree = _nest(np.asarray(values, dtype=np.float64), [list(level) for level in levels])
    return percentile_interval(_nested_mean(tree), means, confidence)


def resampled_means(
    values: Sequence[float] | NDArray[np.float64],
    levels: Sequence[Sequence[object]],
    *,
    fixed: Sequence[int] = (),
    num_resamples: int = 4000,
    seed: int = 0,
) -> NDArray[np.float64]:
    """(num_resamples,) nested means as `bootstrap` draws them, to be combined with others before the interval.

    Args:
        values: as in `bootstrap`.
        levels: as in `bootstrap`.
        fixed: indices of levels whose clusters are all taken, once each: the tasks of a panel are no sample of tasks.
        num_resamples: bootstrap replications.
        seed: of the resampling.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("no values to average: the panel is empty")
    tree = _nest(array, [list(level) for level in levels])
    drawn = tuple(index not in fixed for index in range(len(levels)))
    return _resample(tree, np.random.default_rng(seed), num_resamples, drawn)


def percentile_interval(mean: float, means: NDArray[np.float64], confidence: float = 0.95) -> Interval:
    """`mean` with the middle share `confidence` of its bootstrap replications `means` (n,)."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean, float(low), float(high))


def _nest(values: NDArray[np.float64], levels: list[list[object]]) -> object:
    """A tree of clusters whose leaves are arrays of values."""
    if not levels:
        return values
    labels, inner = levels[0], levels[1:]
    if len(labels) != len(values):
        raise ValueError(f"{len(labels)} labels for {len(values)} values")
    clusters = []
    for label in dict.fromkeys(labels):
        index = [i for i, other in enumerate(labels) if other == label]
        clusters.append(_nest(values[index], [[level[i] for i in index] for level in inner]))
    return clusters


def _nested_mean(tree: object) -> float:
    if isinstance(tree, list):
        return float(np.mean([_nested_mean(child) for child in tree]))
    return float(np.mean(np.asarray(tree)))


def _resample(tree: object, rng: np.random.Generator, count: int, drawn: tuple[bool, ...]) -> NDArray[np.float64]:
    """(count,) means of trees resampled with replacement at every level that is `drawn`, and in the leaves."""
    if not isinstance(tree, list):
        leaf = np.asarray(tree, dtype=np.float64)
        if leaf.size == 1:
            return np.full(count, leaf[0])
        means: NDArray[np.float64] = leaf[rng.integers(leaf.size, size=(count, leaf.size))].mean(axis=1)
        return means
    if not drawn[0]:
        whole: NDArray[np.float64] = np.mean([_resample(child, rng, count, drawn[1:]) for child in tree], axis=0)
        return whole
    picks = rng.integers(len(tree), size=(count, len(tree)))
    total = np.zeros(count)
    for position in range(len(tree)):  # a cluster picked twice is resampled afresh each time
        for child_index, child in enumerate(tree):
            chosen = np.flatnonzero(picks[:, position] == child_index)
            if chosen.size:
                total[chosen] += _resample(child, rng, chosen.size, drawn[1:])
    return total / len(tree)

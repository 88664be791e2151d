"""How well a critic tells steps of won episodes from steps of lost ones: areas under the ROC curve, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trailnotes.reporting.intervals import Interval, compute_percentile_interval

Floats = NDArray[np.float64]
BOOTSTRAP_CHUNK = 50  # resamples whose weights exist at the same time


def estimate_auc(
    scores: Sequence[float],
    labels: Sequence[bool],
    episodes: Sequence[object],
    groups: Sequence[object] | None = None,
    *,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Interval | None:
    """The share of pairs (won step, lost step) in which the won one scores higher; a tie counts half.

    Args:
        scores: (n,) what the critic says of each step.
        labels: (n,) whether the step's episode was won.
        episodes: (n,) labels of the clusters that are resampled: the steps of an episode stand or fall together.
        groups: (n,) only pairs within one group count; None compares all with all.
        confidence: of the percentile interval.
        num_resamples: bootstrap replications over episodes; those without a pair are left out.
        seed: of the resampling.

    Returns:
        The area under the ROC curve with its interval, or None where there is no pair.
    """
    values, won = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
    if won.all() or not won.any():
        return None
    member, group = _encode_labels(episodes), _encode_labels(groups or [0] * len(values))
    parts = [np.flatnonzero(group == number) for number in range(group.max() + 1)]

    def area(weights: Floats) -> Floats:
        counts = [_count_pairs(values[part], won[part], weights[:, part]) for part in parts]
        above, pairs = (np.sum(column, axis=0) for column in zip(*counts, strict=True))
        return np.asarray(above[pairs > 0] / pairs[pairs > 0], dtype=np.float64)

    whole = area(np.ones((1, len(values))))
    if not whole.size:
        return None
    rng, count = np.random.default_rng(seed), int(member.max()) + 1
    areas = []
    for start in range(0, num_resamples, BOOTSTRAP_CHUNK):
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=min(BOOTSTRAP_CHUNK, num_resamples - start))
        areas.append(area(drawn[:, member].astype(np.float64)))
    found = np.concatenate(areas)
    return compute_percentile_interval(float(whole[0]), found if found.size else np.array([0.0, 1.0]), confidence)


def _encode_labels(labels: Sequence[object]) -> NDArray[np.intp]:
    """Labels as numbers from 0, in the order of their first appearance."""
    places: dict[object, int] = {}
    return np.array([places.setdefault(label, len(places)) for label in labels], dtype=np.intp)


def _count_pairs(scores: Floats, won: NDArray[np.bool_], weights: Floats) -> tuple[Floats, Floats]:
    """Pairs in which the won step stands above (ties count half), and all pairs; weights (R, n) -> (R,), (R,)."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])
    up = np.add.reduceat(weights[:, order] * won[order], starts, axis=1)  # (R, distinct scores)
    down = np.add.reduceat(weights[:, order] * ~won[order], starts, axis=1)
    below = np.cumsum(down, axis=1) - down
    return (up * (below + down / 2)).sum(axis=1), up.sum(axis=1) * down.sum(axis=1)

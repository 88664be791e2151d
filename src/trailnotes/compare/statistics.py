"""What may be said of methods that were played with a few seeds each: intervals, and differences that they allow.

The interquartile mean and its stratified bootstrap are those of "Deep Reinforcement Learning at the Edge of the
Statistical Precipice" (Agarwal et al. 2021, arXiv 2108.13264). Its library, rliable, brings pandas, seaborn and
statsmodels for these few lines, which the base install does without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trailnotes.reporting.intervals import Interval, bootstrap, percentile_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONFIDENCE = 0.95
Values = Mapping[int, Mapping[str, float]]  # seed -> game -> value, the mean of its episodes
Call = Literal["higher", "lower", ""]

MEAN_METHOD = (
    f"Intervals: percentile bootstrap over seeds, then families, then games, {CONFIDENCE:.0%}; every seed weighs the "
    "same, as does every family within it."
)
IQM_METHOD = (
    "IQM: interquartile mean over seeds and families (the mean of the middle half of their success rates), with the "
    "stratified bootstrap of Agarwal et al. 2021 (arXiv 2108.13264): within each family the seeds are resampled."
)
DIFFERENCE_METHOD = (
    "Differences are paired by seed and game and resampled in the same way. One is called higher or lower only where "
    "its interval excludes 0; no correction is made for the number of differences."
)


def pooled(values: Values, families: Mapping[str, str]) -> Interval:
    """Mean and interval over seeds, families and games.

    Args:
        values: of one method; at least one.
        families: game -> its family.
    """
    rows = [(seed, families[game], value) for seed, games in values.items() for game, value in games.items()]
    levels: list[list[object]] = [[row[0] for row in rows], [row[1] for row in rows]]
    return bootstrap([row[2] for row in rows], levels, confidence=CONFIDENCE)


def interquartile_mean(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of the middle half along the last axis: (..., n) -> (...); floor(n / 4) are cut at either end."""
    cut = scores.shape[-1] // 4
    ordered = np.sort(scores, axis=-1)
    middle: NDArray[np.float64] = ordered[..., cut : scores.shape[-1] - cut].mean(axis=-1)
    return middle


def iqm(values: Values, families: Mapping[str, str], *, num_resamples: int = 4000, seed: int = 0) -> Interval | None:
    """Interquartile mean of the seeds' means in each family, resampled within the families.

    Returns:
        None where not every seed has played every family: there is no matrix to take it of.
    """
    names = list(dict.fromkeys(families[game] for games in values.values() for game in games))
    matrix = [[_mean_of(games, families, name) for name in names] for games in values.values()]  # (seeds, families)
    if any(mean is None for row in matrix for mean in row):
        return None
    scores = np.asarray(matrix, dtype=np.float64)
    runs, strata = scores.shape
    picks = np.random.default_rng(seed).integers(runs, size=(num_resamples, runs, strata))
    drawn = scores[picks, np.arange(strata)].reshape(num_resamples, -1)
    return percentile_interval(float(interquartile_mean(scores.reshape(-1))), interquartile_mean(drawn), CONFIDENCE)


def _mean_of(games: Mapping[str, float], families: Mapping[str, str], name: str) -> float | None:
    own = [value for game, value in games.items() if families[game] == name]
    return float(np.mean(own)) if own else None


@dataclass(frozen=True, slots=True)
class Difference:
    """A method less the baseline, on the seeds and games that both have played."""

    interval: Interval
    num_seeds: int
    num_pairs: int

    @property
    def call(self) -> Call:
        """What the interval allows to say."""
        if self.interval.low > 0:
            return "higher"
        return "lower" if self.interval.high < 0 else ""


def paired(values: Values, baseline: Values, families: Mapping[str, str]) -> Difference | None:
    """The difference to the baseline, paired by seed and game; None where they have nothing in common."""
    common = {
        seed: {game: value - baseline[seed][game] for game, value in games.items() if game in baseline[seed]}
        for seed, games in values.items()
        if seed in baseline
    }
    pairs = {seed: games for seed, games in common.items() if games}
    if not pairs:
        return None
    return Difference(pooled(pairs, families), len(pairs), sum(map(len, pairs.values())))


def steps_to(curve: Sequence[tuple[float, float]], threshold: float) -> float | None:
    """Environment steps at the first point of a curve that reaches the threshold; None if none does."""
    return next((x for x, y in curve if y >= threshold), None)

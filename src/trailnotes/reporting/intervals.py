"""Intervals for tables and plots, and the two names of a comparison's intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bounds = tuple[float, float] | None  # least and greatest value of a metric, where it has them
RATE_BOUNDS: Bounds = (0.0, 1.0)
ROUNDING_TOLERANCE = 1e-9  # what the mean of equal values may miss them by


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval, in the unit of the values."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its two intervals, which answer different questions (`reporting/crossed.py`)."""

    mean: float
    on_panel: Interval | None  # these games, trained once more: the seeds are the sample
    beyond: Interval | None  # other games too: families and seeds are samples
    not_on_panel: str = ""  # in two or three words, why there is no interval on the panel
    not_beyond: str = ""  # likewise beyond it


def t_quantile(df: Floats | float, confidence: float) -> Floats:
    """Compute the half-width, in standard errors, of a two-sided Student interval: (...,); `df` may be fractional."""
    from scipy.special import stdtrit  # as long to load as numpy, and nothing but an interval needs it

    quantile: Floats = stdtrit(df, 0.5 + confidence / 2)
    return quantile


def compute_wilson_limits(
    mean: Floats | float, number: Floats | float, quantile: Floats | float
) -> tuple[Floats, Floats]:
    """Compute Wilson's score limits of a rate `mean` (...,), which leave room at 0 and 1.

    `number` (...,) of independent trials, `quantile` of the normal distribution, or of t for an estimated variance.

    Source: Wilson (1927), JASA 22; Dean and Pagano (2015), J. Surv. Stat. Methodol. 3.
    """
    square = np.asarray(quantile, dtype=np.float64) ** 2 / number
    centre = (mean + square / 2) / (1 + square)
    half = np.sqrt(square * mean * (1 - np.asarray(mean)) + square**2 / 4) / (1 + square)
    # At 0 and 1 one limit is the rate itself, which rounding would miss.
    return np.clip(centre - half, 0.0, mean), np.clip(centre + half, mean, 1.0)


def compute_sample_interval(values: Floats, weights: Floats, bounds: Bounds, confidence: float) -> Interval | None:
    """Compute the interval of a weighted mean of episodes (n,) for replays of the same games.

    `weights` (n,) sum to 1. Wilson's interval for a rate (`bounds` 0 to 1), else Student's t, or None where nothing
    varied; both are wider than needed where games differ in difficulty.
    """
    mean, concentration = float(weights @ values), float(weights @ weights)
    if bounds == RATE_BOUNDS:
        low, high = compute_wilson_limits(min(max(mean, 0.0), 1.0), 1 / concentration, t_quantile(np.inf, confidence))
        return Interval(mean, float(low), float(high))
    variance = float(weights @ (values - mean) ** 2)
    if variance <= ROUNDING_TOLERANCE**2:
        return None
    error = np.sqrt(variance * concentration / (1 - concentration))
    half = float(t_quantile(len(values) - 1, confidence) * error)
    return Interval(mean, mean - half, mean + half)


def compute_percentile_interval(mean: float, means: Floats, confidence: float = 0.95) -> Interval:
    """Return `mean` with the middle share `confidence` of its bootstrap replications `means` (n,)."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean, float(low), float(high))

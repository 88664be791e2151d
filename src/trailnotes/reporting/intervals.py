"""Intervals for tables and plots: of episodes of one model, and of seeds crossed with families.

Of crossed samples there are two intervals, one for these games, one for others. Every seed plays the same games, so
more seeds do not make the families more. On this panel games are given and seeds drawn: Student's t over the seeds'
means. Beyond it both are drawn: each part has a margin by Student's t of its own degrees of freedom, and their squares
are added (MOVER, Zou and Donner 2008), since one t would trust two seeds that agree by chance. Both parts contain their
interaction, which errs on the wide side. Functions take any leading dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    """A mean with its two intervals, which answer different questions."""

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


# -- seeds crossed with families

Limits = tuple[Floats, Floats]
MIN_FAMILIES = 10  # fewer carry no interval beyond the panel: docs/intervals.md has the simulation
CONFIDENCE = 0.95
ONE_SEED, SEEDS_ALIKE, NO_COMMON_GAME, NO_VARIATION = "one seed", "all seeds alike", "no common game", "nothing varied"

Values = Mapping[Any, Mapping[str, float]]  # seed -> game -> value, the mean of its episodes


@dataclass(frozen=True, slots=True)
class VarianceComponent:
    """Contribution of sampling one kind of unit to the variance of a mean; both fields (...,)."""

    variance: Floats
    df: Floats

    def __add__(self, other: VarianceComponent) -> VarianceComponent:
        total = self.variance + other.variance
        with np.errstate(divide="ignore", invalid="ignore"):
            df = total**2 / (self.variance**2 / self.df + other.variance**2 / other.df)
        return VarianceComponent(total, np.where(total > 0, df, other.df))

    def squared_margin(self, confidence: float) -> Floats:
        squared: Floats = t_quantile(self.df, confidence) ** 2 * self.variance
        return squared

    def scale(self, weight: float) -> VarianceComponent:
        return VarianceComponent(self.variance * weight**2, self.df)


@dataclass(frozen=True, slots=True)
class CrossedMoments:
    """Moments of seeds times games; fields (...,) but the last."""

    mean: Floats
    num_seeds: NDArray[np.intp]  # that are unlike each other in some game
    seeds: VarianceComponent  # without variance where there are fewer than two of them
    families: VarianceComponent
    num_families: int

    @property
    def variance(self) -> Floats:
        return self.seeds.variance + self.families.variance

    def squared_margin(self, confidence: float) -> Floats:
        return self.seeds.squared_margin(confidence) + self.families.squared_margin(confidence)


def compute_moments(values: Floats, shares: Floats) -> CrossedMoments:
    """Compute the moments of both intervals from values (..., seeds, games) and shares (families, games).

    `shares` are each game's in its family's mean; rows sum to 1. Seeds equal in every game count once in the variance:
    a copied run is no second run. Seeds that differ may have equal means by chance, so their variance is never less
    than single games give.
    """
    by_family = values @ shares.T  # (..., seeds, families)
    num_families = len(shares)
    new = find_distinct_seeds(values)
    num_seeds = new.sum(axis=-1)
    of_means = _variance(by_family.mean(axis=-1), new)
    of_games = (_variance(values, new) * shares.mean(axis=0) ** 2).sum(axis=-1)
    seeds = np.where(num_seeds > 1, np.maximum(of_means, of_games) / num_seeds, 0.0)
    spread = by_family.mean(axis=-2).var(axis=-1, ddof=1) if num_families > 1 else np.zeros(values.shape[:-2])
    df = np.full(values.shape[:-2], max(num_families - 1, 1), dtype=np.float64)
    return CrossedMoments(
        mean=by_family.mean(axis=(-2, -1)), num_seeds=num_seeds,
        seeds=VarianceComponent(seeds, np.maximum(num_seeds - 1.0, 1.0)),
        families=VarianceComponent(spread / num_families, df), num_families=num_families,
    )  # fmt: skip


def find_distinct_seeds(values: Floats) -> NDArray[np.bool_]:
    """Mark the seeds (..., seeds) that differ from every earlier one in some game."""
    new = np.ones(values.shape[:-1], dtype=bool)
    for later in range(1, values.shape[-2]):
        for earlier in range(later):
            apart = np.abs(values[..., later, :] - values[..., earlier, :])
            new[..., later] &= (apart > ROUNDING_TOLERANCE).any(axis=-1)
    return new


def _variance(values: Floats, new: NDArray[np.bool_]) -> Floats:
    """Compute the sample variance over `new` seeds: (..., seeds[, games]) -> (...[, games])."""
    axis = new.ndim - 1
    weights = new.reshape(new.shape + (1,) * (values.ndim - new.ndim))
    count = weights.sum(axis=axis)
    mean = (values * weights).sum(axis=axis) / count
    squares = (values - np.expand_dims(mean, axis)) ** 2 * weights
    result: Floats = squares.sum(axis=axis) / np.maximum(count - 1, 1)
    return result


def compute_panel_limits(mean: Floats, part: VarianceComponent, bounds: Bounds) -> Limits:
    """Compute Student's limits, cut to the metric's bounds; on this panel `part` is the seeds' alone."""
    return _clip_limits(mean, part.squared_margin(CONFIDENCE), bounds)


def _clip_limits(mean: Floats, square: Floats, bounds: Bounds) -> Limits:
    low, high = bounds or (-np.inf, np.inf)
    return np.maximum(mean - np.sqrt(square), low), np.minimum(mean + np.sqrt(square), high)


def compute_population_limits(moments: CrossedMoments, bounds: Bounds) -> Limits:
    """Compute Wilson's limits of a rate, by the number of trials that gives the margin; else the margin itself, cut.

    That number is at most two a family: families that came out alike may hide some that would not. Near 0 and 1 few
    seeds give a number of next to none, so a limit goes no farther than the margin does, or Wilson's for families of
    which each is won or lost as a whole, of which one less count than there are. Nor does it come nearer than where
    none is won, or all are: so a single win takes no room away.
    """
    square = moments.squared_margin(CONFIDENCE)
    if bounds != RATE_BOUNDS:
        return _clip_limits(moments.mean, square, bounds)
    rate = np.clip(moments.mean, 0.0, 1.0)
    quantile, whole = t_quantile(moments.families.df, CONFIDENCE), max(moments.num_families - 1.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        number = np.minimum(quantile**2 * rate * (1 - rate) / square, 2.0 * moments.num_families)
    inside = np.abs(rate - 0.5) < 0.5 - ROUNDING_TOLERANCE
    low, high = compute_wilson_limits(rate, np.where(inside, number, whole), quantile)
    low_whole, high_whole = compute_wilson_limits(rate, whole, quantile)
    low_margin, high_margin = _clip_limits(rate, square, bounds)
    most_at_0 = compute_wilson_limits(0.0, whole, quantile)[1]
    low = np.minimum(np.maximum(low, np.minimum(low_whole, low_margin)), 1 - most_at_0)
    return low, np.maximum(np.minimum(high, np.maximum(high_whole, high_margin)), most_at_0)


def compute_difference_limits(one: CrossedMoments, other: CrossedMoments, difference: CrossedMoments) -> Limits:
    """Compute the limits of a difference of two rates from the Wilson limits of each (MOVER).

    Where one wins every game and the other none, nothing varies in the difference, but much may in either. `difference`
    holds the paired differences.

    Source: Zou and Donner (2008), Statistics in Medicine 27, equation 5, with the correlation of the two means.
    """
    low, high = compute_population_limits(one, RATE_BOUNDS)
    other_low, other_high = compute_population_limits(other, RATE_BOUNDS)
    a, b = one.variance, other.variance
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = (a + b - difference.variance) / (2 * np.sqrt(a * b))
    most = 1 - 1 / one.num_families  # methods that came out alike in so many families may differ in the next one
    together = np.clip(np.where((a > 0) & (b > 0), correlation, 0.0), -most, most)

    def joint(x: Floats, y: Floats) -> Floats:
        return np.sqrt(np.maximum(x**2 + y**2 - 2 * together * x * y, 0.0))

    below = joint(one.mean - low, other_high - other.mean)
    above = joint(high - one.mean, other.mean - other_low)
    mean = one.mean - other.mean
    return np.maximum(mean - below, -1.0), np.minimum(mean + above, 1.0)


def estimate(
    values: Values,
    families: Mapping[str, str],
    bounds: Bounds,
    *,
    unit: str = "families",
) -> Estimate:
    """Estimate the mean over seeds, families and games, with both intervals.

    Games that not every seed has played are left out. `unit` is what families are called where they are too few.
    """
    games = find_common_games(values)
    if not games:
        played = [own for own in values.values() if own]
        means = [float((_compute_game_weights([*own], families) @ [*own.values()]).mean()) for own in played]
        return Estimate(float(np.mean(means)), None, None, NO_COMMON_GAME, NO_COMMON_GAME)
    moments = compute_moments(build_matrix(values, games), _compute_game_weights(games, families))
    on_panel = compute_panel_limits(moments.mean, moments.seeds, bounds)
    beyond = compute_population_limits(moments, bounds)
    not_beyond = explain_too_few(moments.num_families, unit) or explain_no_variation(moments, bounds)
    return build_estimate(moments.mean, on_panel, beyond, explain_no_panel_interval(moments, len(values)), not_beyond)


def estimate_difference(
    values: Values, baseline: Values, families: Mapping[str, str], *, rates: bool
) -> Estimate | None:
    """Estimate the mean of `values` less `baseline`, paired by seed and game; None without pairs."""
    seeds, games = find_pairs(values, baseline)
    if not games:
        return None
    shares = _compute_game_weights(games, families)
    first, second = (build_matrix({seed: own[seed] for seed in seeds}, games) for own in (values, baseline))
    one, other = compute_moments(first, shares), compute_moments(second, shares)
    moments = compute_moments(first - second, shares)
    on_panel = compute_panel_limits(moments.mean, moments.seeds, (-1.0, 1.0) if rates else None)
    beyond = compute_population_limits(moments, None)
    if rates:
        beyond = compute_difference_limits(one, other, moments)
    not_beyond = explain_too_few(moments.num_families) or explain_no_variation(moments, RATE_BOUNDS if rates else None)
    return build_estimate(moments.mean, on_panel, beyond, explain_no_panel_interval(moments, len(seeds)), not_beyond)


def build_estimate(mean: Floats, on_panel: Limits, beyond: Limits, not_on_panel: str, not_beyond: str) -> Estimate:
    """Build an estimate that omits intervals for which a reason is given."""
    value = float(mean)
    return Estimate(
        mean=value, on_panel=None if not_on_panel else Interval(value, float(on_panel[0]), float(on_panel[1])),
        beyond=None if not_beyond else Interval(value, float(beyond[0]), float(beyond[1])),
        not_on_panel=not_on_panel, not_beyond=not_beyond,
    )  # fmt: skip


def explain_no_panel_interval(moments: CrossedMoments, num_played: int) -> str:
    if moments.num_seeds > 1:
        return ""
    return ONE_SEED if num_played == 1 else SEEDS_ALIKE


def explain_no_variation(moments: CrossedMoments, bounds: Bounds) -> str:
    """Explain a missing interval where nothing varied; "" for rates, which leave room all the same."""
    return NO_VARIATION if bounds != RATE_BOUNDS and not (moments.variance > ROUNDING_TOLERANCE**2).any() else ""


def explain_too_few(number: int, unit: str = "families") -> str:
    """Explain a missing interval beyond the panel; "" where there are families enough."""
    return "" if number >= MIN_FAMILIES else f"{number} of {MIN_FAMILIES} {unit}"


def find_pairs(values: Values, baseline: Values) -> tuple[list[Any], list[str]]:
    """Find the seeds that both have, and the games that all of these have played in both."""
    seeds = [seed for seed in values if seed in baseline]
    both = [own[seed] for own in (values, baseline) for seed in seeds]
    return seeds, find_common_games(dict(enumerate(both)))


def find_common_games(values: Values) -> list[str]:
    """Find the games that every seed has played, in the order of the first."""
    if not values:
        return []
    first, *others = values.values()
    return [game for game in first if all(game in games for games in others)]


def build_matrix(values: Values, games: Sequence[str]) -> Floats:
    return np.array([[own[game] for game in games] for own in values.values()], dtype=np.float64)


def _compute_game_weights(games: Sequence[str], families: Mapping[str, str]) -> Floats:
    """Compute each game's weight in the mean of its family: (families, games)."""
    names = list(dict.fromkeys(families[game] for game in games))
    member = np.array([[families[game] == name for game in games] for name in names], dtype=np.float64)
    shares: Floats = member / member.sum(axis=1, keepdims=True)
    return shares

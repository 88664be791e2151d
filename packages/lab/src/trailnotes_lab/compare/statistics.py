"""What may be said of methods that were played with a few seeds each: intervals, and differences that they allow.

The two intervals are those of `reporting/crossed.py`. The interquartile mean is that of "Deep Reinforcement Learning at
the Edge of the Statistical Precipice" (Agarwal et al. 2021, arXiv 2108.13264), without an interval: its stratified
bootstrap draws seeds anew in each family, as if a run were another run in each of them, and from two or three seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from trailnotes.reporting.crossed import (
    CONFIDENCE,
    MIN_FAMILIES,
    Values,
    build_matrix,
    estimate,
    estimate_difference,
    find_common_games,
    find_distinct_seeds,
    find_pairs,
)
from trailnotes.reporting.intervals import RATE_BOUNDS, Bounds, Estimate, Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

Call = Literal[
    "higher",
    "lower",
    "higher on this panel",
    "lower on this panel",
    "higher in this run",
    "lower in this run",
    "higher in these runs",
    "lower in these runs",
    "",
]

MIN_SEEDS = 3  # fewer, unlike each other, allow no call about other training runs
ON_PANEL = "on this panel"
BEYOND = "beyond this panel"
INTERVAL_METHOD = (
    f"Intervals, {CONFIDENCE:.0%}. On this panel: the same games after other training runs; the seeds are the sample "
    "(Student's t over their means, whose variance is never below what single games alone give). Beyond this panel: "
    "other families of games too; families, drawn once for all seeds, and seeds are the samples, each with a t of its "
    "own, and the squares of both margins are added (for rates Wilson's, of two trials a family at most; from "
    f"{MIN_FAMILIES} families on). With one seed it is of that run alone. "
    "Seeds that are equal in every game count as one run, in the mean each."
)
IQM_METHOD = (
    "IQM: interquartile mean over seeds and families (the mean of the middle half of their means; Agarwal et al. 2021, "
    "arXiv 2108.13264). It describes what was played, and has no interval."
)
DIFFERENCE_METHOD = (
    f"Differences are paired by seed and game. From {MIN_SEEDS} pairs on that are unlike each other, one is called "
    "higher or lower only where its interval beyond this panel excludes 0; where it does not, or there is none, higher "
    "or lower on this panel where that interval does. With fewer pairs nothing is said of other training runs: where "
    "the interval beyond this panel excludes 0 the difference is higher or lower in this run (one seed) or in these "
    "runs. No correction is made for the number of differences."
)


def get_metric_bounds(metric: str) -> Bounds:
    """The range of a metric of a panel: that of success; a return has none that holds for every environment."""
    return RATE_BOUNDS if metric == "success" else None


def estimate_pooled_mean(values: Values, families: Mapping[str, str], metric: str) -> Estimate:
    """Mean over seeds, families and games with both intervals; arguments as for `estimate`."""
    return estimate(values, families, get_metric_bounds(metric))


def interquartile_mean(scores: NDArray[np.float64]) -> float:
    """Mean of the middle half of (n,) scores; floor(n / 4) are cut at either end."""
    cut = len(scores) // 4
    return float(np.sort(scores)[cut : len(scores) - cut].mean())


def compute_iqm(values: Values, families: Mapping[str, str]) -> float | None:
    """Interquartile mean of the seeds' means in each family, over the games that all have played; None without any."""
    by_family: dict[str, list[str]] = {}
    for game in find_common_games(values):
        by_family.setdefault(families[game], []).append(game)
    means = [np.mean([own[game] for game in games]) for own in values.values() for games in by_family.values()]
    return interquartile_mean(np.asarray(means)) if means else None


@dataclass(frozen=True, slots=True)
class Difference:
    """A method less the baseline, on the seeds and games that both have played."""

    estimate: Estimate
    num_seeds: int
    num_pairs: int
    num_unlike: int  # of the seeds, whose differences are unlike each other

    @property
    def has_enough_runs(self) -> bool:
        """Say whether a call holds for other training runs, too: fewer than three cannot tell how much these differ."""
        return self.num_unlike >= MIN_SEEDS

    @property
    def call(self) -> Call:
        """Say what the intervals allow: what holds beyond the panel, else what holds on it, else nothing."""
        beyond, on_panel = _get_side(self.estimate.beyond), _get_side(self.estimate.on_panel)
        if self.has_enough_runs:
            return beyond or cast("Call", on_panel and f"{on_panel} on this panel")
        runs = "this run" if self.num_seeds == 1 else "these runs"
        return cast("Call", beyond and f"{beyond} in {runs}")


def _get_side(interval: Interval | None) -> Literal["higher", "lower", ""]:
    """On which side of 0 an interval lies."""
    if interval is None:
        return ""
    return "higher" if interval.low > 0 else "lower" if interval.high < 0 else ""


def estimate_paired_difference(
    values: Values, baseline: Values, families: Mapping[str, str], metric: str
) -> Difference | None:
    """The difference to the baseline, paired by seed and game; None where they have nothing in common."""
    found = estimate_difference(values, baseline, families, rates=metric == "success")
    if found is None:
        return None
    seeds, games = find_pairs(values, baseline)
    own, others = (build_matrix({seed: each[seed] for seed in seeds}, games) for each in (values, baseline))
    return Difference(found, len(seeds), len(seeds) * len(games), int(find_distinct_seeds(own - others).sum()))


def find_steps_to_threshold(curve: Sequence[tuple[float, float]], threshold: float) -> float | None:
    """Environment steps at the first point of a curve that reaches the threshold; None if none does."""
    return next((x for x, y in curve if y >= threshold), None)

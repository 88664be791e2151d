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
    common_games,
    estimate,
    estimate_difference,
    pairs_of,
)
from trailnotes.reporting.intervals import RATE, Bounds, Estimate

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

ON_PANEL = "on this panel"
BEYOND = "beyond this panel"
INTERVAL_METHOD = (
    f"Intervals, {CONFIDENCE:.0%}. On this panel: the same games after other training runs; the seeds are the sample "
    "(Student's t over their means, whose variance is never below what single games alone give). Beyond this panel: "
    "other families of games too; families, drawn once for all seeds, and seeds are the samples (Wilson's for rates, "
    f"of two trials a family at most, else t; from {MIN_FAMILIES} families on). With one seed it is of that run alone. "
    "Seeds that are equal in every game count as one run, in the mean each."
)
IQM_METHOD = (
    "IQM: interquartile mean over seeds and families (the mean of the middle half of their means; Agarwal et al. 2021, "
    "arXiv 2108.13264). It describes what was played, and has no interval."
)
DIFFERENCE_METHOD = (
    "Differences are paired by seed and game. One is called higher or lower only where its interval beyond this panel "
    "excludes 0 (in this run where one seed is behind it, in these runs where the seeds of a method are alike); where "
    "it does not, or there is none, higher or lower on this panel where that interval does. No correction is made for "
    "the number of differences."
)


def bounds_of(metric: str) -> Bounds:
    """The range of a metric of a panel: that of success; a return has none that holds for every environment."""
    return RATE if metric == "success" else None


def pooled(values: Values, families: Mapping[str, str], metric: str) -> Estimate:
    """Mean over seeds, families and games with both intervals; arguments as for `estimate`."""
    return estimate(values, families, bounds_of(metric))


def interquartile_mean(scores: NDArray[np.float64]) -> float:
    """Mean of the middle half of (n,) scores; floor(n / 4) are cut at either end."""
    cut = len(scores) // 4
    return float(np.sort(scores)[cut : len(scores) - cut].mean())


def iqm(values: Values, families: Mapping[str, str]) -> float | None:
    """Interquartile mean of the seeds' means in each family, over the games that all have played; None without any."""
    by_family: dict[str, list[str]] = {}
    for game in common_games(values):
        by_family.setdefault(families[game], []).append(game)
    means = [np.mean([own[game] for game in games]) for own in values.values() for games in by_family.values()]
    return interquartile_mean(np.asarray(means)) if means else None


@dataclass(frozen=True, slots=True)
class Difference:
    """A method less the baseline, on the seeds and games that both have played."""

    estimate: Estimate
    num_seeds: int
    num_pairs: int

    @property
    def call(self) -> Call:
        """What the intervals allow to say: what holds beyond the panel, else what holds on it, else nothing.

        Without an interval on the panel there are no two seeds that differ, and the one beyond is of one run.
        """
        said: Call = ""
        if beyond := self.estimate.beyond:
            said = "higher" if beyond.low > 0 else "lower" if beyond.high < 0 else ""
        if said and not self.estimate.on_panel:
            return cast("Call", f"{said} in {'this run' if self.num_seeds == 1 else 'these runs'}")
        if said:
            return said
        if on_panel := self.estimate.on_panel:
            if on_panel.low > 0:
                return "higher on this panel"
            if on_panel.high < 0:
                return "lower on this panel"
        return ""


def paired(values: Values, baseline: Values, families: Mapping[str, str], metric: str) -> Difference | None:
    """The difference to the baseline, paired by seed and game; None where they have nothing in common."""
    found = estimate_difference(values, baseline, families, rates=metric == "success")
    if found is None:
        return None
    seeds, games = pairs_of(values, baseline)
    return Difference(found, len(seeds), len(seeds) * len(games))


def steps_to(curve: Sequence[tuple[float, float]], threshold: float) -> float | None:
    """Environment steps at the first point of a curve that reaches the threshold; None if none does."""
    return next((x for x, y in curve if y >= threshold), None)

"""Intervals of methods that were played with a few seeds each, and the differences between methods that they allow.

The two intervals are those of `reporting/intervals.py`. The interquartile mean is that of "Deep Reinforcement Learning
at the Edge of the Statistical Precipice" (Agarwal et al. 2021, arXiv 2108.13264), without an interval: its stratified
bootstrap draws seeds anew in each family, as if a run were another run in each of them, and from two or three seeds.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trailnotes.reporting import intervals
from trailnotes.reporting.intervals import RATE_BOUNDS, Estimate, Interval, Values

MIN_SEEDS = 3  # fewer, unlike each other, allow no call about other training runs
ON_PANEL, BEYOND = "on this panel", "beyond this panel"
_NUMBERS = {"confidence": f"{intervals.CONFIDENCE:.0%}", "min_families": intervals.MIN_FAMILIES, "min_seeds": MIN_SEEDS}
LEGEND: Final = {
    name: text.format_map(_NUMBERS)
    for name, text in tomllib.loads(Path(__file__).with_name("legend.toml").read_text(encoding="utf-8")).items()
}
"""The sentences below the tables, by the names of `legend.toml`."""


def estimate_pooled_mean(values: Values, families: Mapping[str, str], metric: str) -> Estimate:
    bounds = RATE_BOUNDS if metric == "success" else None  # no bounds of a return hold for every environment
    return intervals.estimate(values, families, bounds)


def interquartile_mean(scores: NDArray[np.float64]) -> float:
    """Compute the mean of the middle half of (n,) scores; floor(n / 4) are cut at either end."""
    cut = len(scores) // 4
    return float(np.sort(scores)[cut : len(scores) - cut].mean())


def compute_iqm(values: Values, families: Mapping[str, str]) -> float | None:
    """Compute the interquartile mean of the seeds' means in each family, over common games; None without any."""
    by_family: dict[str, list[str]] = {}
    for game in intervals.find_common_games(values):
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
    def call(self) -> str:
        """Call the difference higher or lower: beyond the panel, else on it, else not at all."""
        beyond, on_panel = _get_side(self.estimate.beyond), _get_side(self.estimate.on_panel)
        if self.has_enough_runs:
            return beyond or (on_panel and f"{on_panel} on this panel")
        return beyond and f"{beyond} in {'this run' if self.num_seeds == 1 else 'these runs'}"


def _get_side(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return "higher" if interval.low > 0 else "lower" if interval.high < 0 else ""


def estimate_paired_difference(
    values: Values, baseline: Values, families: Mapping[str, str], metric: str
) -> Difference | None:
    """Estimate the difference to the baseline, paired by seed and game; None where they have nothing in common."""
    difference = intervals.estimate_difference(values, baseline, families, rates=metric == "success")
    if difference is None:
        return None
    seeds, games = intervals.find_pairs(values, baseline)
    own, others = (intervals.build_matrix({seed: each[seed] for seed in seeds}, games) for each in (values, baseline))
    num_unlike = int(intervals.find_distinct_seeds(own - others).sum())
    return Difference(difference, len(seeds), len(seeds) * len(games), num_unlike)

"""Figures of an exchange of roles: success by row and trial, the cost of each exchange, the weak role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from trailnotes.errors import ConfigError
from trailnotes.reporting.crossed import MIN_FAMILIES, estimate, estimate_difference
from trailnotes.reporting.intervals import RATE_BOUNDS, Estimate, Interval
from trailnotes.reporting.plots import INITIAL_MODEL_COLOUR, TEXT_COLOUR, load_pyplot
from trailnotes.reporting.tables import MISSING_CELL, Table, format_table

ROLE_NAMES = ("author", "explorer", "reader")
ROLES_BY_ROW: dict[str, tuple[str, ...]] = {"none": (), **{role: (role,) for role in ROLE_NAMES}, "all": ROLE_NAMES}
"""Row -> the roles that the trained model plays in it; the start model plays the others."""
REMEDIES = {
    "author": "algorithm.anchor_tips holds the tips that it writes to the start model; rehearsal.split adds those on "
    "other games",
    "explorer": "rehearsal.split, on games outside all panels, adds first trials in families that it does not know",
    "reader": "rehearsal.split adds episodes with tips on other games; algorithm.anchor_reading holds those on the "
    "trained ones",
}
"""What usually mends a role, the surest first."""
COLOURS = {"author": "#d55e00", "explorer": "#0072b2", "reader": "#cc79a7", "all": TEXT_COLOUR}
Games = Mapping[str, float]  # game -> mean of its episodes


@dataclass(frozen=True, slots=True)
class RoleCost:
    """Loss over the trials with tips where the trained model plays the roles of a row."""

    row: str
    mean: float  # the start model's, less that of the row, paired by game
    interval: Interval | None  # of these families: games are the sample; None: too few, or nothing varied
    beyond: Interval | None  # of other families too; None: too few of them

    @property
    def is_sure(self) -> bool:
        """Tell whether the loss is significant on games of these families."""
        return self.interval is not None and self.interval.low > 0

    def __str__(self) -> str:
        return f"{self.mean:.2f} {_format_interval(self.interval)}"


def _format_interval(interval: Interval | None) -> str:
    return f"[{interval.low:.2f}, {interval.high:.2f}]" if interval else "(no interval)"


@dataclass(frozen=True, slots=True)
class RoleAnalysis:
    """All figures of an exchange of roles."""

    metric: str
    means: Mapping[str, Sequence[float]]  # row -> of trial 0, 1, ...
    intervals: Mapping[str, Sequence[Interval | None]]
    costs: Mapping[str, RoleCost]  # row -> what it costs; none of "none"
    num_games: int  # that every row has played in every trial
    num_families: int
    confidence: float  # of each interval of a cost, so that those of the links together have that of eval.confidence

    @property
    def weak_roles(self) -> list[RoleCost]:
        """Return the weak roles, the weakest first."""
        links = sorted((self.costs[role] for role in ROLE_NAMES), key=lambda cost: -cost.mean)
        return [cost for cost in links if cost.is_sure]

    def verdict(self) -> list[str]:
        """Name the weak role, and the usual remedy, in sentences."""
        last = len(self.means["none"]) - 1
        over = "trial 1" if last == 1 else f"trials 1 to {last}"
        if not self.weak_roles:
            worst = max((self.costs[role] for role in ROLE_NAMES), key=lambda cost: cost.mean)
            said = f"no weak link: the largest cost in {over}, {worst} of the {worst.row}, could be chance"
            if self.costs["all"].is_sure:
                said += f"; but all three together cost {self.costs['all']}"
            return [said]
        first, *others = self.weak_roles
        lines = [f"weak link: the {first.row}. Its exchange costs {first} of {self.metric} in {over}"]
        lines += [f"also weak: the {cost.row}, {cost}" for cost in others]
        known = [cost for cost in self.weak_roles if cost.beyond]
        told = [f"the {cost.row} costs {cost.mean:.2f} {_format_interval(cost.beyond)}" for cost in known]
        lines += [f"beyond this panel, {'; '.join(told)}"] if told else []
        return lines + [f"what usually mends the {cost.row}: {REMEDIES[cost.row]}" for cost in self.weak_roles]

    def to_json(self) -> dict[str, Any]:
        """Convert the analysis to the content of roles.json."""
        rows = [
            {
                "row": row,
                "trained": list(ROLES_BY_ROW[row]),
                "means": list(means),
                "intervals": [interval and asdict(interval) for interval in self.intervals[row]],
                "cost": asdict(self.costs[row]) if row in self.costs else None,
            }
            for row, means in self.means.items()
        ]
        return {
            "metric": self.metric, "num_games": self.num_games, "num_families": self.num_families,
            "confidence": self.confidence, "rows": rows, "weak": [cost.row for cost in self.weak_roles],
            "verdict": self.verdict(),
        }  # fmt: skip

    def explanation(self) -> str:
        """Explain what the numbers measure."""
        return (
            f"cost: {self.metric} of the row none less that of the row, mean of the trials with tips, paired over "
            f"{self.num_games} games. Its interval takes these games for the sample, of the {self.num_families} "
            f"families played; one beyond this panel takes families, from {MIN_FAMILIES} on. {self.confidence:.1%} "
            "each, so that the three links together keep the confidence asked for"
        )


def analyse_roles(
    values: Mapping[str, Sequence[Games]], families: Mapping[str, str], metric: str, confidence: float
) -> RoleAnalysis:
    """Compare the rows on the games that all of them have played in all trials.

    `values` maps row, trial and game to a mean; `families` maps games. Games are the sample, of equal weight; with
    enough families a cost has a second interval over these. `confidence` is that of the three roles together
    (Bonferroni), since the worst is named.

    Raises:
        ConfigError: there is no such game.
    """
    games = [game for game in families if all(game in played for trials in values.values() for played in trials)]
    if not games:
        raise ConfigError("no game could be played in every trial of every row; see the log for the reason")
    single = {game: game for game in games}
    bounds = RATE_BOUNDS if metric == "success" else None
    of_each = 1 - (1 - confidence) / len(ROLE_NAMES)
    means, intervals = {}, {}
    for row, trials in values.items():
        found = [estimate({0: {g: played[g] for g in games}}, single, bounds, confidence) for played in trials]
        means[row], intervals[row] = [each.mean for each in found], [each.beyond for each in found]
    with_tips = {row: {g: fmean(played[g] for played in trials[1:]) for g in games} for row, trials in values.items()}

    def difference(row: str, clusters: Mapping[str, str]) -> Estimate:
        none, other = {0: with_tips["none"]}, {0: with_tips[row]}
        found = estimate_difference(none, other, clusters, rates=bounds is not None, confidence=of_each)
        assert found is not None, "both have played all games"
        return found

    costs = {}
    for row in (row for row in values if row != "none"):
        of_games = difference(row, single)
        costs[row] = RoleCost(row, of_games.mean, of_games.beyond, difference(row, families).beyond)
    num_families = len({families[game] for game in games})
    return RoleAnalysis(metric, means, intervals, costs, len(games), num_families, of_each)


def build_table(found: RoleAnalysis) -> Table:
    """Build the table of rows and trials, with the cost of each exchange."""
    trials = len(found.means["none"])
    head = ["by the trained model", *(f"trial {trial}" for trial in range(trials)), "cost"]
    rows = [
        [row, *(f"{mean:.2f}" for mean in means), str(found.costs[row]) if row in found.costs else MISSING_CELL]
        for row, means in found.means.items()
    ]
    return head, rows


def render_markdown(found: RoleAnalysis) -> str:
    """Render the table, the verdict and the explanation as Markdown."""
    return "\n".join([*format_table(*build_table(found)), "", *(f"{line}." for line in found.verdict()), "",
                      f"{found.explanation()}.", ""])  # fmt: skip


def plot_roles(found: RoleAnalysis, path: Path) -> None:
    """Plot a curve over the trials for each row, with intervals, side by side."""
    plt = load_pyplot()
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained", facecolor="white")
    colours = {"none": INITIAL_MODEL_COLOUR["start model"], **COLOURS}
    labels = {"none": "start model in all roles", "all": "trained model in all roles"}
    for index, (row, means) in enumerate(found.means.items()):
        xs = np.arange(len(means)) + 0.05 * (index - 2)
        known = [i or Interval(mean, mean, mean) for mean, i in zip(means, found.intervals[row], strict=True)]
        error = [[i.mean - i.low for i in known], [i.high - i.mean for i in known]]
        axes.errorbar(
            xs, means, yerr=error, label=labels.get(row, f"trained {row}"), color=colours[row], marker="sD^vo"[index],
            linestyle="--" if row == "none" else "-", linewidth=1.8, elinewidth=1, capsize=2, markersize=5,
        )  # fmt: skip
    trials = np.arange(len(found.means["none"]))
    axes.set(xlabel="trial (0 is without tips)", ylabel=found.metric, xticks=trials)
    if found.metric == "success":
        axes.set_ylim(-0.02, 1.04)
    axes.set_title(found.verdict()[0], fontsize=9, wrap=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=3, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)

"""Draw a comparison: learning curves with bands over seeds, and the final figure of each method with its interval.

Below them a row for each panel of other games: the mean of each trial, and the last trial with its interval. Each
method has its own colour (config/methods.py); the initial model is grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trailnotes.config.methods import load_methods
from trailnotes.reporting.intervals import Estimate
from trailnotes.reporting.plots import INITIAL_MODEL_COLOUR, Curve, compute_seed_band, load_pyplot
from trailnotes_lab.compare.statistics import BEYOND, ON_PANEL
from trailnotes_lab.compare.summary import PanelSummary, Summary

INK, FAINT, RULE = "#222222", "#8a8a8a", "#e4e4e4"
SPARE_COLOURS = ("#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#a08a00", "#d55e00", "#009e73")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (2, 1.2)), (0, (8, 2)), (0, (1, 1)))


@dataclass(frozen=True, slots=True)
class PlotRow:
    """Curves on the left, and the final figures of the same methods on the right."""

    title: str
    metric: str  # success is drawn from 0 to 1
    curves: Mapping[str, Sequence[Curve]]  # label -> one curve a seed
    finals: Mapping[str, Estimate | None]  # label -> None without any result
    axis: str  # what the curves are drawn against
    judged: str  # where the final figures are from
    remarks: Mapping[str, str] = field(default_factory=dict)  # label -> what stands below it
    rings: Mapping[str, Sequence[float]] = field(default_factory=dict)  # label -> means on panels of the same games
    threshold: float | None = None  # a fine line across


def draw_summary(summary: Summary, path: Path) -> None:
    plt = load_pyplot()
    others = [panel for panel in summary.panels if not panel.same_games and any(line.by_seed for line in panel.lines)]
    rows = [_make_main_row(summary), *map(_make_panel_row, others)]
    starts = dict.fromkeys((panel.start for panel in summary.panels), INITIAL_MODEL_COLOUR["start model"])
    colours = assign_colours([line.label for line in summary.lines]) | starts
    heights = [max(4.6, 1.6 + 0.42 * len(row.finals)) for row in rows]
    columns = 2 if any(row.curves for row in rows) else 1
    with plt.rc_context({"font.size": 10, "axes.edgecolor": FAINT, "text.color": INK, "axes.labelcolor": INK}):
        figure = plt.figure(figsize=(7 * columns, sum(heights)), facecolor="white", layout="constrained")
        parts = figure.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, row in zip(parts, rows, strict=True):
            part.suptitle(row.title, fontsize=13, x=0.01, ha="left", fontweight="bold")
            *left, right = part.subplots(1, columns, squeeze=False)[0]
            for axes in left:
                _draw_curves(axes, row, colours)
            _draw_finals(right, row, colours)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    plt.close(figure)


def _make_main_row(summary: Summary) -> PlotRow:
    again = [panel for panel in summary.panels if panel.same_games]
    finals = [{line.label: line.final.mean for line in panel.lines if line.final} for panel in again]
    several = [line for line in summary.lines if line.num_attempts > 1]
    return PlotRow(
        title=summary.title,
        metric=summary.metric,
        curves={label: [list(curve) for curve in curves] for label, curves in summary.curves.items() if curves},
        finals={line.label: line.final for line in summary.lines},
        axis="environment steps",
        judged="on the panel" + "".join(f"; hollow: {panel.label}, trial {panel.num_trials}" for panel in again),
        remarks={line.label: f"{'last' if line.last else 'best'} of {line.num_attempts}" for line in several},
        rings={line.label: [own[line.label] for own in finals if line.label in own] for line in summary.lines},
        threshold=summary.threshold,
    )


def _make_panel_row(panel: PanelSummary) -> PlotRow:
    return PlotRow(
        title=f"{panel.label}: {panel.metric} on {panel.games}",
        metric=panel.metric,
        curves={line.label: [[*enumerate(means)] for means in line.by_seed] for line in panel.lines if line.by_seed},
        finals={line.label: line.final for line in panel.lines},
        axis="trial (0 is without tips)",
        judged=f"in trial {panel.num_trials}",
    )


def assign_colours(labels: Sequence[str]) -> dict[str, str]:
    """Assign a colour to each label: a method keeps its own in every picture, others take the spare ones in turn."""
    own = {method.label: method.colour for method in load_methods().values() if method.colour}
    taken = {own.get(label) for label in labels}
    free = [colour for colour in SPARE_COLOURS if colour not in taken] or list(SPARE_COLOURS)
    others = [label for label in labels if label not in own]
    spare = {label: free[index % len(free)] for index, label in enumerate(others)}
    return {label: own.get(label) or spare[label] for label in labels}


def _draw_curves(axes: Any, row: PlotRow, colours: Mapping[str, str]) -> None:
    """Mean and range over seeds; a method without a curve is a dotted line at its final figure."""
    for label, curves in row.curves.items():
        longest = max(map(len, curves))
        xs, low, mean, high = compute_seed_band(curves, longest if row.threshold is None else 240)
        look = {"color": colours[label], "linestyle": DASHES[list(colours).index(label) % len(DASHES)], "label": label}
        axes.fill_between(xs, low, high, color=colours[label], alpha=0.15, linewidth=0)
        axes.plot(xs, mean, linewidth=2.0, marker="o" if xs[0] == xs[-1] or row.threshold is None else "", **look)
    for label, final in row.finals.items():
        if label not in row.curves and final is not None:
            axes.axhline(final.mean, color=colours[label], linewidth=1.2, linestyle=(0, (1, 2)), label=label)
    if row.threshold is not None:
        axes.axhline(row.threshold, color=FAINT, linewidth=0.8, zorder=0)
    if row.metric == "success":
        axes.set_ylim(-0.03, 1.03)
    axes.set(xlabel=row.axis, ylabel=row.metric + (" without tips" if row.threshold is not None else ""))
    axes.set_title("band: least to greatest seed", fontsize=9, color=FAINT, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False, fontsize=9)


def _draw_finals(axes: Any, row: PlotRow, colours: Mapping[str, str]) -> None:
    beyond = any(final.beyond for final in row.finals.values() if final)
    places = 2 if row.metric == "success" else 1
    for index, (label, final) in enumerate(row.finals.items()):
        across = axes.get_yaxis_transform()
        if final is None:
            axes.text(0.02, index, "no result", transform=across, va="center", color=FAINT)
            continue
        if bar := final.beyond if beyond else final.on_panel:
            axes.plot((bar.low, bar.high), (index, index), color=colours[label], linewidth=2.6, alpha=0.55)
        axes.plot(final.mean, index, "o", color=colours[label], markersize=7)
        for ring in row.rings.get(label, ()):
            axes.plot(ring, index + 0.25, "o", color=colours[label], markersize=7, markerfacecolor="white")
        axes.text(1.02, index, f"{final.mean:.{places}f}", transform=across, va="center", fontsize=9.5)
    axes.set(yticks=range(len(row.finals)), ylim=(len(row.finals) - 0.5, -0.5))
    axes.set_yticklabels(
        [label + (f"\n({row.remarks[label]})" if label in row.remarks else "") for label in row.finals]
    )
    axes.set_xlabel(f"{row.metric} {row.judged}")
    axes.set_title(f"bar: 95 % interval {BEYOND if beyond else ON_PANEL}", fontsize=9, color=FAINT, loc="left")
    if row.metric == "success":
        axes.set_xlim(-0.03, 1.03)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)

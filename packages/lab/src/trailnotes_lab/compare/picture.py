"""The picture of a comparison: learning curves with bands over seeds, and what each method is judged by.

Below them a row for each panel of other games: success trial by trial, and in the last trial. Each method has its own
colour (config/methods.py); each curve also has its own dashes, and its name at its end. The start model is grey.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trailnotes.config.methods import get_colours
from trailnotes.reporting.intervals import Interval
from trailnotes.reporting.plots import INITIAL_MODEL_COLOUR, Curve, compute_seed_band, load_pyplot

INK, FAINT, RULE = "#222222", "#8a8a8a", "#e4e4e4"
SPARE_COLOURS = ("#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#a08a00", "#d55e00", "#009e73")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (2, 1.2)), (0, (8, 2)), (0, (1, 1)))
RINGS, _RING_NAMES = "os^", ("circle", "square", "triangle")  # hollow, of panels of the same games
START_DASHES: Any = (0, (2.5, 2))
GRID_COLUMNS = 4  # of small pictures
MAX_SHARED_CURVES = 6  # curves that one pair of axes holds; of more, each gets its own beside the baseline


@dataclass(frozen=True, slots=True)
class MethodMarks:
    """What is drawn of one method."""

    label: str
    curves: Sequence[Curve | Sequence[tuple[float, float]]]  # one a seed; () without training
    final: float | None  # mean; None without any result
    interval: Interval | None = None
    iqm: float | None = None
    remark: str = ""  # small, below the label
    is_baseline: bool = False
    is_start: bool = False  # the start model: grey, in dashes
    rings: Sequence[float | None] = ()  # what it did on the same games otherwise, by the order of `Words.rings`


@dataclass(frozen=True, slots=True)
class PlotText:
    """What is written in the picture."""

    title: str  # over all
    metric: str  # what is measured; success is drawn from 0 to 1
    interval: str  # what all intervals are of: on this panel, or beyond it
    judged: str = "on the panel"  # where and when the final figures are from
    rings: Sequence[str] = ()  # what each hollow mark is


@dataclass(frozen=True, slots=True)
class Axis:
    """What curves are drawn against."""

    xlabel: str
    ylabel: str
    said: str  # above them
    threshold: float | None = None  # a fine line across
    num_points: int = 240  # of a curve
    marker: str = ""  # at each of them


@dataclass(frozen=True, slots=True)
class PlotRow:
    """Curves on the left, where there are any, and final figures on the right."""

    methods: Sequence[MethodMarks]  # from the top down
    words: PlotText
    axis: Axis

    @property
    def methods_with_curves(self) -> list[MethodMarks]:
        """Those that have a curve."""
        return [method for method in self.methods if method.curves]

    @property
    def grid_shape(self) -> tuple[int, int] | None:
        """Rows and columns of small pictures, where there are too many curves for one; else None."""
        num = sum(not method.is_start for method in self.methods_with_curves)
        return (math.ceil(num / GRID_COLUMNS), GRID_COLUMNS) if num > MAX_SHARED_CURVES else None

    @property
    def height(self) -> float:
        """In inches."""
        return max(4.6, 1.5 + 0.42 * len(self.methods), 1.4 + 1.55 * self.grid_shape[0] if self.grid_shape else 0)


def draw_methods(
    methods: Sequence[MethodMarks], path: Path, words: PlotText, *, threshold: float, panels: Sequence[PlotRow] = ()
) -> None:
    """Curves on the left where anything was trained, final figures on the right; below likewise each panel.

    Args:
        methods: from the top down.
        path: the PNG.
        words: title, metric and interval.
        threshold: of the sample efficiency; a fine line across the curves.
        panels: further rows, by `make_panel_row`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    plt = load_pyplot()
    rows = [PlotRow(methods, words, _make_learning_axis(words.metric, threshold)), *panels]
    colours = assign_colours([method.label for method in methods])
    colours |= {
        mark.label: INITIAL_MODEL_COLOUR["start model"] for row in rows for mark in row.methods if mark.is_start
    }
    wide = any(row.methods_with_curves for row in rows)
    heights = [row.height for row in rows]
    with plt.rc_context({"font.size": 10, "axes.edgecolor": FAINT, "text.color": INK, "axes.labelcolor": INK}):
        figure = plt.figure(figsize=(13.5 if wide else 7.5, sum(heights)), facecolor="white", layout="constrained")
        parts = figure.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0] if panels else [figure]
        for part, row in zip(parts, rows, strict=True):
            part.suptitle(row.words.title, fontsize=13, x=0.01, ha="left", fontweight="bold")
            _draw_row(part, row, colours)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    plt.close(figure)


def make_panel_row(methods: Sequence[MethodMarks], words: PlotText, num_trials: int) -> PlotRow:
    """A panel trial by trial; the curves of `methods` are against the trials 0 to `num_trials`."""
    said = "mean of each trial, band: least to greatest seed"
    axis = Axis("trial (0 is without tips)", words.metric, said, num_points=num_trials + 1, marker="o")
    return PlotRow(methods, words, axis)


def _make_learning_axis(metric: str, threshold: float) -> Axis:
    said = "learning curves, band: least to greatest seed; dotted: methods that change no weights, on the panel"
    return Axis("environment steps", f"{metric} without tips", said, threshold)


def _draw_row(figure: Any, row: PlotRow, colours: Mapping[str, str]) -> None:
    left, right = figure.subfigures(1, 2, width_ratios=(1.35, 1)) if row.methods_with_curves else (figure, figure)
    if row.grid_shape:
        _draw_small_multiples(left, row, colours, row.grid_shape)
    elif row.methods_with_curves:
        _draw_shared_curves(left.subplots(), row, colours)
    _draw_finals(right.subplots(), row.methods, colours, row.words)


def assign_colours(labels: Sequence[str]) -> dict[str, str]:
    """A method keeps its colour in every picture; others take the spare ones in turn."""
    own = get_colours()
    free = [colour for colour in SPARE_COLOURS if colour not in {own.get(label) for label in labels}] or list(
        SPARE_COLOURS
    )
    others = [label for label in labels if label not in own]
    spare = {label: free[index % len(free)] for index, label in enumerate(others)}
    return {label: own.get(label) or spare[label] for label in labels}


def _draw_shared_curves(axes: Any, row: PlotRow, colours: Mapping[str, str]) -> None:
    ends: dict[tuple[str, str], float] = {}  # (label, remark) -> where it ends
    others = iter(DASHES)
    for method in row.methods_with_curves:
        dashes = START_DASHES if method.is_start else next(others)
        ends[method.label, method.remark] = _draw_curve(axes, method, colours[method.label], dashes, row.axis)
    for method in row.methods:
        if not method.curves and method.final is not None:
            ends[method.label, method.remark] = method.final
            axes.axhline(method.final, color=colours[method.label], linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
    _style_axes(axes, row)
    axes.set(xlabel=row.axis.xlabel, ylabel=row.axis.ylabel)
    _set_subtitle(axes, row.axis.said)
    if row.axis.threshold is not None:
        axes.text(0.995, row.axis.threshold, "threshold", transform=axes.get_yaxis_transform(), ha="right",
                  va="bottom", fontsize=8, color=FAINT)  # fmt: skip
    low, high = axes.get_ylim()
    places = spread_labels(list(ends.values()), 0.052 * (high - low), low, high)
    for ((label, remark), end), place in zip(ends.items(), places, strict=True):
        line = {"arrowstyle": "-", "color": colours[label], "linewidth": 0.7, "shrinkB": 0, "relpos": (0, 0.5)}
        axes.annotate(
            f"{label} ({remark})" if remark else label,
            (1.0, end),
            (1.06, place),
            xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"),
            color=colours[label],
            va="center",
            fontsize=9.5,
            fontweight="bold",
            annotation_clip=False,
            arrowprops=line,
        )


def _draw_small_multiples(figure: Any, row: PlotRow, colours: Mapping[str, str], shape: tuple[int, int]) -> None:
    """One small picture each, with the baseline in grey behind it."""
    shown = [method for method in row.methods_with_curves if not method.is_start]
    baseline = next((method for method in row.methods_with_curves if method.is_baseline), None)
    grid = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, method in zip(grid.flat, shown, strict=False):
        if baseline is not None and method is not baseline:
            _draw_curve(axes, baseline, "#b0b0b0", START_DASHES if baseline.is_start else "-", row.axis, width=1.2)
        _draw_curve(axes, method, colours[method.label], "-", row.axis)
        axes.set_title(textwrap.fill(method.label, 24), fontsize=8.5, color=INK, pad=3)
        _style_axes(axes, row)
        axes.tick_params(labelsize=8)
    behind = f"; grey: {baseline.label}" if baseline else ""
    figure.supxlabel(f"{row.axis.xlabel} (band: least to greatest seed{behind})", fontsize=9)
    figure.supylabel(row.axis.ylabel, fontsize=9)


def _draw_curve(axes: Any, method: MethodMarks, colour: str, dashes: Any, axis: Axis, width: float = 2.0) -> float:
    """Mean and range over seeds; returns where the mean ends."""
    xs, low, mean, high = compute_seed_band([list(curve) for curve in method.curves], axis.num_points)
    axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    marker = axis.marker
    if xs[0] == xs[-1]:  # a single point, of which neither a line nor a band shows
        axes.plot((xs[0], xs[0]), (low[0], high[0]), color=colour, alpha=0.3, linewidth=width)
        marker = "o"
    look: dict[str, Any] = {"marker": marker, "markersize": 4.5, "clip_on": False} if marker else {}
    axes.plot(xs, mean, color=colour, linewidth=width, linestyle=dashes, label=method.label, **look)
    return float(mean[-1])


def _style_axes(axes: Any, row: PlotRow) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    if row.axis.threshold is not None:
        axes.axhline(row.axis.threshold, color=FAINT, linewidth=0.8, zorder=0)
    axes.set_xlim(0, max(x for method in row.methods_with_curves for curve in method.curves for x, _ in curve))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:g}k" if x >= 1000 else f"{x:g}"))
    if row.words.metric == "success":
        axes.set_ylim(-0.03, 1.03)


def _set_subtitle(axes: Any, text: str) -> None:
    axes.set_title(text, fontsize=9, color=FAINT, loc="left")


def _draw_finals(axes: Any, methods: Sequence[MethodMarks], colours: Mapping[str, str], words: PlotText) -> None:
    """A line each: dot and interval, the number beside it; hollow: a diamond at the interquartile mean, and `rings`."""
    for row in range(0, len(methods), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#f6f6f6", linewidth=0, zorder=-1)
    for row, method in enumerate(methods):
        _draw_final(axes, row, method, colours[method.label], 2 if words.metric == "success" else 1)
    axes.set(yticks=range(len(methods)), ylim=(len(methods) - 0.5, -0.5))
    axes.set_yticklabels([method.label + (f"\n({method.remark})" if method.remark else "") for method in methods])
    for text, method in zip(axes.get_yticklabels(), methods, strict=True):
        text.set(color=INK, fontweight="bold" if method.is_baseline else "normal")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"{words.metric} {words.judged}")
    _set_subtitle(axes, _describe_finals(methods, words))
    if words.metric == "success":
        axes.set_xlim(-0.03, 1.03)


def _draw_final(axes: Any, row: int, method: MethodMarks, colour: str, places: int) -> None:
    across, final = axes.get_yaxis_transform(), method.final
    if final is None:
        axes.text(0.02, row, "no result", transform=across, va="center", color=FAINT)
        return
    if bar := method.interval:
        axes.plot((bar.low, bar.high), (row, row), color=colour, linewidth=2.6, solid_capstyle="round", alpha=0.55)
    axes.plot(final, row, "o", color=colour, markersize=7)
    if method.iqm is not None:
        axes.plot(method.iqm, row, "D", color=INK, markersize=5, markerfacecolor="white", zorder=3)
    if method.is_baseline:
        axes.axvline(final, color=colour, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
    axes.text(1.02, row, f"{final:.{places}f}", transform=across, va="center", fontsize=9.5)
    for number, ring in enumerate(method.rings, start=1):
        if ring is not None:
            below, marker = row + 0.27 * number, RINGS[(number - 1) % len(RINGS)]
            axes.plot(ring, below, marker, color=colour, markersize=7, markerfacecolor="white", markeredgewidth=1.6)
            axes.text(1.02, below, f"{ring:.{places}f}", transform=across, va="center", fontsize=8, color=colour)


def _describe_finals(methods: Sequence[MethodMarks], words: PlotText) -> str:
    bars = f"bar: 95 % interval {words.interval}" if any(method.interval for method in methods) else "no interval"
    means = "dot: mean" + ("; diamond: interquartile mean" if any(method.iqm is not None for method in methods) else "")
    hollow = [f"hollow {_RING_NAMES[i % len(RINGS)]}: {said}" for i, said in enumerate(words.rings)]
    return ";\n".join([means, bars, *hollow])


def spread_labels(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels near `places`, at least `gap` apart and within [low, high] where there is room for all."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [places[i] for i in order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    ceiling = high
    for i in range(len(moved) - 1, -1, -1):
        moved[i] = min(moved[i], ceiling)
        ceiling = moved[i] - gap
    if moved and moved[0] < low:  # no room for all: from the bottom up, beyond the top
        moved = [low + i * gap for i in range(len(moved))]
    return [moved[order.index(i)] for i in range(len(places))]

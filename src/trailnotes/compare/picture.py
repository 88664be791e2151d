"""The picture of a comparison: learning curves with bands over seeds, and what each method is judged by.

Each method has its own colour (config/methods.py); each curve also has its own dashes, and its name at its end.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trailnotes.config.methods import colours
from trailnotes.reporting.intervals import Interval
from trailnotes.reporting.plots import Curve, band, pyplot

INK, FAINT, RULE = "#222222", "#8a8a8a", "#e4e4e4"
SPARE = ("#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#a08a00", "#d55e00", "#009e73")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (2, 1.2)), (0, (8, 2)), (0, (1, 1)))
COLUMNS = 4  # of small pictures
TOGETHER = 6  # curves that one pair of axes holds; of more, each gets its own beside the baseline


@dataclass(frozen=True, slots=True)
class Marks:
    """What is drawn of one method."""

    label: str
    curves: Sequence[Curve | Sequence[tuple[float, float]]]  # one a seed; () without training
    final: float | None  # mean; None without any result
    interval: Interval | None = None
    iqm: float | None = None
    remark: str = ""  # small, below the label
    is_baseline: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """What is written in the picture."""

    title: str  # over all
    metric: str  # what is measured; success is drawn from 0 to 1
    interval: str  # what all intervals are of: on this panel, or beyond it


def draw_methods(methods: Sequence[Marks], path: Path, words: Words, *, threshold: float) -> None:
    """Curves on the left where anything was trained, final figures on the right.

    Args:
        methods: from the top down.
        path: the PNG.
        words: title, metric and interval.
        threshold: of the sample efficiency; a fine line across the curves.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    plt, metric = pyplot(), words.metric
    trained = [method for method in methods if method.curves]
    apart = len(trained) > TOGETHER
    columns = COLUMNS if apart else 1
    rows = math.ceil(len(trained) / columns) if apart else 1
    height = max(4.6, 1.5 + 0.42 * len(methods), 1.4 + 1.55 * rows if apart else 0)
    with plt.rc_context({"font.size": 10, "axes.edgecolor": FAINT, "text.color": INK, "axes.labelcolor": INK}):
        figure = plt.figure(figsize=(13.5 if trained else 7.5, height), facecolor="white", layout="constrained")
        figure.suptitle(words.title, fontsize=13, x=0.01, ha="left", fontweight="bold")
        left, right = figure.subfigures(1, 2, width_ratios=(1.35, 1)) if trained else (figure, figure)
        colours = colours_of([method.label for method in methods])
        if apart:
            _curves_apart(left, trained, colours, (rows, columns), metric, threshold)
        elif trained:
            _curves_together(left.subplots(), methods, colours, metric, threshold)
        _finals(right.subplots(), methods, colours, words)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    plt.close(figure)


def colours_of(labels: Sequence[str]) -> dict[str, str]:
    """A method keeps its colour in every picture; others take the spare ones in turn."""
    own = colours()
    free = [colour for colour in SPARE if colour not in {own.get(label) for label in labels}] or list(SPARE)
    others = [label for label in labels if label not in own]
    spare = {label: free[index % len(free)] for index, label in enumerate(others)}
    return {label: own.get(label) or spare[label] for label in labels}


def _curves_together(
    axes: Any, methods: Sequence[Marks], colours: Mapping[str, str], metric: str, threshold: float
) -> None:
    ends: dict[tuple[str, str], float] = {}  # (label, remark) -> where it ends
    trained = [method for method in methods if method.curves]
    for method, dashes in zip(trained, DASHES, strict=False):
        ends[method.label, method.remark] = _curve(axes, method, colours[method.label], dashes)
    last = max(x for method in trained for curve in method.curves for x, _ in curve)
    for method in methods:
        if not method.curves and method.final is not None:
            ends[method.label, method.remark] = method.final
            axes.axhline(method.final, color=colours[method.label], linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
    _frame(axes, metric, threshold)
    axes.set_xlim(right=last)
    axes.set(xlabel="environment steps", ylabel=f"{metric} without tips")
    _explain(
        axes, "learning curves, band: least to greatest seed; dotted: methods that change no weights, on the panel"
    )
    axes.text(0.995, threshold, "threshold", transform=axes.get_yaxis_transform(), ha="right", va="bottom",
              fontsize=8, color=FAINT)  # fmt: skip
    low, high = axes.get_ylim()
    places = spread(list(ends.values()), 0.052 * (high - low), low, high)
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


def _curves_apart(
    figure: Any,
    trained: Sequence[Marks],
    colours: Mapping[str, str],
    shape: tuple[int, int],
    metric: str,
    threshold: float,
) -> None:
    """One small picture each, with the baseline in grey behind it."""
    baseline = next((method for method in trained if method.is_baseline), None)
    grid = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(trained) :]:
        axes.set_visible(False)
    for axes, method in zip(grid.flat, trained, strict=False):
        if baseline is not None and method is not baseline:
            _curve(axes, baseline, "#b0b0b0", "-", width=1.2)
        _curve(axes, method, colours[method.label], "-")
        axes.set_title(textwrap.fill(method.label, 24), fontsize=8.5, color=INK, pad=3)
        _frame(axes, metric, threshold)
        axes.tick_params(labelsize=8)
    behind = f"; grey: {baseline.label}" if baseline else ""
    figure.supxlabel(f"environment steps (band: least to greatest seed{behind})", fontsize=9)
    figure.supylabel(f"{metric} without tips", fontsize=9)


def _curve(axes: Any, method: Marks, colour: str, dashes: Any, width: float = 2.0) -> float:
    """Mean and range over seeds; returns where the mean ends."""
    xs, low, mean, high = band([list(curve) for curve in method.curves])
    axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(xs, mean, color=colour, linewidth=width, linestyle=dashes, label=method.label)
    return float(mean[-1])


def _frame(axes: Any, metric: str, threshold: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.axhline(threshold, color=FAINT, linewidth=0.8, zorder=0)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:g}k" if x >= 1000 else f"{x:g}"))
    if metric == "success":
        axes.set_ylim(-0.03, 1.03)


def _explain(axes: Any, text: str) -> None:
    axes.set_title(text, fontsize=9, color=FAINT, loc="left")


def _finals(axes: Any, methods: Sequence[Marks], colours: Mapping[str, str], words: Words) -> None:
    """A line each: dot and interval, the number beside it, and a hollow diamond where the interquartile mean is."""
    for row in range(0, len(methods), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#f6f6f6", linewidth=0, zorder=-1)
    places = 2 if words.metric == "success" else 1
    for row, method in enumerate(methods):
        if method.final is None:
            axes.text(0.02, row, "no result", transform=axes.get_yaxis_transform(), va="center", color=FAINT)
            continue
        final, colour = method.final, colours[method.label]
        if bar := method.interval:
            axes.plot((bar.low, bar.high), (row, row), color=colour, linewidth=2.6, solid_capstyle="round", alpha=0.55)
        axes.plot(final, row, "o", color=colour, markersize=7)
        if method.iqm is not None:
            axes.plot(method.iqm, row, "D", color=INK, markersize=5, markerfacecolor="white", zorder=3)
        if method.is_baseline:
            axes.axvline(final, color=colour, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
        axes.text(1.02, row, f"{final:.{places}f}", transform=axes.get_yaxis_transform(), va="center", fontsize=9.5)
    axes.set(yticks=range(len(methods)), ylim=(len(methods) - 0.5, -0.5))
    axes.set_yticklabels([method.label + (f"\n({method.remark})" if method.remark else "") for method in methods])
    for text, method in zip(axes.get_yticklabels(), methods, strict=True):
        text.set(color=INK, fontweight="bold" if method.is_baseline else "normal")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"{words.metric} on the panel")
    bars = f"95 % interval {words.interval}" if any(method.interval for method in methods) else "no interval"
    _explain(axes, f"dot and bar: mean, {bars};\ndiamond: interquartile mean")
    if words.metric == "success":
        axes.set_xlim(-0.03, 1.03)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
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

"""Plots as PNG: adaptation and learning curves. Needs the extra `plot`."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trailnotes.errors import MissingExtraError, format_install_command
from trailnotes.reporting.intervals import Interval

Curve = list[tuple[float, float]]  # (x, y) of one run, x ascending
INITIAL_MODEL_COLOUR = {"start model": "#777777"}  # as those of the methods, by label
TEXT_COLOUR = "#444444"  # where a method has no colour


def plot_trials(
    means: Sequence[float], intervals: Sequence[Interval | None], path: Path, *, colour: str, ylabel: str, title: str
) -> None:
    """Plot an adaptation: trial 0 without memory, then trials with it, each with its interval if known."""
    figure, axes = load_pyplot().subplots(figsize=(6, 4), layout="constrained", facecolor="white")
    xs = np.arange(len(means))
    known = [interval or Interval(mean, mean, mean) for mean, interval in zip(means, intervals, strict=True)]
    axes.fill_between(xs, [i.low for i in known], [i.high for i in known], color=colour, alpha=0.18)
    axes.plot(xs, means, color=colour, marker="o", linewidth=2)
    axes.set(xlabel="trial (0 is without memory)", ylabel=ylabel, xticks=xs)
    axes.set_title(textwrap.fill(title, 90, replace_whitespace=False), fontsize=8)
    if all(i.low >= 0 and i.high <= 1 for i in known):  # a share: show all of it
        axes.set_ylim(-0.02, 1.04)
    _save(figure, axes, path)


def plot_learning(runs: Sequence[Curve], points: Mapping[str, Interval], path: Path, title: str) -> None:
    """Plot the return of training games over minutes, each run and their mean; `points`: unseen games before, after."""
    figure, axes = load_pyplot().subplots(figsize=(7, 4), layout="constrained", facecolor="white")
    for run in runs:
        axes.plot(*zip(*run, strict=True), color="#4a6fa5", linewidth=1, alpha=1 if len(runs) == 1 else 0.35)
    if len(runs) > 1:
        xs, _, mean, _ = compute_seed_band(runs)
        axes.plot(xs, mean, color="#4a6fa5", linewidth=2)
    axes.plot([], [], color="#4a6fa5", label="games trained on")
    last = max(run[-1][0] for run in runs)
    for minute, (label, level), colour in zip((0.0, last * 1.04), points.items(), ("#777777", "#c2410c"), strict=True):
        error = [[level.mean - level.low], [level.high - level.mean]]
        axes.errorbar([minute], [level.mean], yerr=error, fmt="o", color=colour, capsize=3,
                      label=f"unseen games, {label}")  # fmt: skip
    axes.set(xlabel="minutes of training on two cores of a CPU", ylabel="return (a solved game gives 100)")
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    _save(figure, axes, path)


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    load_pyplot().close(figure)


def compute_seed_band(runs: Sequence[Curve], num_points: int = 240) -> tuple[Any, Any, Any, Any]:
    """Compute mean and range over seeds on a common axis, up to where the shortest run ends."""
    first, last = max(run[0][0] for run in runs), min(run[-1][0] for run in runs)
    xs = np.linspace(first, max(first, last), num_points)
    ys = np.stack([np.interp(xs, [x for x, _ in run], [y for _, y in run]) for run in runs])
    return xs, ys.min(axis=0), ys.mean(axis=0), ys.max(axis=0)


def load_pyplot() -> Any:
    """Load matplotlib's pyplot, drawing to files only unless it shows pictures already (a notebook)."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtraError(f"pictures need matplotlib: {format_install_command('plot')}") from error
    if "matplotlib.pyplot" not in sys.modules and "inline" not in os.environ.get("MPLBACKEND", ""):
        mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt

"""Compute the points, ticks and labels of charts, which templates place in SVG. Texts never become markup."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

WIDE_SIZE: Final = (1120.0, 300.0)  # width and height
SMALL_SIZE: Final = (540.0, 220.0)
SPARK_SIZE: Final = (120.0, 28.0)  # of the cell of a table
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 12.0, 30.0  # margins
MAX_VALUE: Final = 1e100  # greater numbers are not drawn: sums and differences of the others are finite
MAX_POINTS: Final = 300  # of a curve; of more, means of neighbours
NUM_COLOURS: Final = 8  # classes s0 to s7 of the style

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class ChartCurve:
    label: str
    points: str  # of a polyline
    colour: int
    last: tuple[float, float]  # where it ends, in the picture
    value: float  # its last value
    link: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    curves: tuple[ChartCurve, ...]
    xs: tuple[Tick, ...]
    ys: tuple[Tick, ...]
    size: tuple[float, float]
    left: float  # of the frame, in the picture
    right: float
    bottom: float


def make_chart(named: Sequence[tuple[str, Points, str]], size: tuple[float, float] = WIDE_SIZE) -> Chart | None:
    """Lay curves over each other, named as label, points by x ascending and link; None where there are no points."""
    right, bottom = size[0] - RIGHT, size[1] - BOTTOM
    drawn = [(label, downsample(_filter_drawable(points)), link) for label, points, link in named]
    drawn = [each for each in drawn if each[1]]
    if not drawn:
        return None
    xs, ys = zip(*(point for _, points, _ in drawn for point in points), strict=True)
    x_ticks, y_ticks = compute_ticks(min(xs), max(xs), 6), compute_ticks(*_compute_axis_range(min(ys), max(ys)), 5)
    x_of = _make_scale((min(xs), max(xs)), (LEFT, right))
    y_of = _make_scale((y_ticks[0], y_ticks[-1]), (bottom, TOP))
    curves = tuple(
        ChartCurve(
            label,
            " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points),
            number % NUM_COLOURS,
            (round(x_of(points[-1][0]), 1), round(y_of(points[-1][1]), 1)),
            points[-1][1],
            link,
        )
        for number, (label, points, link) in enumerate(drawn)
    )
    x_axis = tuple(Tick(round(x_of(x), 1), format_short(x)) for x in x_ticks if min(xs) <= x <= max(xs))
    y_axis = tuple(Tick(round(y_of(y), 1), format_short(y)) for y in y_ticks)
    return Chart(curves, x_axis, y_axis, size, LEFT, right, bottom)


def make_sparkline(points: Points) -> str:
    """Make the points of a polyline for a table's cell; "" where there is no curve."""
    points = downsample(_filter_drawable(points), 60)
    if len(points) < 2:
        return ""
    ys, (width, height) = [y for _, y in points], SPARK_SIZE
    x_of = _make_scale((points[0][0], points[-1][0]), (2.0, width - 2))
    y_of = _make_scale(_compute_axis_range(min(ys), max(ys)), (height - 3, 3.0))
    return " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)


def downsample(points: Points, most: int = MAX_POINTS) -> list[tuple[float, float]]:
    """Reduce to at most `most` points: means of as many neighbours each, the last group possibly smaller."""
    size = math.ceil(len(points) / most) if points else 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def compute_ticks(low: float, high: float, about: int) -> list[float]:
    """Compute round numbers (1, 2 or 5 times a power of ten apart) that cover the range, some `about` of them."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1 / MAX_VALUE):  # too little for floats to tell steps apart
        high = low + max(1.0, 1e-6 * abs(low))
    rough = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def format_short(value: float) -> str:
    """Format a number in few letters: ``0.25``, ``1.2k``, ``3M``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value + 0.0:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _compute_axis_range(low: float, high: float) -> tuple[float, float]:
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _make_scale(source: tuple[float, float], target: tuple[float, float]) -> Callable[[float], float]:
    span = source[1] - source[0]
    factor = (target[1] - target[0]) / (span if span > 1 / MAX_VALUE else 1.0)
    return lambda value: target[0] + (value - source[0]) * factor


def _filter_drawable(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if abs(x) <= MAX_VALUE and abs(y) <= MAX_VALUE]

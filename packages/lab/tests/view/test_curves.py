"""Curves: the arithmetic of their ticks and places."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trailnotes_lab.view.curves import MAX_POINTS, compute_ticks, downsample, format_short, make_chart, make_sparkline

FINITE = st.floats(-1e9, 1e9)
ANY = st.floats() | st.sampled_from([1e308, -1e308, 5e-324, 1e100, 1e17])


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (3, 3, [3, 3.2, 3.4, 3.6, 3.8, 4]), (-1, 9, [-2, 0, 2, 4, 6, 8, 10])],
)
def test_ticks_are_round_and_cover(low: float, high: float, found: list[float]) -> None:
    assert compute_ticks(low, high, 5) == pytest.approx(found)


@given(st.lists(st.tuples(FINITE, FINITE), max_size=50))
def test_every_point_lies_within_the_picture(points: list[tuple[float, float]]) -> None:
    drawn = make_chart([("a", sorted(points), "")])
    assert (drawn is None) == (not points)
    for curve in drawn.curves if drawn else ():
        for place in curve.points.split():
            x, y = map(float, place.split(","))
            assert -0.1 <= x <= drawn.size[0] + 0.1 if drawn else True
            assert -0.1 <= y <= drawn.size[1] + 0.1 if drawn else True


@given(st.lists(st.tuples(ANY, ANY), max_size=50))
@example([(0, 0), (2.2250738585e-313, 0)])
def test_no_number_is_too_large_or_too_small_to_be_drawn(points: list[tuple[float, float]]) -> None:
    points = sorted(points, key=str)
    make_sparkline(points)
    drawn = make_chart([("a", points, ""), ("b", [*points, *points], "")])
    for curve in drawn.curves if drawn else ():
        assert "n" not in curve.points, "neither nan nor inf"


def test_a_long_curve_is_thinned_to_means() -> None:
    assert downsample([(0, 0), (1, 4), (2, 6)], 2) == [(0.5, 2), (2, 6)]
    assert len(downsample([(n, n) for n in range(10_000)])) <= MAX_POINTS
    assert downsample([]) == []


def test_what_is_not_finite_is_left_out() -> None:
    assert make_chart([("a", [(0, math.nan), (1, math.inf)], "")]) is None
    assert make_sparkline([(0, 1.0), (1, math.nan)]) == ""
    assert len(make_sparkline([(0, 1.0), (1, 2.0)]).split()) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "0.25"), (0, "0"), (-0.0, "0"), (999.4, "999"), (1500, "1500"), (12_000, "12k"), (3e6, "3M")],
)
def test_numbers_in_few_letters(value: float, text: str) -> None:
    assert format_short(value) == text

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.reporting.intervals import (
    RATE_BOUNDS,
    compute_percentile_interval,
    compute_sample_interval,
    compute_wilson_limits,
    t_quantile,
)


def test_wilson_by_hand() -> None:
    """Five of ten with the quantile 2: the limits are (0.7 -+ sqrt(0.14)) / 1.4."""
    low, high = compute_wilson_limits(0.5, 10, 2.0)
    assert low == pytest.approx((0.7 - 0.14**0.5) / 1.4)
    assert high == pytest.approx((0.7 + 0.14**0.5) / 1.4)


@given(won=st.integers(0, 300), number=st.integers(1, 300), quantile=st.floats(0.1, 60.0))
def test_wilson_holds_its_rate_to_the_last_bit(won: int, number: int, quantile: float) -> None:
    """A picture draws from the rate to its limits, and fails where one of them is on the wrong side by rounding."""
    rate = min(won / number, 1.0)
    low, high = compute_wilson_limits(rate, number, quantile)
    assert 0 <= low <= rate <= high <= 1


def test_wilson_leaves_room_where_all_or_nothing_was_won() -> None:
    """None of n: from 0 to q^2 / (n + q^2)."""
    low, high = compute_wilson_limits(np.array([0.0, 1.0]), np.array([8.0, 8.0]), 2.0)
    assert low.tolist() == pytest.approx([0.0, 1 - 4 / 12])
    assert high.tolist() == pytest.approx([4 / 12, 1.0])


def test_quantiles_of_the_tables() -> None:
    assert t_quantile(1, 0.95) == pytest.approx(12.706, abs=1e-3)
    assert t_quantile(np.array([2.0, 7.0]), 0.95) == pytest.approx([4.303, 2.365], abs=1e-3)
    assert t_quantile(np.inf, 0.95) == pytest.approx(1.960, abs=1e-3)
    assert t_quantile(1.5, 0.95) == pytest.approx(6.017, abs=1e-3), "between those of 1 and 2"


def test_sample_interval_of_rates() -> None:
    values, weights = np.array([1.0, 0, 1, 0, 1, 0, 1, 0, 1, 0]), np.full(10, 0.1)
    result = compute_sample_interval(values, weights, RATE_BOUNDS, 0.95)
    assert (result.mean, result.low, result.high) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)


def test_sample_interval_of_returns() -> None:
    """0, 2, 4: standard deviation 2, of the mean 2 / sqrt 3, times 4.303."""
    weights = np.full(3, 1 / 3)
    result = compute_sample_interval(np.array([0.0, 2.0, 4.0]), weights, None, 0.95)
    assert (result.mean, result.low, result.high) == pytest.approx((2.0, 2 - 4.968, 2 + 4.968), abs=1e-3)
    assert compute_sample_interval(np.array([5.0, 5.0, 5.0]), weights, None, 0.95) is None
    assert compute_sample_interval(np.array([5.0]), np.array([1.0]), None, 0.95) is None


def test_percentiles_leave_the_same_share_on_either_side() -> None:
    interval = compute_percentile_interval(7.0, np.arange(101.0), 0.9)
    assert (interval.mean, interval.low, interval.high) == (7.0, pytest.approx(5.0), pytest.approx(95.0))

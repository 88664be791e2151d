from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.reporting.intervals import compute_percentile_interval, compute_wilson_limits, t_quantile


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


def test_quantiles_of_the_tables() -> None:
    assert t_quantile(1, 0.95) == pytest.approx(12.706, abs=1e-3)
    assert t_quantile(np.array([2.0, 7.0]), 0.95) == pytest.approx([4.303, 2.365], abs=1e-3)
    assert t_quantile(np.inf, 0.95) == pytest.approx(1.960, abs=1e-3)
    assert t_quantile(1.5, 0.95) == pytest.approx(6.017, abs=1e-3), "between those of 1 and 2"


def test_percentiles_leave_the_same_share_on_either_side() -> None:
    interval = compute_percentile_interval(7.0, np.arange(101.0), 0.9)
    assert (interval.mean, interval.low, interval.high) == (7.0, pytest.approx(5.0), pytest.approx(95.0))

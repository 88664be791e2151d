from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trailnotes.reporting.intervals import Interval
from trailnotes.reporting.plots import compute_seed_band, plot_trials


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure that is drawn, kept open until the test has looked."""
    import matplotlib.pyplot as plt

    drawn: list[Any] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    return drawn


def test_band_by_hand() -> None:
    # at x = 0, 50, 100 one run is 0, .5, 1, the other, of fewer points, 1, .5, 0
    xs, low, mean, high = compute_seed_band([[(0, 0), (50, 0.5), (100, 1)], [(0, 1), (100, 0)]], num_points=3)
    assert xs.tolist() == [0, 50, 100]
    assert low.tolist() == [0, 0.5, 0]
    assert mean.tolist() == [0.5, 0.5, 0.5]
    assert high.tolist() == [1, 0.5, 1]


def test_trials_are_drawn_with_their_intervals(tmp_path: Path, figures: list[Any]) -> None:
    results = [Interval(0.1, 0.0, 0.2), Interval(0.7, 0.6, 0.9)]
    plot_trials([0.1, 0.7], results, tmp_path / "trials.png", colour="#009e73", ylabel="success", title="empo2")
    (axes,) = figures[0].axes
    assert axes.lines[0].get_ydata().tolist() == [0.1, 0.7]
    assert axes.get_xticks().tolist() == [0, 1]
    assert axes.get_ylim() == (-0.02, 1.04)
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == (0.0, 0.9)
    plot_trials(
        [40, 45], [Interval(40, 30, 50), None], tmp_path / "returns.png", colour="k", ylabel="return", title="empo2"
    )
    assert figures[1].axes[0].get_ylim()[1] > 50

from __future__ import annotations

import builtins
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trailnotes.errors import MissingExtraError
from trailnotes.reporting import plots
from trailnotes.reporting.intervals import Interval
from trailnotes.reporting.plots import band, learning_curves, trial_curve

GRPO = [[(0.0, 0.0), (100.0, 0.1)], [(0.0, 0.0), (100.0, 0.3)]]
EMPO2 = [[(0.0, 0.0), (50.0, 0.5), (100.0, 1.0)]]
BARS = {"start model": Interval(0.0, 0.0, 0.1), "GRPO": Interval(0.2, 0.1, 0.3), "EMPO²\nwith notes": Interval(1, 1, 1)}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure that is drawn, kept open until the test has looked."""
    import matplotlib.pyplot as plt

    drawn: list[Any] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    return drawn


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_band_by_hand() -> None:
    # at x = 0, 50, 100 one run is 0, .5, 1, the other, of fewer points, 1, .5, 0
    xs, low, mean, high = band([[(0, 0), (50, 0.5), (100, 1)], [(0, 1), (100, 0)]], num_points=3)
    assert xs.tolist() == [0, 50, 100]
    assert low.tolist() == [0, 0.5, 0]
    assert mean.tolist() == [0.5, 0.5, 0.5]
    assert high.tolist() == [1, 0.5, 1]


def test_a_band_ends_where_the_shortest_run_ends_and_begins_where_all_have_begun() -> None:
    xs, *_ = band([[(10, 0), (100, 1)], [(20, 0), (60, 1)]], num_points=5)
    assert (xs[0], xs[-1]) == (20, 60)
    xs, low, *_ = band([[(10, 0.25)]], num_points=2)
    assert (xs.tolist(), low.tolist()) == ([10, 10], [0.25, 0.25])


def test_curves_and_bars_show_the_numbers_given(tmp_path: Path, figures: list[Any]) -> None:
    learning_curves({"grpo": GRPO, "empo2": EMPO2}, tmp_path / "deep" / "curves.png", title="games", bars=BARS)
    assert size_of(tmp_path / "deep" / "curves.png") == (1540, 588)
    left, right = figures[0].axes
    means = [line for line in left.lines if line.get_linewidth() > 2]
    assert [line.get_ydata()[-1] for line in means] == pytest.approx([0.2, 1.0])
    assert [text.get_text() for text in left.get_legend().get_texts()] == [
        "GRPO (mean of 2 seeds)",
        "EMPO² (mean of 1 seed)",
    ]
    assert len(left.lines) == 2 + 3, "each seed has a line of its own"
    assert (left.get_title(), left.get_xlabel()) == ("games", "environment steps")
    assert [patch.get_height() for patch in right.patches] == [0.0, 0.2, 1.0]
    assert [text.get_text() for text in right.texts] == ["0.00", "0.20", "1.00"]
    assert [label.get_text() for label in right.get_xticklabels()] == list(BARS)
    colours = [patch.get_facecolor()[:3] for patch in right.patches]
    assert len(set(colours)) == 3
    assert np.allclose(colours[2], __import__("matplotlib").colors.to_rgb(plots.COLOURS["empo2"]))


def test_no_two_texts_overlap(tmp_path: Path, figures: list[Any]) -> None:
    full = BARS | {"EMPO²": Interval(0.98, 0.9, 1.0)}
    learning_curves({"grpo": GRPO, "empo2": EMPO2}, tmp_path / "c.png", title="training games", bars=full)
    figure = figures[0]
    figure.canvas.draw()
    left, right = figure.axes
    groups = [right.texts, right.get_xticklabels(), left.get_legend().get_texts(), [left.title, right.title]]
    boxes = [text.get_window_extent() for group in groups for text in group]
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


def test_a_method_without_a_point_and_no_bars_draw_an_empty_picture(tmp_path: Path) -> None:
    learning_curves({"grpo": [[]], "empo2": []}, tmp_path / "c.png", title="nothing yet")
    assert size_of(tmp_path / "c.png")[0] > 0


def test_trials_are_drawn_with_their_intervals(tmp_path: Path, figures: list[Any]) -> None:
    results = [Interval(0.1, 0.0, 0.2), Interval(0.7, 0.6, 0.9)]
    trial_curve(results, tmp_path / "trials.png", ylabel="success", title="empo2")
    (axes,) = figures[0].axes
    assert axes.lines[0].get_ydata().tolist() == [0.1, 0.7]
    assert axes.get_xticks().tolist() == [0, 1]
    assert axes.get_ylim() == (-0.02, 1.04)
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == (0.0, 0.9)
    trial_curve([Interval(40, 30, 50)], tmp_path / "returns.png", ylabel="return", title="empo2")
    assert figures[1].axes[0].get_ylim()[1] > 50


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r"trailnotes\[plot\]"):
        trial_curve([Interval(0, 0, 0)], tmp_path / "t.png", ylabel="y", title="t")
    assert not (tmp_path / "t.png").exists()

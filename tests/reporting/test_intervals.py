from __future__ import annotations

import numpy as np
import pytest

from trailnotes.reporting.intervals import bootstrap, percentile_interval, resampled_means, wilson


def test_wilson_by_hand() -> None:
    # 5 of 10 at 95 %: centre .5, half-width z/(1+z^2/n) * sqrt(.025 + z^2/400) with z = 1.96 -> .2634
    interval = wilson(5, 10)
    assert interval.mean == 0.5
    assert interval.low == pytest.approx(0.2366, abs=1e-4)
    assert interval.high == pytest.approx(0.7634, abs=1e-4)


def test_wilson_stays_inside_zero_and_one() -> None:
    assert wilson(0, 20).low == 0.0
    assert wilson(20, 20).high == 1.0
    assert wilson(0, 20).high > 0.1  # nothing seen is not nothing there
    with pytest.raises(ValueError, match="is impossible"):
        wilson(3, 2)


def test_bootstrap_of_equal_values_has_no_width() -> None:
    interval = bootstrap([1.0] * 12, [["a"] * 6 + ["b"] * 6])
    assert (interval.mean, interval.low, interval.high) == (1.0, 1.0, 1.0)


def test_bootstrap_over_clusters_is_wider_than_over_games() -> None:
    values = [1.0] * 20 + [0.0] * 60  # one family of four solved
    families = [family for family in "abcd" for _ in range(20)]
    by_game = bootstrap(values, [])
    by_family = bootstrap(values, [families])
    assert by_game.mean == by_family.mean == 0.25
    assert by_family.high - by_family.low > 2 * (by_game.high - by_game.low)
    assert by_family.low == 0.0  # (3/4)^4 = 32 % of resamples hold no solved family
    assert by_family.high == 0.75  # 3 or more solved in 5 % of resamples, 4 in 0.4 %


def test_every_cluster_weighs_the_same() -> None:
    assert bootstrap([1.0, 0.0, 0.0, 0.0], [["a", "b", "b", "b"]]).mean == 0.5


def test_inner_labels_count_inside_their_outer_cluster() -> None:
    values = [1.0, 0.0, 0.0, 1.0]
    interval = bootstrap(values, [["s0", "s0", "s1", "s1"], ["f", "g", "f", "g"]])
    assert interval.mean == 0.5
    assert interval.low == 0.0
    assert interval.high == 1.0


def test_bootstrap_is_seeded_and_checks_its_input() -> None:
    values = np.linspace(0, 1, 30)
    assert bootstrap(values, []) == bootstrap(values, [])
    with pytest.raises(ValueError, match="labels"):
        bootstrap(values, [["a"]])
    with pytest.raises(ValueError, match="empty"):
        bootstrap([], [])


def test_a_fixed_level_is_taken_whole() -> None:
    # two tasks, one always 0, one always 10: as a sample they give 0, 5 or 10, as a panel 5 for ever
    values, tasks = [0.0, 0.0, 10.0, 10.0], ["a", "a", "b", "b"]
    assert set(resampled_means(values, [tasks])) == {0.0, 5.0, 10.0}
    assert set(resampled_means(values, [tasks], fixed=[0])) == {5.0}


def test_below_a_fixed_level_the_resampling_goes_on() -> None:
    # runs of one task at 0 and 2, of the other at 10 and 30: two are drawn of each, so one task gives 0, 1 or 2,
    # the other 10, 20 or 30, and their mean is half of each
    values, tasks, runs = [0.0, 2.0, 10.0, 30.0], ["a", "a", "b", "b"], [0, 1, 0, 1]
    means = resampled_means(values, [tasks, runs], fixed=[0])
    assert set(means) == {a + b for a in (0.0, 0.5, 1.0) for b in (5.0, 10.0, 15.0)}
    assert percentile_interval(10.5, means, 0.5).mean == 10.5


def test_percentiles_by_hand() -> None:
    interval = percentile_interval(7.0, np.arange(101.0), 0.9)
    assert (interval.mean, interval.low, interval.high) == (7.0, pytest.approx(5.0), pytest.approx(95.0))

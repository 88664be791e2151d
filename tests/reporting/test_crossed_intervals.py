"""Two intervals of one mean, by hand and by their coverage of simulated panels."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulated_panels import PAIRS, RATES, WORLDS, World, of_difference, of_mean
from trailnotes.reporting.intervals import (
    MIN_FAMILIES,
    NO_VARIATION,
    ONE_SEED,
    RATE_BOUNDS,
    SEEDS_ALIKE,
    CrossedMoments,
    Estimate,
    Interval,
    Values,
    VarianceComponent,
    compute_moments,
    compute_population_limits,
    estimate,
    estimate_difference,
)

NO_SEEDS = VarianceComponent(np.array(0.0), np.array(1.0))


def panel(*seeds: Sequence[Sequence[float]]) -> tuple[Values, dict[str, str]]:
    """Seeds of families of games, and which game is of which family."""
    values = {
        number: {f"{family}/{game}": value for family, games in enumerate(seed) for game, value in enumerate(games)}
        for number, seed in enumerate(seeds)
    }
    return values, {name: name.partition("/")[0] for name in values[0]}


def of(*seeds: Sequence[Sequence[float]], rates: bool = True) -> Estimate:
    return estimate(*panel(*seeds), RATE_BOUNDS if rates else None)


def test_on_the_panel_the_seeds_are_the_sample() -> None:
    """Seeds of 0.2, 0.3 and 0.4: standard deviation 0.1, of their mean 0.1 / sqrt 3, times 4.303 with two degrees."""
    games = [[1.0] * won + [0.0] * (10 - won) for won in (2, 3, 4)]
    result = of(*([own] for own in games))
    assert result.mean == pytest.approx(0.3)
    assert (result.on_panel.low, result.on_panel.high) == pytest.approx((0.3 - 0.2484, 0.3 + 0.2484), abs=1e-4)
    assert (result.not_on_panel, result.beyond, result.not_beyond) == ("", None, f"1 of {MIN_FAMILIES} families")


def test_families_have_equal_weight() -> None:
    assert of([[1.0], [0.0, 0.0, 0.0]]).mean == 0.5


def test_beyond_the_panel_both_parts_add_up() -> None:
    """Four families, of returns: families 0, 10, 20, 30 on average, seeds 14 and 16."""
    values = np.array([[-1.0, 9.0, 19.0, 29.0], [1.0, 11.0, 21.0, 31.0]])
    result = compute_moments(values, np.eye(4))
    assert result.mean == 15.0
    assert (result.seeds.variance, result.seeds.df) == (pytest.approx(2.0 / 2), 1)
    assert (result.families.variance, result.families.df) == (pytest.approx(500 / 3 / 4), 3)
    square = 12.7062**2 * 1 + 3.1824**2 * 500 / 12
    assert result.squared_margin(0.95) == pytest.approx(square, rel=1e-4)
    low, high = compute_population_limits(result, None)
    assert (low, high) == pytest.approx((15 - square**0.5, 15 + square**0.5), rel=1e-4)


def test_degrees_of_freedom_of_sums() -> None:
    some, none = VarianceComponent(np.array(4.0), np.array(2.0)), VarianceComponent(np.array(0.0), np.array(9.0))
    assert (some + none).df == 2.0
    assert (none + some).df == 2.0
    assert (some + some).df == 4.0
    assert some.scale(0.5).variance == 1.0


def test_where_all_or_none_is_won_there_is_room_beyond() -> None:
    """Wilson's with nine trials, one less than families, and the quantile 2.262: down to 9 / (9 + 2.262^2)."""
    result = of([[1.0, 1.0]] * 10)
    assert (result.beyond.low, result.beyond.high) == pytest.approx((9 / (9 + 2.2622**2), 1.0), abs=1e-4)
    none = of([[0.0, 0.0]] * 10)
    assert none.beyond.high == pytest.approx(1 - result.beyond.low)


def test_equal_families_count_as_two_trials_at_most() -> None:
    """Every family won half: they show no spread at all, and the interval is that of 20 trials."""
    families = VarianceComponent(np.array(1e-9), np.array(np.inf))
    moments = CrossedMoments(np.array(0.5), np.array(1), NO_SEEDS, families, 10)
    limits = compute_population_limits(moments, RATE_BOUNDS)
    assert limits == pytest.approx((0.2993, 0.7007), abs=1e-4)  # 10 of 20 by Wilson's


@given(st.randoms(use_true_random=False), st.integers(2, 4), st.integers(10, 14))
@settings(max_examples=30)
def test_a_win_more_takes_no_room_away(random: Random, seeds: int, families: int) -> None:
    names = {f"{family}.{game}": str(family) for family in range(families) for game in range(4)}
    cells = [(seed, game) for seed in range(seeds) for game in names]
    random.shuffle(cells)

    def interval(wins: int) -> Interval:
        values = {seed: {game: float((seed, game) in cells[:wins]) for game in names} for seed in range(seeds)}
        result = estimate(values, names, RATE_BOUNDS).beyond
        return Interval(result.mean, round(result.low, 9), round(result.high, 9))

    none, every = interval(0), interval(len(cells))
    for wins in (1, 2, 5, len(cells) // 2, len(cells) - 5, len(cells) - 1):
        assert none.low <= interval(wins).low <= every.low
        assert none.high <= interval(wins).high <= every.high
    assert interval(1).high < none.high + 0.05, "one win of all is next to none"
    assert interval(len(cells) - 1).low > every.low - 0.05


def test_interval_of_returns() -> None:
    result = of([[float(family)] for family in range(11)], rates=False)
    assert result.beyond.low == pytest.approx(5 - 2.2281 * (11 / 11) ** 0.5, abs=1e-3)  # of 0 to 10 the variance is 11
    same = of(*[[[7.0]] * 10] * 2, rates=False)
    assert (same.beyond, same.not_beyond, same.not_on_panel) == (None, NO_VARIATION, SEEDS_ALIKE)


@pytest.mark.parametrize("copies", [1, 3, 100])
def test_copied_runs_do_not_narrow_intervals(copies: int) -> None:
    half = [[1.0] * 2, [0.0] * 2] * 8
    grpo, families = panel(*[half] * copies)
    empo2, _ = panel(*[[[1.0] * 2] * 16] * copies)
    once = estimate_difference(*(panel(seed)[0] for seed in ([[1.0] * 2] * 16, half)), families, rates=True)
    result = estimate_difference(empo2, grpo, families, rates=True)
    assert result.beyond == once.beyond
    assert estimate(grpo, families, RATE_BOUNDS).beyond == of(half).beyond


def test_equal_means_of_unlike_seeds_are_chance() -> None:
    """Each seed won one of two games, another one: the mean was 0.5 twice, and could as well have been 0 or 1."""
    result = compute_moments(np.array([[0.0, 1.0], [1.0, 0.0]]), np.full((1, 2), 0.5))
    assert result.seeds.variance == pytest.approx((0.5 + 0.5) * 0.25 / 2)
    estimated = of([[0.0, 1.0]], [[1.0, 0.0]])
    assert estimated.on_panel == Interval(0.5, 0.0, 1.0)


def test_only_games_that_every_seed_has_played_count() -> None:
    values, families = panel([[1.0, 0.0]] * 8, [[1.0, 0.0]] * 8)
    lost = {0: values[0], 1: {name: value for name, value in values[1].items() if name != "0/1"}}
    assert estimate(lost, families, RATE_BOUNDS).mean == pytest.approx((1 + 7 * 0.5) / 8)


def test_a_difference_is_of_common_seeds_and_games() -> None:
    values, families = panel([[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 0.0]])
    less = {1: {"0/0": 0.0}, 7: values[0]}
    result = estimate_difference(values, less, families, rates=True)
    assert (result.mean, result.not_on_panel) == (1.0, ONE_SEED)
    assert estimate_difference(values, {7: values[0]}, families, rates=True) is None
    assert estimate_difference(values, {}, families, rates=True) is None


def test_difference_of_all_and_none() -> None:
    """In ten families nothing varied in the difference of 1; by Wilson's each rate has room, and so has this."""
    won, families = panel([[1.0] * 2] * 10)
    lost, _ = panel([[0.0] * 2] * 10)
    result = estimate_difference(won, lost, families, rates=True)
    room = 2.2622**2 / (9 + 2.2622**2)
    assert (result.beyond.low, result.beyond.high) == pytest.approx((1 - room * 2**0.5, 1.0), abs=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("families", [MIN_FAMILIES, 24])
@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
def test_both_intervals_hold_what_they_are_of(seeds: int, families: int) -> None:
    """At least 92 % where the nominal is 95 %, in each world and at each rate, for means and for differences."""
    rng = np.random.default_rng((seeds, families))
    worlds = [World(seeds, families, 2, *kind) for kind in WORLDS]
    for world in worlds:
        result = {rate: of_mean(world, rate, 1000, rng) for rate in RATES}
        result |= {pair: of_difference(world, pair, 1000, rng) for pair in PAIRS}
        for case, record in result.items():
            assert record["beyond"] >= 0.92, (world, case, record)
            assert record["beyond_given"] == 1
            if record.get("on_panel_given", 0) > 0.25:
                assert record["on_panel"] >= 0.92, (world, case, record)

"""Returns and advantages, each number worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.credit import discounted_return, episode_return, group_relative, novelty_bonus
from trailnotes.types import Completion, Observation, Step, Task, Trajectory

finite = st.floats(-100, 100, allow_nan=False)


def trajectory(rewards: list[float], intrinsic: list[float]) -> Trajectory:
    completion = Completion((1,), (2,), (-0.5,), "go")
    steps = tuple(
        Step(Observation("here"), (), completion, (1,), "go", reward, bonus)
        for reward, bonus in zip(rewards, intrinsic, strict=True)
    )
    return Trajectory(Task("t", "e"), steps, Observation("end"), "terminated", True, 1.0)


def test_group_relative_by_hand() -> None:
    # mean 2, deviations -2 0 2, sample variance (4 + 0 + 4) / 2 = 4, std 2
    np.testing.assert_allclose(group_relative([0.0, 2.0, 4.0]), [-2 / 2.000001, 0, 2 / 2.000001], rtol=1e-12)
    # one success in four: mean .25, sample variance (3 * .0625 + .5625) / 3 = .25, std .5
    np.testing.assert_allclose(group_relative([1, 0, 0, 0]), np.array([0.75, -0.25, -0.25, -0.25]) / 0.500001)
    np.testing.assert_allclose(group_relative([1, 0, 0, 0], normalize_std=False), [0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("value", [0.1, 1 / 3, -7e9])
@pytest.mark.parametrize("normalize_std", [True, False])
def test_equal_returns_give_exact_zeros(value: float, normalize_std: bool) -> None:
    assert group_relative([value] * 7, normalize_std).tolist() == [0.0] * 7


def test_a_group_of_one_or_none_has_nothing_to_be_relative_to() -> None:
    assert group_relative([5.0]).tolist() == [0.0]
    assert group_relative([]).tolist() == []


@pytest.mark.parametrize("returns", [[1.0, math.nan], [1.0, math.inf], [[1.0, 2.0]], 1.0])
def test_returns_must_be_finite_and_flat(returns: object) -> None:
    with pytest.raises(ValueError, match="finite numbers"):
        group_relative(returns)  # type: ignore[arg-type]


@given(st.lists(finite, min_size=2, max_size=8), st.randoms())
def test_permuting_returns_permutes_advantages(returns: list[float], random: object) -> None:
    order = list(range(len(returns)))
    random.shuffle(order)  # type: ignore[attr-defined]
    permuted = group_relative([returns[i] for i in order])
    np.testing.assert_allclose(permuted, group_relative(returns)[order], atol=1e-9)


@given(st.lists(finite, min_size=2, max_size=8), finite)
def test_advantages_are_centred_and_blind_to_a_shift(returns: list[float], shift: float) -> None:
    plain = group_relative(returns, normalize_std=False)
    assert abs(plain.sum()) < 1e-9
    np.testing.assert_allclose(group_relative(np.add(returns, shift), normalize_std=False), plain, atol=1e-9)


def test_episode_return_adds_the_weighted_bonus() -> None:
    episode = trajectory([0.5, -1.0, 2.0], [1.0, 0.5, 0.25])
    assert episode_return(episode) == 1.5
    assert episode_return(episode, beta=2.0) == 1.5 + 2 * 1.75


def test_returns_do_not_depend_on_the_order_of_rewards() -> None:
    forward = trajectory([0.1, 0.2, 0.3], [0.0] * 3)
    backward = trajectory([0.3, 0.2, 0.1], [0.0] * 3)
    assert episode_return(forward) == episode_return(backward)


def test_novelty_bonus_by_hand() -> None:
    assert novelty_bonus([1, 2, 4]) == 1.75
    assert novelty_bonus([]) == 0.0
    with pytest.raises(ValueError, match="at least 1"):
        novelty_bonus([1, 0])


def test_discounted_return_by_hand() -> None:
    # 8; 4 + .5 * 8 = 8; 2 + .5 * 8 = 6
    assert discounted_return([2, 4, 8], 0.5).tolist() == [6.0, 8.0, 8.0]
    assert discounted_return([1, 2, 3], 1.0).tolist() == [6.0, 5.0, 3.0]
    assert discounted_return([1, 2, 3], 0.0).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="gamma"):
        discounted_return([1.0], 1.5)

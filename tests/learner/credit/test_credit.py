"""Returns and advantages, each number worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.config.methods_schema import AlgorithmConfig
from trailnotes.learner.credit.episodes import (
    Scores,
    compute_valid_share,
    discounted_return,
    episode_return,
    group_advantages,
    group_relative,
    leave_one_out_advantages,
    score_group,
)
from trailnotes.types import Completion, Observation, Step, Task, Trajectory, TrajectoryGroup


def test_group_relative_by_hand() -> None:
    # mean 2, deviations -2 0 2, sample variance (4 + 0 + 4) / 2 = 4, std 2
    np.testing.assert_allclose(group_relative([0.0, 2.0, 4.0]), [-2 / 2.000001, 0, 2 / 2.000001], rtol=1e-12)
    # one success in four: mean .25, sample variance (3 * .0625 + .5625) / 3 = .25, std .5
    np.testing.assert_allclose(group_relative([1, 0, 0, 0]), np.array([0.75, -0.25, -0.25, -0.25]) / 0.500001)
    np.testing.assert_allclose(group_relative([1, 0, 0, 0], normalize_std=False), [0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("value", [0.1, 1 / 3, -7e9])
@pytest.mark.parametrize("normalize_std", [True, False])
def test_equal_returns_give_exact_zeros(value: float, normalize_std: bool) -> None:
    for num in (0, 1, 7):
        assert group_relative([value] * num, normalize_std).tolist() == [0.0] * num


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, -0.1]), min_size=2, max_size=6), st.randoms())
def test_the_order_in_which_rewards_are_added_teaches_nothing(rewards: list[float], random: object) -> None:
    orders = [rewards[:], rewards[:], rewards[:]]
    for order in orders:
        random.shuffle(order)  # type: ignore[attr-defined]
    returns = [sum(order) for order in orders]
    if abs(returns[0]) > 0.05:  # rewards that cancel leave only rounding
        assert group_relative(returns).tolist() == [0.0] * 3
        penalized = group_relative([returns[0] - 0.1], group=returns)
        np.testing.assert_allclose(penalized, [-0.1], rtol=1e-6)


def test_episode_return_adds_the_weighted_bonus() -> None:
    earned = zip([0.5, -1.0, 2.0], [1.0, 0.5, 0.25], strict=True)
    episode = played(*(replace(acted("go", reward), reward_intrinsic=bonus) for reward, bonus in earned))
    assert episode_return(episode) == episode.episode_return == 1.5
    assert episode_return(episode, beta=2.0) == 1.5 + 2 * 1.75


def test_discounted_return_by_hand() -> None:
    # 8; 4 + .5 * 8 = 8; 2 + .5 * 8 = 6
    assert discounted_return([2, 4, 8], 0.5).tolist() == [6.0, 8.0, 8.0]
    assert discounted_return([1, 2, 3], 1.0).tolist() == [6.0, 5.0, 3.0]
    assert discounted_return([1, 2, 3], 0.0).tolist() == [1.0, 2.0, 3.0]


def test_values_may_be_compared_with_a_group_they_are_not_of() -> None:
    # of the group 0 2 4: mean 2, std 2
    np.testing.assert_allclose(group_relative([3.0, 2.0], group=[0.0, 2.0, 4.0]), [0.5, 0.0], rtol=1e-6)
    assert group_relative([3.0], group=[1.0, 1.0]).tolist() == [2.0], "no spread to divide by"
    np.testing.assert_allclose(group_relative([3.0, 1.0], ddof=0), [1.0, -1.0], rtol=1e-5)


# --- what episodes earned, and penalties


def acted(action: str, reward: float = 0.0) -> Step:
    return Step(Observation(f"at {action}"), (), Completion((1,), (2,), (-0.5,), action), (1,), action, reward)


def played(*steps: Step) -> Trajectory:
    return Trajectory(Task("t", "e"), steps, Observation("end"), "terminated", True, 1.0)


PAIR = TrajectoryGroup(
    Task("t", "e"), (played(acted("go", reward=1.0), acted("", reward=3.0)), played(acted("go"), acted("go")))
)


def score_pair(penalty: float = 0.5) -> Scores:
    return score_group(PAIR, AlgorithmConfig(name="grpo", invalid_penalty=penalty))


def test_scores_hold_what_was_earned_where() -> None:
    scores = score_pair()
    assert scores.returns.tolist() == [4.0, 0.0]
    assert [row.tolist() for row in scores.rewards] == [[1.0, 3.0], [0.0, 0.0]]
    assert scores.states == (("at go", "at "), ("at go", "at go"))
    assert [row.tolist() for row in scores.penalties] == [[0.0, 0.5], [0.0, 0.0]]
    assert compute_valid_share([PAIR]) == 0.75
    assert compute_valid_share([]) == 0.0


def test_a_penalty_is_divided_with_the_rest() -> None:
    # returns 4 0: mean 2, std 2.8284
    first, second = group_advantages(score_pair(), AlgorithmConfig())
    np.testing.assert_allclose(first, [2 / 8**0.5, 1.5 / 8**0.5], rtol=1e-6)
    np.testing.assert_allclose(second, [-2 / 8**0.5] * 2, rtol=1e-6)


def test_a_penalty_without_normalisation_counts_as_it_is() -> None:
    relative = group_advantages(score_pair(), AlgorithmConfig(normalize_std=False))
    assert [row.tolist() for row in relative] == [[2.0, 1.5], [-2.0, -2.0]]
    assert [row.tolist() for row in leave_one_out_advantages(score_pair())] == [[4.0, 3.5], [-4.0, -4.0]]


def test_a_mean_divides_in_the_place_of_the_deviation() -> None:
    """Returns 4 and 0: mean 2, so 1 and -1. One success of four is worth 3, where a deviation makes it 1.5."""
    by_mean = AlgorithmConfig(normalize_mean=True)
    assert [row.tolist() for row in group_advantages(score_pair(penalty=0.0), by_mean)] == [[1.0] * 2, [-1.0] * 2]
    nothing = tuple(np.zeros(1) for _ in range(4))
    four = Scores(np.array([1.0, 0.0, 0.0, 0.0]), nothing, ((0,),) * 4, nothing)
    assert [row.tolist() for row in group_advantages(four, by_mean)] == [[3.0], [-1.0], [-1.0], [-1.0]]
    failed = replace(four, penalties=(np.array([0.25]), *nothing[1:]))
    for equal in (np.zeros(4), np.full(4, 2.0)):  # nothing is divided: a penalty counts as it is
        rows = group_advantages(replace(failed, returns=equal), by_mean)
        assert [row.tolist() for row in rows] == [[-0.25], [0.0], [0.0], [0.0]]
    with pytest.raises(ValueError, match="one is negative"):
        group_advantages(replace(four, returns=np.array([1.0, 0.0, 0.0, -1.0])), by_mean)


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, -0.1, -0.3]), min_size=2, max_size=6), st.randoms())
def test_a_mean_of_rounding_alone_divides_nothing(rewards: list[float], random: object) -> None:
    """Rewards of 0.1, 0.2 and -0.3 sum to 0 or to 5e-17, by their order: neither is a success."""
    rows = [rewards[:] for _ in range(3)]
    for row in rows:
        random.shuffle(row)  # type: ignore[attr-defined]
    returns = np.array([sum(row) for row in rows])
    if returns.max() > -1e-9:
        blank = tuple(np.zeros(len(row)) for row in rows)
        scores = Scores(returns, tuple(map(np.array, rows)), tuple(tuple(row) for row in rows), blank)
        assert not any(row.any() for row in group_advantages(scores, AlgorithmConfig(normalize_mean=True)))

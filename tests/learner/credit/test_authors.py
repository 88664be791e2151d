"""What tips earn their authors, each number worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.config.methods_schema import AlgorithmConfig
from trailnotes.learner.credit.authors import compute_tip_credits, list_shown_texts, split_by_use, split_equally
from trailnotes.types import Completion, Mode, Observation, Step, Task, Tip, Trajectory, TrajectoryGroup

RIGHT, LIE, EMPTY = "granite : chest ruby", "granite : chest opal", "nothing found"
TASK = Task("task", "numbers")


def played(value: float, *texts: str, task: Task = TASK) -> Trajectory:
    """An episode of that return, shown these tips in its only turn."""
    tips = tuple(Tip(task.id, text, key="", score=0.0) for text in texts)
    step = Step(Observation("here"), tips, Completion((1,), (2,), (-0.5,), "go"), (1,), "go", value)
    mode: Mode = "off_policy" if tips else "plain"
    return Trajectory(task, (step,), Observation("end"), "terminated", value > 0, value, mode=mode)


def credit(*groups: list[Trajectory], normalize_std: bool = False, **algorithm: Any) -> dict[tuple[str, str], float]:
    """With equal shares."""
    algorithm = AlgorithmConfig(normalize_std=normalize_std, **algorithm)
    made = [TrajectoryGroup(group[0].task, tuple(group)) for group in groups]
    return compute_tip_credits(
        made, [[split_equally(list_shown_texts(t)) for t in group] for group in groups], algorithm
    )


def test_credit_is_the_gain_over_members_without_tips() -> None:
    assert credit([played(1, RIGHT), played(0), played(0), played(1)]) == {("task", RIGHT): pytest.approx(2 / 3)}
    assert credit([played(0, LIE), played(1), played(1), played(0)]) == {("task", LIE): pytest.approx(-2 / 3)}


def test_a_tip_that_changes_nothing_earns_exactly_nothing() -> None:
    assert credit([played(1, RIGHT), played(1)], [played(0, EMPTY), played(0)], normalize_std=True) == {
        ("task", RIGHT): 0.0,
        ("task", EMPTY): 0.0,
    }


def test_a_tip_earns_the_mean_over_its_readers() -> None:
    # 1 - 0 in the first group, 0 - 1/2 in the second: (1 - 1/2) / 2
    groups = [played(1, RIGHT), played(0)], [played(0, RIGHT), played(1), played(0)]
    assert credit(*groups) == {("task", RIGHT): pytest.approx(0.25)}
    # two readers in one group: (1 + 0) / 2 - 0
    assert credit([played(1, RIGHT), played(0, RIGHT), played(0)]) == {("task", RIGHT): pytest.approx(0.5)}


def test_the_same_text_about_another_task_is_another_tip() -> None:
    other = Task("other", "numbers")
    earned = credit([played(1, RIGHT), played(0)], [played(0, RIGHT, task=other), played(1, task=other)])
    assert earned == {("task", RIGHT): 1.0, ("other", RIGHT): -1.0}


def test_credit_is_in_the_unit_of_the_advantages() -> None:
    # returns 10 0 0 0: deviation 5, the reader's advantage 7.5/5, that of the others -2.5/5
    earned = credit([played(10, RIGHT), played(0), played(0), played(0)], normalize_std=True)
    assert earned == {("task", RIGHT): pytest.approx(2.0, rel=1e-5)}


def test_credit_compares_the_returns_that_advantages_compare() -> None:
    def late(value: float, *texts: str) -> Trajectory:
        episode, wait = played(value, *texts), played(0.0, *texts).steps[0]
        return replace(episode, steps=(replace(wait, reward_intrinsic=0.5), *episode.steps))

    assert credit([late(1, RIGHT), played(0)], discount=0.9) == {("task", RIGHT): pytest.approx(0.9 + 0.5)}
    assert credit([late(1, RIGHT), played(0)], beta=0.0, discount=0.9) == {("task", RIGHT): pytest.approx(0.9)}


@pytest.mark.parametrize("group", [[played(1, RIGHT), played(0, RIGHT)], [played(1), played(0)]])
def test_without_members_of_both_kinds_there_is_no_comparison(group: list[Trajectory]) -> None:
    assert credit(group) == {}


def test_a_reader_without_tips_counts_as_plain() -> None:
    shown_none = Trajectory(TASK, played(1).steps, Observation("end"), "terminated", True, 1.0, mode="on_policy_tips")
    assert credit([played(0, LIE), shown_none]) == {("task", LIE): -1.0}


@given(st.integers(1, 6), st.floats(-5, 5), st.floats(-5, 5))
def test_what_a_reader_gained_is_given_away_once_however_many_say_it(num: int, mine: float, other: float) -> None:
    earned = credit([played(mine, *(f"{RIGHT} {i}" for i in range(num))), played(other)])
    assert math.fsum(earned.values()) == pytest.approx(mine - other, abs=1e-9)


def test_a_tip_that_repeats_another_does_not_earn_twice() -> None:
    again = "the chest opens with ruby"
    alone = credit([played(1, RIGHT), played(0)])
    both = credit([played(1, RIGHT, again), played(0)])
    assert sum(both.values()) == sum(alone.values()) == 1.0
    # ... nor by the same text twice in the context, as with one entry for each step
    assert credit([played(1, RIGHT, RIGHT), played(0)]) == alone
    gains = {RIGHT: 3.0, again: 3.0}
    assert split_by_use(gains, 50.0) == {RIGHT: pytest.approx(0.5), again: pytest.approx(0.5)}


def test_only_the_tip_that_was_followed_earns() -> None:
    followed_right = split_by_use({EMPTY: 0.0, RIGHT: 6.0, LIE: -2.0}, 6.0)
    assert followed_right == {EMPTY: 0.0, RIGHT: pytest.approx(1 - math.exp(-6)), LIE: 0.0}
    group = TrajectoryGroup(TASK, (played(1, EMPTY, RIGHT, LIE), played(0)))
    earned = compute_tip_credits([group], [[followed_right, {}]], AlgorithmConfig(normalize_std=False))
    assert earned["task", RIGHT] > 0.99
    assert earned["task", LIE] == earned["task", EMPTY] == 0


def test_tips_share_by_nats_what_is_due_to_tips() -> None:
    # all tips double the likelihood: half of what was done is due to them
    assert split_by_use({"a": 1.0, "b": 3.0}, math.log(2)) == {"a": pytest.approx(0.125), "b": pytest.approx(0.375)}
    assert split_by_use({"a": 1.0, "b": 3.0}, -0.1) == {"a": 0.0, "b": 0.0}, "done in spite of the tips"
    assert split_by_use({"a": -1.0, "b": -2.0}, math.log(2)) == {"a": 0.25, "b": 0.25}, "none alone, both together"
    assert split_by_use({}, 1.0) == {}


@given(st.dictionaries(st.text(max_size=3), st.floats(-40, 40), min_size=1, max_size=5), st.floats(-40, 40))
def test_shares_are_never_negative_and_never_more_than_the_whole(gains: dict[str, float], gain: float) -> None:
    shares = split_by_use(gains, gain)
    assert shares.keys() == gains.keys()
    assert min(shares.values()) >= 0
    assert math.fsum(shares.values()) <= 1 + 1e-9

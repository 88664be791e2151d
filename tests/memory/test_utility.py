"""D2Skill's utility of a skill (arXiv 2603.28716), beside what a tip's readers gain."""

from __future__ import annotations

from statistics import fmean

import pytest

from trailnotes.memory.tip_stats import compute_exposures
from trailnotes.types import Completion, Mode, Observation, Step, Task, Tip, Trajectory

TASK = Task("t", "rooms")


def episode(member: int, success: bool, tips: tuple[Tip, ...] = ()) -> Trajectory:
    step = Step(Observation("here"), tips, Completion((), (), (), "go"), (), "go", 0.0)
    mode: Mode = "on_policy_tips" if tips else "plain"
    return Trajectory(
        TASK, (step,), Observation("end"), "terminated", success, float(success), mode=mode, member=member
    )


@pytest.mark.parametrize(("readers", "others"), [([True, False], [False] * 6), ([True] * 4, [True, False] * 2)])
def test_the_mean_gain_of_readers_is_the_gap_of_the_two_halves(readers: list[bool], others: list[bool]) -> None:
    """With skills .5 and without 0: a utility of .5; 1 and .5: .5 as well."""
    tip = Tip("t", "go left", "", 1.0, id=7)
    group = [episode(i, won, (tip,)) for i, won in enumerate(readers)]
    group += [episode(len(readers) + i, won) for i, won in enumerate(others)]
    gains = [exposure.gained for exposure in compute_exposures(group)]
    assert fmean(gain for gain in gains if gain is not None) == fmean(readers) - fmean(others) == 0.5


def test_tips_that_different_members_read_are_told_apart() -> None:
    """One reader of 7 won, one of 8 lost, two others lost: D2Skill gives both 1/2 - 0; here 1 - 0 and 0 - 1/3."""
    seven, eight = (Tip("t", "go left", "", 1.0, id=number) for number in (7, 8))
    group = [episode(0, True, (seven,)), episode(1, False, (eight,)), episode(2, False), episode(3, False)]
    assert {each.tip: each.gained for each in compute_exposures(group)} == {7: 1.0, 8: -1 / 3}

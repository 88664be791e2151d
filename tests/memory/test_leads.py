"""How much likelier tips made what their readers did, each number worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from trailnotes.learner.samples import build_samples
from trailnotes.memory.tip_stats import TipEffect, estimate_reliance, estimate_tip_effects
from trailnotes.types import Completion, Mode, Observation, Step, Task, Tip, Trajectory, TrajectoryGroup

TASK = Task("task", "numbers")
ACTED = -0.25  # what the sampler says of each token, with tips


def tip(tip_id: int) -> Tip:
    return Tip("task", f"tip {tip_id}", "key", 0.0, id=tip_id)


def played(shown: Sequence[Sequence[int]], score: float = 1.0, mode: Mode = "off_policy") -> Trajectory:
    """An episode of two tokens a turn, which was shown tips of these ids in each turn; a tip is one token."""
    acting, plain, steps = [1], [1], []
    for turn, ids in enumerate(shown):
        acting, plain = [*acting, *(100 + tip_id for tip_id in ids), 10 + turn], [*plain, 10 + turn]
        completion = Completion(tuple(acting), (20, 21), (ACTED, ACTED), "go")
        steps.append(Step(Observation("here"), tuple(map(tip, ids)), completion, tuple(plain), "go", 0.0))
        acting, plain = [*acting, 20, 21], [*plain, 20, 21]
    return Trajectory(TASK, tuple(steps), Observation("end"), "terminated", score >= 1, score, mode=mode)


def leads(*episodes: Trajectory, without: float = -1.25, rows: str = "auto") -> list[TipEffect]:
    """Where the policy says `without` of each turn's first token without tips, and the same as with of the second."""
    groups = [TrajectoryGroup(TASK, episodes)]
    samples = [row for row in build_samples(groups, [[1.0] * len(episodes)], rows=rows) if row.off_policy]
    said = [tuple({20: without, 21: ACTED}.get(token, 0.0) for token in row.token_ids) for row in samples]
    return estimate_tip_effects(groups, samples, said)


def test_a_tip_leads_from_the_turn_that_it_was_shown_in() -> None:
    assert leads(played([[1], [2], [], [2]])) == [TipEffect(1, 4.0), TipEffect(2, 3.0)]


def test_rows_of_an_episode_or_of_a_step_give_the_same() -> None:
    episodes = played([[], [1]]), played([[3], [1]])
    assert (
        leads(*episodes) == leads(*episodes, rows="step") == [TipEffect(1, 1.0), TipEffect(3, 2.0), TipEffect(1, 1.0)]
    )


def test_only_readers_who_did_well_and_were_trained_without_tips_tell() -> None:
    assert leads(played([[1]], score=0.25), played([[1]], mode="on_policy_tips"), played([[]], mode="plain")) == []
    assert leads(played([[1]], score=0.5)) == [TipEffect(1, 1.0)]


def test_a_policy_that_does_the_same_without_tips_leads_by_nothing() -> None:
    assert leads(played([[1], []]), without=ACTED) == [TipEffect(1, 0.0)]


def test_reliance_is_the_divergence_of_a_token() -> None:
    """Of two tokens a turn one is e times as probable with tips: k3 of it is 1 - (1 - 1/e) = 1/e."""
    rows = build_samples([TrajectoryGroup(TASK, (played([[1], [2]]),))], [[1.0]])
    said = [tuple({20: ACTED - 1, 21: ACTED}.get(token, 0.0) for token in row.token_ids) for row in rows]
    assert estimate_reliance(rows, said) == pytest.approx(math.exp(-1) / 2)
    assert estimate_reliance([], []) == 0.0

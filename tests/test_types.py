from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from trailnotes.types import Completion, Observation, Sample, Sampling, Step, Task, Tip, Trajectory, TrajectoryGroup

TASK = Task("maze/1", "maze")
END = Observation("end", terminated=True)
NAN, INF = float("nan"), float("inf")


def step(reward: float = 0.0, tokens: int = 1, tips: tuple[Tip, ...] = ()) -> Step:
    return Step(Observation("hall"), tips, Completion((1,), (2,) * tokens, (-0.5,) * tokens, "go"), (1,), "go", reward)


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), np.array(0.5), torch.tensor(0.5), 0.5])
def test_numbers_of_users_become_floats(number: Any) -> None:
    seen, tip = Observation("", number, score=number), Tip("n", "go", "k", number, step=np.int64(3))
    assert [type(value) for value in (seen.reward, seen.score, tip.score, tip.step)] == [float, float, float, int]
    assert seen.reward == seen.score == tip.score == 0.5


@pytest.mark.parametrize("value", [None, "1", [1.0], b"1"])
def test_what_is_no_number_is_refused_by_field_and_type(value: Any) -> None:
    kind = type(value).__name__
    with pytest.raises(TypeError, match=rf"^reward must be a number, is {kind}"):
        Observation("", reward=value)
    with pytest.raises(TypeError, match=rf"^score must be a number, is {kind}"):
        Tip("n", "go", "k", value)


@pytest.mark.parametrize(("given", "score"), [({}, 4.0), ({"score": 3.0}, 3.0), ({"score": -1.0}, -1.0)])
def test_a_success_without_a_score_has_the_whole_score(given: dict[str, float], score: float) -> None:
    assert Observation("", success=True, max_score=4.0, **given).score == score
    assert Observation("", max_score=4.0).score == 0


@pytest.mark.parametrize("text", [None, b"a room", 3])
def test_a_text_that_is_none_is_refused(text: Any) -> None:
    with pytest.raises(TypeError, match=r"^text must be a str"):
        Observation(text)


def trajectory(**changes: Any) -> Trajectory:
    values = {"steps": (), "outcome": "terminated", "success": False, "score": 0} | changes
    return Trajectory(TASK, final_observation=END, **values)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Task("", "maze"), "needs an id and an env"),
        (lambda: Task("a", ""), "needs an id and an env"),
        (lambda: Observation("", reward=NAN), "must be finite"),
        (lambda: Observation("", score=INF), "must be finite"),
        (lambda: Observation("", reward=1e308), "at most 1e\\+30"),
        (lambda: Tip("n", " \n", "k", 1.0), "needs text"),
        (lambda: Tip("n", "go", "k", NAN), "must be finite"),
        (lambda: Sampling(temperature=-0.1), "impossible"),
        (lambda: Sampling(temperature=NAN), "impossible"),
        (lambda: Sampling(top_p=0), "impossible"),
        (lambda: Sampling(top_p=1.1), "impossible"),
        (lambda: Sampling(top_k=-1), "impossible"),
        (lambda: Sampling(max_tokens=0), "impossible"),
        (lambda: Completion((), (1, 2), (-0.1,), "a"), "2 tokens but 1 log-probabilities"),
        (lambda: trajectory(outcome="error"), "needs its error text"),
        (lambda: trajectory(error="died"), "needs its error text"),
        (lambda: trajectory(steps=(step(tips=(Tip("n", "go", "k", 1.0),)),)), "must not hold tips"),
        (lambda: TrajectoryGroup(Task("maze/2", "maze"), (trajectory(),)), "of another task"),
        (lambda: Sample((1, 2), (0, 1), (0.0,), (0.0, 1.0)), "differ in length"),
        (lambda: Sample((1,), (1,), (-0.1,), (1.0,)), "first token"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_built(make: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        make()


def test_return_and_tokens_are_sums_over_steps() -> None:
    played = trajectory(steps=(step(0.1, 3), step(0.2, 2), step(-1.0, 1)))
    assert played.episode_return == pytest.approx(-0.7)
    assert played.num_tokens == 6
    assert trajectory().episode_return == 0.0


def test_the_worked_example_of_an_off_policy_row_is_a_valid_one() -> None:
    """The docstring's second table, read back and built."""
    assert Sample.__doc__ is not None
    rows = {
        words[0]: words[1:]
        for line in Sample.__doc__.splitlines()
        if (words := line.split())
        and words[0] in {"token", "token_ids", "loss_mask", "behavior_logprobs", "advantages"}
    }
    acted, trained = rows["token"], rows["token_ids"]
    assert len(acted) == 9
    assert trained == [*acted[:2], *acted[5:]]  # the note, tokens 2 to 4, is gone
    words = {word: number for number, word in enumerate(acted)}
    sample = Sample(
        token_ids=tuple(words[word] for word in trained),
        loss_mask=tuple(map(int, rows["loss_mask"])),
        behavior_logprobs=tuple(map(float, rows["behavior_logprobs"])),
        advantages=tuple(map(float, rows["advantages"])),
        off_policy=True,
    )
    sampled = [bool(re.fullmatch(r"\*\w+\*", word)) for word in trained]
    assert list(map(bool, sample.loss_mask)) == sampled
    assert [bool(value) for value in sample.behavior_logprobs] == sampled

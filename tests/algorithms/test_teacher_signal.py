"""What a teacher with tips says of single tokens: the published forms, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.algorithms import opsd

FORMS = ("sdpo", "sdar", "opcd")
TEACHER = np.log([0.5, 0.1, 0.4])  # of three tokens that were sampled with probabilities .25, .2 and .4
STUDENT = np.log([0.25, 0.2, 0.4])


def advantages(episode: float, known: tuple[bool, ...] = (True,) * 3, **options: Any) -> list[float]:
    """Of the three tokens of an episode with the advantage `episode`."""
    ratios = opsd.log_ratio(TEACHER, STUDENT)
    return opsd.add_teacher_signal(
        np.full(3, episode), ratios, np.array(known), opsd.OpsdConfig(**{"gate": "none"} | options)
    ).tolist()


def test_the_log_ratio_is_what_the_tips_add() -> None:
    assert opsd.log_ratio(TEACHER, STUDENT).tolist() == pytest.approx([math.log(2), -math.log(2), 0])
    assert opsd.log_ratio([math.nan, -1.0], [-2.0, -3.0]).tolist() == [0, 2]


@pytest.mark.parametrize("form", ["sdpo", "opcd"])
def test_the_log_ratio_is_the_advantage_or_shares_it_with_the_group(form: str) -> None:
    assert advantages(1.5, form=form) == pytest.approx([0.6931, -0.6931, 0], abs=5e-5)
    # .9 * 1.5 = 1.35; .1 * ln 2 = .0693
    assert advantages(1.5, form=form, coefficient=0.1) == pytest.approx([1.4193, 1.2807, 1.35], abs=5e-5)


def test_sdar_adds_a_sigmoid_to_the_advantage_of_the_group() -> None:
    # sigmoid(5 ln 2) = 32 / 33, sigmoid(-5 ln 2) = 1 / 33; a hundredth of what they are from 1/2
    assert advantages(1.5, form="sdar") == pytest.approx([1.5 + 0.01 * 31 / 66, 1.5 - 0.01 * 31 / 66, 1.5])


def test_the_half_that_sdar_goes_without_is_a_baseline() -> None:
    """Over the three tokens as the student draws them, grad log pi is 0 on average, and so is a constant times it."""
    pi, options = np.array([0.25, 0.35, 0.4]), opsd.OpsdConfig(form="sdar", coefficient=1.0)
    ratios = opsd.log_ratio(TEACHER, np.log(pi))
    centred = opsd.compute_teacher_signal(ratios, options)
    published = 1 / (1 + np.exp(-opsd.BETA * ratios))
    by_logit = np.eye(3) - pi  # [token, logit]: d log pi(token) / d logit
    np.testing.assert_allclose((pi * centred) @ by_logit, (pi * published) @ by_logit, atol=1e-12)


@pytest.mark.parametrize(
    ("gate", "episode", "expected"),
    [
        ("none", -1.0, [True, True, True]),
        ("agree", -1.0, [False, True, True]),  # not where the teacher praises what the reward blames
        ("agree", 1.0, [True, False, True]),
        ("agree", 0.0, [True, True, True]),  # all returns equal: nothing speaks against the teacher
        ("positive", 1.0, [True, True, True]),
        ("positive", 0.0, [False, False, False]),
        ("positive", -1.0, [False, False, False]),
    ],
)
def test_the_reward_keeps_the_gate(gate: str, episode: float, expected: list[bool]) -> None:
    assert opsd.compute_gate(opsd.log_ratio(TEACHER, STUDENT), np.full(3, episode), gate).tolist() == expected
    for form in FORMS:
        free, kept = advantages(episode, form=form), advantages(episode, form=form, gate=gate)
        assert kept == [one if is_open else episode for one, is_open in zip(free, expected, strict=True)]
        assert advantages(episode, (False, False, False), form=form, gate=gate) == [episode] * 3, "none has a teacher"


def test_the_log_ratio_is_held_within_its_bound() -> None:
    ratios = np.array([9.0, -9.0, 1.0])
    assert opsd.compute_teacher_signal(ratios, opsd.OpsdConfig()).tolist() == [5, -5, 1]
    assert opsd.compute_teacher_signal(ratios, opsd.OpsdConfig(), math.inf).tolist() == [9, -9, 1]


finite = st.floats(-30, 30)


@given(episode=finite, ratios=st.lists(finite, min_size=1, max_size=5), form=st.sampled_from(FORMS))
def test_a_weight_of_zero_leaves_the_group_alone_bit_for_bit(episode: float, ratios: list[float], form: str) -> None:
    group, known = np.full(len(ratios), episode), np.ones(len(ratios), dtype=bool)
    options = opsd.OpsdConfig(form=form, coefficient=0)
    assert opsd.add_teacher_signal(group, np.array(ratios), known, options).tolist() == group.tolist()

"""UCOB: who teaches whom, what a token of a lesson weighs, and what it reduces to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tiny import group, step, trajectory
from tinyrun import distance, equal_weights, metrics, trained
from trailnotes.algorithms.ucob import Lesson, Turn, collect_turns, find_lessons, lesson_metrics, weigh_rows
from trailnotes.learner.credit.steps import Visits
from trailnotes.learner.samples import anchor_sample
from trailnotes.types import NO_OP, Completion, Observation

UCOB = {"name": "ucob", "p_memory": 0.5}


def answer(prompt: int, *logprobs: float) -> Completion:
    return Completion((prompt,), tuple(range(10, 10 + len(logprobs))), logprobs, "go")


def turn(number: int, *, has_tips: bool, other: int = 0) -> Turn:
    return Turn(answer(number, -1.0), has_tips, (other,) if other else ())


def visits(*scores: float) -> Visits:
    """One visit of one state by each of so many episodes."""
    steps = np.zeros(len(scores), dtype=np.int64)
    numbers = np.array(scores)
    return Visits(np.arange(len(scores)), steps, ("here",) * len(scores), numbers, numbers)


# --- who teaches whom


def test_the_better_branch_teaches_the_other_context() -> None:
    """Returns of 100: gaps .60, .10 and .04 at a margin of .05; weights .6 / .2, held at 2, and .1 / .2."""
    turns = [turn(1, has_tips=True, other=11), turn(2, has_tips=False, other=12), turn(3, has_tips=True, other=13),
             turn(4, has_tips=False, other=14)]  # fmt: skip
    lessons = find_lessons(visits(90.0, 30.0, 80.0, 86.0), turns, 100.0)
    assert [(each.prompt, round(each.gap, 2), round(each.weight, 2)) for each in lessons] == [
        ((2,), 0.6, 2.0),  # played without tips: its own prompt
        ((13,), 0.1, 0.5),  # played with tips: its prompt without them
    ]
    assert all(each.from_tips and each.answer == turns[0].answer for each in lessons)


def test_an_answer_without_tips_teaches_the_context_with_tips() -> None:
    turns = [turn(1, has_tips=True, other=11), turn(2, has_tips=False, other=12), turn(3, has_tips=False)]
    lessons = find_lessons(visits(0.0, 1.0, 0.0), turns, 1.0)
    (lesson,) = lessons  # the third had no tips
    assert (lesson.prompt, lesson.from_tips, lesson.weight) == ((1,), False, 2.0)
    for most in (0.0, -1.0):  # the best score of the game
        assert find_lessons(visits(most - 1.0, most, most - 1.0), turns, most) == [lesson]


def test_only_the_largest_gaps_of_a_state_are_taught() -> None:
    turns = [turn(i, has_tips=i == 1, other=10 + i) for i in range(1, 6)]
    lessons = find_lessons(visits(1.0, 0.4, 0.2, 0.3, 0.1), turns, 1.0)
    assert [each.prompt for each in lessons] == [(5,), (3,)]


def test_an_invalid_action_neither_teaches_nor_is_taught() -> None:
    """Returns 1, .5 and 0: without the first and the last step nobody earned less than the second."""
    turns = [turn(1, has_tips=True, other=11), turn(2, has_tips=False, other=12), turn(3, has_tips=True, other=13)]
    assert len(find_lessons(visits(1.0, 0.5, 0.0), turns, 1.0)) == 2
    turns = [replace(turns[0], valid=False), turns[1], replace(turns[2], valid=False)]
    assert find_lessons(visits(1.0, 0.5, 0.0), turns, 1.0) == []


def test_turns_know_both_contexts() -> None:
    with_tips = trajectory([step([1, 9], [5], plain=[1])], "on_policy_tips")
    plain = trajectory([step([1], [6]), replace(step([1, 6, 2], [7]), action=NO_OP)])
    told = trajectory([step([1, 8], [6], plain=[1])], "on_policy_tips")  # its second turn did not fit
    turns = collect_turns(group(with_tips, plain), group(with_tips, told))
    assert [(each.has_tips, each.other_prompt) for each in turns] == [(True, (1,)), (False, (1, 8)), (False, ())]
    assert [each.valid for each in turns] == [True, True, False]
    excepted = group(trajectory([replace(step([1], [6]), observation=Observation("", request={"trained": False}))]))
    assert not collect_turns(excepted, excepted)[0].valid


# --- what it weighs


def test_the_gate_of_a_token_by_hand() -> None:
    """log pi_teacher = -1 and -1, log pi_pupil = -1 and -3: gates 1/2 and sigmoid(10) = .99995, times .1 times 2."""
    lesson = Lesson(answer(1, -1.0, -1.0), True, (2, 3), 0.6, 2.0)
    row = anchor_sample(replace(lesson.answer, prompt_ids=lesson.prompt), "lesson", hold=0.0, advantage=1.0)
    assert (row.token_ids, row.loss_mask, row.role) == ((2, 3, 10, 11), (0, 0, 1, 1), "lesson")
    (taught,), gates = weigh_rows([lesson], [row], [[0.0, 0.0, -1.0, -3.0]], coefficient=0.1)
    assert taught.advantages == pytest.approx((0.0, 0.0, 0.1, 0.2 * 0.9999546))
    assert taught.behavior_logprobs == (0.0, 0.0, -1.0, -3.0), "the ratio of the first step is 1"
    assert lesson_metrics([lesson], gates) == pytest.approx(
        {"lessons": 1.0, "from_tips": 1.0, "gap": 0.6, "gate": (0.5 + 0.9999546) / 2}
    )
    assert set(lesson_metrics([], []).values()) == {0.0}


# --- reductions, on whole runs


def test_on_an_empty_memory_it_is_gigpo(start_model: Path, tmp_path: Path) -> None:
    ucob = trained(start_model, tmp_path / "ucob", algorithm=UCOB, memory={"top_k": 0})
    gigpo = trained(start_model, tmp_path / "gigpo", algorithm={"name": "gigpo"})
    assert equal_weights(ucob, gigpo)
    assert distance(ucob, start_model) > 1e-3, "nothing was learned: the test shows nothing"
    assert {line["ucob/lessons"] for line in metrics(ucob)} == {0.0}


@pytest.mark.long
def test_without_step_term_and_lessons_it_is_empo2_that_keeps_its_tips(start_model: Path, tmp_path: Path) -> None:
    """The advantages of GiGPO without step term, not divided by the deviation, are GRPO's."""
    same = {"p_memory": 0.5, "q_off_policy": 0.0, "normalize_std": False, "author_credit": 1.0}
    ucob = trained(start_model, tmp_path / "ucob", algorithm=UCOB | same, gigpo={"omega": 0.0},
                   ucob={"coefficient": 0.0})  # fmt: skip
    empo2 = trained(start_model, tmp_path / "empo2", algorithm={"name": "empo2"} | same)
    assert equal_weights(ucob, empo2)
    last = metrics(ucob)[-1]
    assert last["ucob/lessons"] > 0, "there was something to teach all the same"
    assert last["authors/credited"] > 0, "authors are credited as in EMPO2"

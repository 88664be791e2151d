"""Scripted WikiHow episodes: they reach what is asked for, do what a tip tells, and say nothing that is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

import small_wikihow
from small import count_words, small_config
from trailnotes.config.schema import Config
from trailnotes.rollout.advice import parse_advice
from trailnotes.types import Task
from trailnotes_worlds.demonstrations.wikihow import WikiHowDemonstrator, collect_eval_titles
from trailnotes_worlds.wikihow.app import parse_action
from trailnotes_worlds.wikihow.library import write_library
from trailnotes_worlds.wikihow.protocols import TaskSelection, _make_task, make_goal


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small library, but that its first article is one to train on."""
    peel = replace(small_wikihow.BOIL, title="Peel an Egg")
    pages = small_wikihow.ANN, small_wikihow.EGGS, small_wikihow.FOOD
    lists = [replace(page, articles=(peel.path, *page.articles[1:])) for page in pages]
    folder = tmp_path_factory.mktemp("libraries") / "small"
    write_library(folder, [peel, small_wikihow.FRY, small_wikihow.FRY_TWO, *small_wikihow.MORE, *lists]).close()
    return str(folder)


def a_config(library: str, **warmstart: float) -> Config:
    return small_config(
        env={"name": "wikihow", "options": {"library": library, "view": "short"}},
        rollout={"max_steps": 15, "max_context_tokens": 4000, "max_observation_tokens": 400, "style": "terse"},
        memory={"top_k": 3, "max_tip_tokens": 100},
        warmstart=warmstart,
    )


TASKS = [
    _make_task(goal, "train", TaskSelection())
    for goal in (
        make_goal("article", "Peel an Egg", ""),
        make_goal("about", "Peel an Egg", ""),
        make_goal("references", "Peel an Egg", ""),
        make_goal("author", "Peel an Egg", "", "Ann Lee, PhD", ("Fry an Egg", "Fry-an-Egg")),
        make_goal("category", "Peel an Egg", "", "Eggs", ("Fry an Egg Twice", "Fry-an-Egg-Twice")),
    )
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.options["template"])
def test_the_straight_way_reaches_everything(library: str, task: Task) -> None:
    subject = WikiHowDemonstrator(a_config(library), count_words, 0)
    trajectory = subject.play(task, "straight")
    assert (trajectory.success, trajectory.score) == (True, trajectory.max_score)
    assert not any(step.observation.info.get("refused") for step in trajectory.steps)
    assert subject.write_note(trajectory) == subject.format_actions(trajectory)


def test_what_a_tip_tells_is_what_is_done(library: str) -> None:
    subject = WikiHowDemonstrator(a_config(library), count_words, 1)
    for _ in range(8):
        trajectory, (praised, *others) = subject.play_with_tip(TASKS[3])
        assert praised.text == subject.format_actions(trajectory)
        assert praised.score == praised.max_score > max((tip.score for tip in others), default=0)


def test_no_article_of_an_evaluation_goal_occurs(library: str) -> None:
    config = a_config(library, p_follow_tip=0.4, p_explore=0.7, advice=0.3)
    subject = WikiHowDemonstrator(config, count_words, 4)
    examined = collect_eval_titles(config.env.options)
    shown = "\n".join(message.content for demo in islice(subject, 80) for message in demo.messages).lower()
    assert len(examined) > 5
    assert "paint 1 eggs" in shown
    assert [title for title in examined if title in shown] == []


def test_advice_is_in_the_form_of_rememberer(library: str) -> None:
    subject = WikiHowDemonstrator(a_config(library, advice=1.0), count_words, 6)
    for demo in islice(subject, 40):
        *_, asked, answer = demo.messages
        (advice,) = parse_advice(answer.content)
        assert parse_action(advice.action).kind != "NOTHING"
        assert demo.taught == {len(demo.messages) - 1}
        assert asked.content.endswith("do :")

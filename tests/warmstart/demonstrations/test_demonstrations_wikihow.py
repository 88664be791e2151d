"""Scripted WikiHow episodes: they reach what is asked for, do what a tip tells, and say nothing that is refused."""

from __future__ import annotations

from itertools import islice

import pytest

import howto
from small import small_config
from trailnotes.config.schema import Config
from trailnotes.envs.wikihow.goals import goal_of
from trailnotes.envs.wikihow.protocols import Choice, _task
from trailnotes.errors import ConfigError
from trailnotes.types import Task
from trailnotes.warmstart.demonstrations import demonstrator_of
from trailnotes.warmstart.demonstrations.wikihow import WikiHowDemonstrator


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("libraries") / "small"
    howto.small_library(folder).close()
    return str(folder)


def a_config(library: str, **warmstart: float) -> Config:
    return small_config(
        env={"name": "wikihow", "options": {"library": library, "view": "short"}},
        rollout={"max_steps": 15, "max_context_tokens": 4000, "max_observation_tokens": 400, "style": "terse"},
        memory={"top_k": 3, "max_tip_tokens": 100},
        warmstart=warmstart,
    )


TASKS = [
    _task(goal, "train", Choice())
    for goal in (
        goal_of("article", "Boil an Egg", ""),
        goal_of("about", "Boil an Egg", ""),
        goal_of("references", "Boil an Egg", ""),
        goal_of("author", "Boil an Egg", "", "Ann Lee, PhD", ("Fry an Egg", "Fry-an-Egg")),
        goal_of("category", "Boil an Egg", "", "Eggs", ("Fry an Egg Twice", "Fry-an-Egg-Twice")),
    )
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.options["template"])
def test_the_straight_way_reaches_everything(library: str, task: Task) -> None:
    subject = WikiHowDemonstrator(a_config(library), words, 0)
    trajectory = subject.play(task, "straight")
    assert (trajectory.success, trajectory.score) == (True, trajectory.max_score)
    assert not any(step.observation.info.get("refused") for step in trajectory.steps)
    assert subject.note(trajectory) == subject.way(trajectory)


def test_what_a_tip_tells_is_what_is_done(library: str) -> None:
    subject = WikiHowDemonstrator(a_config(library), words, 1)
    for _ in range(8):
        trajectory, (praised, *others) = subject.told(TASKS[3])
        assert praised.text == subject.way(trajectory)
        assert praised.score == praised.max_score > max((tip.score for tip in others), default=0)


def test_what_was_not_reached_is_written_down(library: str) -> None:
    subject = WikiHowDemonstrator(a_config(library), words, 2)
    cut = subject.play(TASKS[3], "straight")
    begun = type(cut)(
        cut.task, cut.steps[:1], cut.steps[1].observation, "truncated", success=False, score=1, max_score=4
    )
    assert subject.note(begun).endswith(' ) . not yet : access the article "how to boil an egg"')


def test_what_is_said_is_understood_and_comes_again_with_the_seed(library: str) -> None:
    config = a_config(library, obey=0.4, read=0.5)
    first, again = (list(islice(WikiHowDemonstrator(config, words, 3), 12)) for _ in range(2))
    assert first == again
    taught = {demo.messages[place].content for demo in first for place in demo.taught}
    assert any(text.startswith("INPUT( ") for text in taught)
    assert all(demo.task is not None and demo.task.split == "train" for demo in first)


def test_it_is_found_by_its_name_and_kept_apart(library: str) -> None:
    assert demonstrator_of("wikihow", "full") is WikiHowDemonstrator
    with pytest.raises(ConfigError, match=r"rehearsal\.options\.library"):
        WikiHowDemonstrator.apart(a_config(library), words, 0)

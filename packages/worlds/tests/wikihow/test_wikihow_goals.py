"""Goals as pages to reach: those of a task file of Mobile-Env, those of ours, and which log lines reach them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="the extra mobile-env is not installed")

import howto
from trailnotes.errors import ConfigError
from trailnotes_worlds.wikihow.goals import Goal, read_goal
from trailnotes_worlds.wikihow.protocols import WikiHowGoal

HOST = "mUrl is: https://www.wikihow.com"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "boil-4.textproto"
    path.write_text(howto.TASK)
    return path


def test_a_task_file_lists_its_pages_and_instructions(file: Path) -> None:
    goal = read_goal(file)
    assert goal.format_instructions().splitlines() == [
        "Search an article to learn how to boil an egg.",
        'Then, access the article "How to Boil an Egg"',
        "Then, check the author page of Ann Lee, PhD.",
    ]
    assert goal.find_reached([f"{HOST}/wikiHowTo?search=an+egg+&wh_an=1"]) == [0]
    assert goal.find_reached([f"{HOST}/Boil-an-Egg?wh_an=1&amp=1", f"{HOST}/Author/Ann-Lee-PhD?wh_an=1&amp=1"]) == [
        1,
        2,
    ]
    assert goal.find_reached([]) == []


def test_a_goal_of_ours_reaches_the_article_itself() -> None:
    goal = WikiHowGoal("category", "Fry an Egg", "Fry-an-Egg", "Eggs", "Category:Eggs", "Boil It", "Boil-It").to_pages()
    lines = ["wikiHowTo?search=eggs+&wh_an=1", "wikiHowTo?search=my+egg+&wh_an=1", "Fry-an-Egg-Twice?wh_an=1&amp=1"]
    lines += ["Fry-an-Egg?wh_an=1&amp=1", "Category:Eggs?wh_an=1&amp=1", "Boil-It?wh_an=1&amp=1"]
    assert [goal.find_reached([f"{HOST}/{line}"]) for line in lines] == [[], [0], [], [1], [2], [3]]
    assert [page.instruction for page in goal.pages] == [
        'Access the article "How to Fry an Egg"', "Access the page of category Eggs",
        'Access the article "How to Boil It"', "",
    ]  # fmt: skip
    assert isinstance(goal, Goal)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("episode_end_listener: { events: { id: 8", "episode_end_listener: { events: { id: 6", "its end is not"),
        ("events: { id: 9 }", "", "event 8 needs a log_event and the reward 1"),
        ('"y = 1"', '"y = 2"', "event 4 needs a log_event and the reward 1"),
        ('"y = [', "\"y = __import__('os').system('touch pwned') + [", "is no task of WikiHow"),
        (r"(boil|egg)", "(", "is no task of WikiHow"),
        ('command: "Search an article to learn how to boil an egg."', "", "is no task of WikiHow"),
        ("log_event: {", "log_event: 3 {", "cannot be read as a task file"),
    ],
)
def test_files_of_other_kinds_are_refused(file: Path, old: str, new: str, message: str) -> None:
    assert old in howto.TASK
    file.write_text(howto.TASK.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_goal(file)
    assert not Path("pwned").exists()


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"\xff\xfe\0")
    for name in ("raw", "missing"):
        with pytest.raises(ConfigError, match="cannot be read as a task file"):
            read_goal(tmp_path / name)

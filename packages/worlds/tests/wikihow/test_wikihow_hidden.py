"""A library without some of its articles: no page lists or shows them, and all else is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

import howto
from trailnotes.envs import make_env
from trailnotes_worlds.wikihow.articles import Category
from trailnotes_worlds.wikihow.env import WikiHowEnv, wikihow_tasks
from trailnotes_worlds.wikihow.library import Library


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hidden") / "small"
    howto.small_library(folder).close()
    return folder


def test_what_is_hidden_is_nowhere(folder: Path) -> None:
    whole = Library.open(folder)
    rest = whole.without([howto.FRY.path, "No-Such-Page"])
    assert len(rest) == len(whole) - 1 == len([*rest])
    assert (howto.FRY.path in rest, rest.get(howto.FRY.path)) == (False, None)
    assert [page.title for page in rest.articles([howto.FRY.path, howto.BOIL.path])] == ["Boil an Egg"]
    eggs = rest[howto.EGGS.path]
    assert isinstance(eggs, Category)
    assert [text for text, _ in eggs.about] == ["All about ", ", and more."]
    assert rest.search("fry egg", 1) == [howto.FRY_TWO.path]
    assert whole.search("fry egg", 3)[0] == howto.FRY.path
    assert len(whole[howto.EGGS.path].about) == 3


def test_hiding_adds_up(folder: Path) -> None:
    rest = Library.open(folder).without([howto.FRY.path]).without([howto.FRY_TWO.path])
    assert rest.search("fry", 5) == []
    assert len(rest) == len(howto.PAGES) - 2


def test_an_environment_plays_without_what_it_hides(folder: Path) -> None:
    env = make_env("wikihow", library=str(folder), view="short")
    assert isinstance(env, WikiHowEnv)
    (task,) = [task for task in wikihow_tasks("train", str(folder)) if task.options["title"] == "Fry an Egg Twice"]
    env.reset(task)
    assert "how to fry an egg ;" in env.step("INPUT(2, fry an egg)").text
    env.hide_articles([howto.FRY.path])
    env.reset(task)
    assert "how to fry an egg ;" not in (found := env.step("INPUT(2, fry an egg)").text)
    assert "how to fry an egg twice" in found


def test_the_short_view_says_all_in_lower_case_and_a_page_has_few_results(folder: Path) -> None:
    env = make_env("wikihow", library=str(folder), view="short", results_per_page=2)
    (task,) = [task for task in wikihow_tasks("train", str(folder)) if task.options["title"] == "Fry an Egg Twice"]
    first = env.reset(task)
    found = env.step("INPUT(2, egg)")
    assert first.instruction == first.instruction.lower()
    assert found.text == found.text.lower()
    assert found.text.count("how to") == 3  # two results, and the instruction
    assert "next >" in found.text
    assert found.info["instruction"] == 'Access the article "How to Fry an Egg Twice"'

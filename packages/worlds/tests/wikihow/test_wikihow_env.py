"""WikiHow as an environment: the contract, what pages pay, protocols, options, and what is damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import small_wikihow
from trailnotes.config.toml import load_config
from trailnotes.envs import check_env, list_env_tasks
from trailnotes.errors import ConfigError, EnvError
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.runs.adapt import adapt
from trailnotes.types import Message, Observation, Task
from trailnotes_worlds.wikihow import env as wh
from trailnotes_worlds.wikihow.articles import Category
from trailnotes_worlds.wikihow.goals import read_goal
from trailnotes_worlds.wikihow.library import Library
from trailnotes_worlds.wikihow.protocols import SPLITS, TEMPLATE_NUMBERS, WikiHowGoal, make_goal


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Our library is made once, for the tests of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAILNOTES_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    wh.open_cached_library.cache_clear()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("libraries") / "small"
    small_wikihow.small_library(folder).close()
    return str(folder)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Task files in folders of their splits."""
    for split, names in {"train": ["boil_an_egg-4"], "test": ["boil_two-4", "more/boil_three-4"]}.items():
        for name in names:
            path = tmp_path / split / f"{name}.textproto"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(small_wikihow.TASK)
    return tmp_path


def listed(split: str, **options: Any) -> list[Task]:
    return list_env_tasks("wikihow", split, options)


def play(env: wh.WikiHowEnv, task: Task, *actions: str) -> list[Observation]:
    return [env.reset(task), *map(env.step, actions)]


def script(observation: Observation) -> str:
    """What the screen and the last instruction ask for, by the words alone."""
    wanted = re.search(r"Instruction: (.*)$", observation.text)
    if wanted is None:
        assert observation.actions
        return observation.actions[0]
    named = re.search(r'How to (.*)"|page of (?:category )?(.*?)\.?$|(trust wikihow)|(reference)', wanted[1])
    assert named
    name = "references" if named[4] else next(filter(None, named.groups())).lower()
    for line in observation.text.splitlines():
        leaf = re.fullmatch(r'<(?:p|div) id="(\d+)" clickable="true">(.*)</\w+>', line)
        if leaf and leaf[2].lower() in (name, f"how to {name}"):
            return f"CLICK({leaf[1]})"
    return "SCROLL(DOWN)"


@pytest.mark.parametrize("options", [{}, {"view": "short", "actions": False}, {"free_nothing": True, "max_steps": 3}])
def test_it_keeps_the_contract(small: str, options: dict[str, Any]) -> None:
    assert check_env(partial(wh.WikiHowEnv, library=small, **options)) == ()


def test_a_task_file_is_played_to_its_full_reward(small: str, files: Path) -> None:
    pytest.importorskip("google.protobuf", reason="the extra mobile-env is not installed")
    env = wh.WikiHowEnv(library=small, tasks=str(files))
    task = next(task for task in listed("test", library=small, tasks=str(files)) if "two" in task.id)
    begun, *steps = play(env, task, "INPUT(2, an egg to boil)", "CLICK(3)", "CLICK(11)")
    assert begun.max_score == 3
    results = [(step.reward, step.score, step.terminated) for step in steps]
    assert results == [(1, 1, False), (1, 2, False), (1, 3, True)]
    assert steps[-1].success
    assert steps[0].text.endswith('Instruction: Access the article "How to Boil an Egg"')
    with pytest.raises(EnvError, match="the episode is over"):
        env.step("GOBACK")


def test_every_template_of_ours_is_played_to_its_full_reward() -> None:
    env = wh.WikiHowEnv()
    for task in listed("train", protocol="rememberer")[::2]:  # one of each
        last = env.reset(task)
        while not last.done:
            last = env.step(script(last))
        assert (last.score, last.success) == (last.max_score, True)
    env.close()


def test_pages_pay_in_any_order_and_once(small: str) -> None:
    goal = WikiHowGoal("category", "Boil an Egg", "Boil-an-Egg", "Eggs", "Category:Eggs", "Fry an Egg", "Fry-an-Egg")
    task = Task("t", "wikihow", options=goal.to_json())
    env = wh.WikiHowEnv(library=small)
    early = play(env, task, "INPUT(2, fry)", "CLICK(3)")[-1]
    assert (early.reward, early.success, early.score, early.max_score) == (1, True, 1, 4)
    twice = play(env, task, "INPUT(2, boil)", "CLICK(3)", "GOBACK", "CLICK(3)")
    assert [step.reward for step in twice] == [0, 1, 1, 0, 0]


def test_an_episode_is_cut_off_and_nothing_may_be_free(small: str) -> None:
    (task, *_) = listed("train", library=small)
    strict, free = (wh.WikiHowEnv(library=small, max_steps=2, free_nothing=each) for each in (False, True))
    assert [step.truncated for step in play(strict, task, "", "")] == [False, False, True]
    assert [step.truncated for step in play(free, task, "", "look", "SCROLL(UP)")] == [False, False, False, True]
    assert [step.truncated for step in play(free, task, *[""] * 4)] == [False, False, False, False, True]
    refused = play(strict, task, "CLICK(0)")[-1]
    assert refused.info == {"action_refused": True, "refused": "nothing happens there"}


def test_our_splits_have_no_article_in_common() -> None:
    sides = {split: listed(split) for split in SPLITS}
    articles = {
        split: {task.options[key] for task in tasks for key in ("slug", "then_slug") if key in task.options}
        for split, tasks in sides.items()
    }
    assert sum(map(len, articles.values())) == len(set.union(*articles.values()))
    for split in SPLITS:  # what one dataset seed trains on, no other examines
        others = listed(split, dataset_seed=1)
        assert not {task.options["slug"] for task in others} - {task.options["slug"] for task in sides[split]}
        assert not {task.id for task in others} & {task.id for task in sides[split]}, "a memory tells them apart"


def test_rememberer_has_the_published_sizes() -> None:
    sizes = {split: listed(split, protocol="rememberer") for split in SPLITS}
    assert {split: len(tasks) for split, tasks in sizes.items()} == {"train": 10, "validation": 30, "test": 70}
    for tasks in sizes.values():
        kinds = [task.options["template"] for task in tasks]
        assert {kinds.count(template) for template in TEMPLATE_NUMBERS} == {len(tasks) // 5}
    other = listed("train", protocol="rememberer", train_set="S1")
    assert not {task.id for task in other} & {task.id for task in sizes["train"]}


def test_files_are_split_by_their_folders_or_by_their_articles(small: str, files: Path) -> None:
    options = {"library": small, "tasks": str(files)}
    assert [task.id for task in listed("test", **options)] == [
        "wikihow/files/test/boil_two-4", "wikihow/files/test/more/boil_three-4",
    ]  # fmt: skip
    (files / "train/boil_an_egg-4.textproto").rename(files / "be_free-0.textproto")
    assert [task.id for task in listed("train", protocol="rememberer", train_set="S1", **options)] == [
        "wikihow/files/be_free-0"
    ]
    with pytest.raises(ConfigError, match=r"put task files into .*/train"):
        listed("train", protocol="rememberer", train_set="S0", **options)


def test_what_is_hidden_is_nowhere(small: str) -> None:
    whole = Library.open(small)
    rest = whole.without([small_wikihow.FRY.path, "No-Such-Page"])
    assert len([*rest]) == len([*whole]) - 1
    assert (small_wikihow.FRY.path in rest, rest.get(small_wikihow.FRY.path)) == (False, None)
    assert [page.title for page in rest.articles([small_wikihow.FRY.path, small_wikihow.BOIL.path])] == ["Boil an Egg"]
    eggs = rest[small_wikihow.EGGS.path]
    assert isinstance(eggs, Category)
    assert [text for text, _ in eggs.about] == ["All about ", ", and more."]
    assert rest.search("fry egg", 1) == [small_wikihow.FRY_TWO.path]
    assert whole.search("fry egg", 3)[0] == small_wikihow.FRY.path
    assert len(whole[small_wikihow.EGGS.path].about) == 3


def adviser() -> ScriptedPolicy:
    """Knows the way of one task: at each screen it says what comes next, as advice."""

    def answer(messages: Sequence[Message]) -> str:
        present = messages[-1].content.rpartition("The present situation:")[2]
        if "More options" in present:
            return "CLICK(11) -> 1.0"
        return "CLICK(3) -> 2.0" if "search src text" in present else "INPUT(2, boil an egg) -> 3.0"

    return ScriptedPolicy(answer)


def test_a_scripted_player_fills_the_table_and_reaches_the_end(
    small: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("google.protobuf", reason="the extra mobile-env is not installed")
    monkeypatch.setattr("trailnotes.runs.load_policy.load_policy", lambda *_: adviser())
    config = load_config("wikihow/rememberer")
    options = {**config.env.options, "library": small, "tasks": str(files)}
    changes = {
        "env": config.env.model_copy(update={"options": options, "num_workers": 0}),
        "rememberer": config.rememberer.model_copy(update={"epochs": 2}),
    }
    adapt(config.model_copy(update=changes), "adviser", out=files / "out", method="rememberer")
    first, *_, panel = [json.loads(line) for line in (files / "out/metrics.jsonl").read_text().splitlines()]
    assert (first["table/records"], panel["table/records"]) == (0, 3)  # the home page, the results, the article
    assert (first["known"], panel["known"]) == (0, 1)
    assert (panel["rollout/success"], panel["table/q_max"]) == (1, 3)


HOST = "mUrl is: https://www.wikihow.com"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pytest.importorskip("google.protobuf", reason="the extra mobile-env is not installed")
    path = tmp_path / "boil-4.textproto"
    path.write_text("\ufeff" + small_wikihow.TASK, encoding="utf-8")
    return path


def test_a_task_file_lists_its_pages_and_instructions(file: Path) -> None:
    goal = read_goal(file)
    assert goal.format_instructions().splitlines() == [
        "Search an article to learn how to boil an egg.",
        'Then, access the article "How to Boil an Egg"',
        "Then, check the author page of Ann Lee, PhD.",
    ]
    assert goal.find_reached([f"{HOST}/wikiHowTo?search=an+egg+&wh_an=1"]) == [0]
    later = [f"{HOST}/Boil-an-Egg?wh_an=1&amp=1", f"{HOST}/Author/Ann-Lee-PhD?wh_an=1&amp=1"]
    assert goal.find_reached(later) == [1, 2]
    assert goal.find_reached([]) == []
    forged = quote("egg mUrl is: https://www.wikihow.com/Boil-an-Egg?")
    assert goal.find_reached([f"{HOST}/wikiHowTo?search={forged}"]) == [0]
    assert make_goal("article", "How to Sauté Jalapeños", "").to_pages().find_reached(
        ["mUrl is: https://www.wikihow.com/wikiHowTo?search=saut%C3%A9+jalape%C3%B1os&wh_an=1"]
    ) == [0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("episode_end_listener: { events: { id: 8", "episode_end_listener: { events: { id: 6", "its end is not"),
        ("events: { id: 9 }", "", "event 8 needs a log_event and the reward 1"),
        ('"y = 1"', '"y = 2"', "event 4 needs a log_event and the reward 1"),
        ('"y = [', "\"y = __import__('os').system('touch pwned') + [", "is no task of WikiHow"),
        ("type: OR id: 4", "type: AND id: 4", "type: AND cannot be followed"),
        ("type: SINGLE id: 6", "type: SINGLE prerequisite: 4 id: 6", "prerequisite: cannot be followed"),
        ('} transformation: "y = 1" repeatability: NONE', "} repeatability: UNLIMITED", "UNLIMITED cannot"),
        (r"(boil|egg)", "(", "is no task of WikiHow"),
        ('command: "Search an article to learn how to boil an egg."', "", "is no task of WikiHow"),
        ("log_event: {", "log_event: 3 {", "cannot be read as a task file"),
    ],
)
def test_refused_task_files(file: Path, old: str, new: str, message: str) -> None:
    assert old in small_wikihow.TASK
    file.write_text(small_wikihow.TASK.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_goal(file)
    assert not Path("pwned").exists()

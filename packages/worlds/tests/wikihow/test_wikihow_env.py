"""WikiHow as an environment: the contract, what pages pay, protocols, options, and what is damaged."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import howto
from trailnotes.config.schema import EnvConfig
from trailnotes.envs import check_env, get_env_identity, list_env_tasks, make_env
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import ConfigError, EnvError, RunError
from trailnotes.types import Observation, Task
from trailnotes_worlds.wikihow import env as wh
from trailnotes_worlds.wikihow.articles import Article
from trailnotes_worlds.wikihow.library import Library, write_library
from trailnotes_worlds.wikihow.protocols import TEMPLATE_NUMBERS, WikiHowGoal
from trailnotes_worlds.wikihow.synthetic import make_pages, open_synthetic


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
    howto.small_library(folder).close()
    return str(folder)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Task files in folders of their splits."""
    for split, names in {"train": ["boil_an_egg-4"], "test": ["boil_two-4", "more/boil_three-4"]}.items():
        for name in names:
            path = tmp_path / split / f"{name}.textproto"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(howto.TASK)
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


def finish(env: wh.WikiHowEnv, task: Task) -> Observation:
    observation = env.reset(task)
    while not observation.done:
        observation = env.step(script(observation))
    return observation


@pytest.mark.parametrize("options", [{}, {"view": "short", "actions": False}, {"free_nothing": True, "max_steps": 3}])
def test_it_keeps_the_contract(small: str, options: dict[str, Any]) -> None:
    assert check_env(partial(wh.WikiHowEnv, library=small, **options)) == ()


def test_it_keeps_the_contract_on_task_files(small: str, files: Path) -> None:
    pytest.importorskip("google.protobuf", reason="the extra mobile-env is not installed")
    assert check_env(partial(wh.WikiHowEnv, library=small, tasks=str(files))) == ()


def test_a_task_file_is_played_to_its_full_reward(small: str, files: Path) -> None:
    pytest.importorskip("google.protobuf", reason="the extra mobile-env is not installed")
    env = wh.WikiHowEnv(library=small, tasks=str(files))
    task = next(task for task in listed("test", library=small, tasks=str(files)) if "two" in task.id)
    begun, *steps = play(env, task, "INPUT(2, an egg to boil)", "CLICK(3)", "CLICK(11)")
    assert begun.max_score == 3
    assert [(step.reward, step.score, step.terminated) for step in steps] == [
        (1, 1, False),
        (1, 2, False),
        (1, 3, True),
    ]
    assert steps[-1].success
    assert steps[0].text.endswith('Instruction: Access the article "How to Boil an Egg"')
    with pytest.raises(EnvError, match="the episode is over"):
        env.step("GOBACK")


def test_every_template_of_ours_is_played_to_its_full_reward() -> None:
    env = wh.WikiHowEnv()
    for task in listed("train", protocol="rememberer")[::2]:  # one of each
        last = finish(env, task)
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


def test_ours_takes_the_article_itself_and_not_one_whose_title_goes_on(small: str) -> None:
    env = wh.WikiHowEnv(library=small)
    task = Task("t", "wikihow", options=WikiHowGoal("article", "Fry an Egg", "Fry-an-Egg").to_json())
    results = env.step("INPUT(2, fry an egg twice)") if env.reset(task) else None
    assert results is not None
    other = next(
        n for n, leaf in enumerate(env.app.leaves(env.app_state)) if leaf.view.text == "How to Fry an Egg Twice"
    )
    assert env.step(f"CLICK({other})").reward == 0


def test_a_worker_shows_the_same(small: str) -> None:
    (task, *_) = listed("train", library=small)
    actions = ("INPUT(2, boil an egg)", "CLICK(3)", "", "GOBACK")

    async def episode(pool: EnvPool) -> list[Observation]:
        async with pool.lease() as lease:
            return [await lease.reset(task), *[await lease.step(action) for action in actions]]

    with EnvPool(EnvConfig(name="wikihow", options={"library": small}, num_workers=1)) as pool:
        seen = asyncio.run(episode(pool))
    assert seen == play(wh.WikiHowEnv(library=small), task, *actions)


def test_an_episode_is_cut_off_and_nothing_may_be_free(small: str) -> None:
    (task, *_) = listed("train", library=small)
    strict, free = (wh.WikiHowEnv(library=small, max_steps=2, free_nothing=each) for each in (False, True))
    assert [step.truncated for step in play(strict, task, "", "")] == [False, False, True]
    assert [step.truncated for step in play(free, task, "", "look", "SCROLL(UP)")] == [False, False, False, True]
    assert [step.truncated for step in play(free, task, *[""] * 4)] == [False, False, False, False, True]
    refused = play(strict, task, "CLICK(0)")[-1]
    assert refused.info == {"action_refused": True, "refused": "nothing happens there"}


def test_our_splits_have_no_article_in_common() -> None:
    sides = {split: listed(split) for split in wh.SPLITS}
    articles = {
        split: {task.options[key] for task in tasks for key in ("slug", "then_slug") if key in task.options}
        for split, tasks in sides.items()
    }
    assert not articles["train"] & articles["test"]
    assert not articles["train"] & articles["validation"]
    assert not articles["validation"] & articles["test"]
    for split in wh.SPLITS:  # what one dataset seed trains on, no other examines
        others = {task.options["slug"] for task in listed(split, dataset_seed=1)}
        assert not others - {task.options["slug"] for task in sides[split]}


def test_rememberer_has_the_published_sizes() -> None:
    sizes = {split: listed(split, protocol="rememberer") for split in wh.SPLITS}
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


def test_templates_choose_among_our_goals_and_move_none(small: str) -> None:
    everything = listed("train", library=small)
    kinds = {task.id: WikiHowGoal.from_json(task.options).kind for task in everything}
    assert len({*kinds.values()}) > 1
    for kind in {*kinds.values()}:
        chosen = listed("train", library=small, templates=[kind])
        assert chosen == [task for task in everything if kinds[task.id] == kind]
    with pytest.raises(ConfigError, match="no goal in split 'train'"):
        listed("train", library=small, templates=["author+article"])
    one = get_env_identity("wikihow", {"library": small, "templates": ["about"]})
    assert one["templates"] == ["about"] != get_env_identity("wikihow", {"library": small})["templates"]


def test_identity_tells_libraries_and_files_apart(small: str, files: Path) -> None:
    ours = get_env_identity("wikihow", {"library": small})
    assert ours == get_env_identity("wikihow", {"library": small, "view": "short"})
    assert ours["library"] != get_env_identity("wikihow", {})["library"]
    before = get_env_identity("wikihow", {"library": small, "tasks": str(files)})
    wh._load_splits.cache_clear()
    (files / "test/boil_two-4.textproto").write_text(howto.TASK + "# another one")
    after = get_env_identity("wikihow", {"library": small, "tasks": str(files)})
    assert before["splits"]["train"] == after["splits"]["train"]
    assert before["splits"]["test"] != after["splits"]["test"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"view": "pixels"}, "env.options.view = 'pixels' is unknown: use 'html' or 'short'"),
        ({"max_steps": 0}, "env.options.max_steps = 0 must be a whole number, 1 or more"),
        ({"max_text": True}, "env.options.max_text = True must be a whole number"),
        ({"free_nothing": 1}, "env.options.free_nothing = 1 must be true or false"),
        ({"library": 3}, "env.options.library = 3 must be a text"),
        ({"text_events": True}, "env.options.text_events was removed"),
        ({"libary": "x"}, "did you mean library?"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env("wikihow", **options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"protocol": "by-luck"}, "use 'by-article' or 'rememberer'"),
        ({"train_set": "S9"}, "use 'S0' or 'S1'"),
        ({"templates": ["article", "news"]}, "env.options.templates = 'news' is unknown: use 'about' or "),
        ({"templates": "article"}, "env.options.templates = 'article' must be a list of names"),
        ({"tasks": "nowhere"}, "holds no .textproto file"),
        ({"library": "nowhere"}, "nowhere is no wikihow library"),
    ],
)
def test_lists_that_cannot_be_made_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        listed("test", **options)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({}, "are no goal of WikiHow"),
        ({"template": "dance", "title": "x", "slug": "x"}, "are no goal of WikiHow"),
        ({"file": "../secret.textproto"}, "is not in env.options.tasks"),
        ({"file": "/etc/passwd"}, "is not in env.options.tasks"),
    ],
)
def test_tasks_that_are_none_are_refused(small: str, tmp_path: Path, task: dict[str, Any], said: str) -> None:
    env = wh.WikiHowEnv(library=small, tasks=str(tmp_path))
    with pytest.raises(ConfigError, match=re.escape(said)):
        env.reset(Task("t", "wikihow", options=task))


def test_a_goal_is_worded_whatever_its_title(small: str) -> None:
    title = 'Say "Hi" \\ (to | a* [Dog]) \U0001f415'
    goal = WikiHowGoal("references", title, "Say-%22Hi%22")
    env = wh.WikiHowEnv(library=small)
    assert f'Then, access the article "How to {title}"' in str(
        env.reset(Task("t", "wikihow", options=goal.to_json())).instruction
    )
    assert goal.id == "say_hi_to_a_dog-7"


def test_our_library_is_the_same_every_time_and_made_once() -> None:
    assert make_pages(48) == make_pages(48)
    assert make_pages(48) != make_pages(48, seed=1)
    first, again = open_synthetic(48), open_synthetic(48)
    assert first.name == again.name
    assert [page.path for page in first] == [page.path for page in make_pages(48)]
    assert {
        len(text) > 0 for page in first if isinstance(page, Article) for text in (page.intro, *page.categories)
    } == {True}
    first.close()
    again.close()


# -- damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "pages.db").write_bytes((folder / "pages.db").read_bytes()[:-100]),
        lambda folder: (folder / "meta.json").write_text("{"),
        lambda folder: (folder / "pages.db").unlink(),
        lambda folder: (folder / "search/docs.npy").write_bytes(b""),
    ],
    ids=["cut", "meta", "gone", "index"],
)
def test_a_damaged_library_is_named(tmp_path: Path, damage: Any) -> None:
    howto.small_library(tmp_path / "l").close()
    damage(tmp_path / "l")
    with pytest.raises(ConfigError, match="damaged|cut or replaced|cannot be read"):  # noqa: RUF043
        Library.open(tmp_path / "l").get("Boil-an-Egg")


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ([howto.ANN], "there is no article among the pages"),
        ([howto.FRY, howto.FRY], "two pages have the path Fry-an-Egg"),
        ([Article("x" * 100 + "\u00e9" * 50)], "longer than 250 characters"),
        ([Article("")], "without a title"),
    ],
)
def test_libraries_that_cannot_be_are_refused_and_leave_nothing(
    tmp_path: Path, pages: Sequence[Article], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        write_library(tmp_path / "l", pages)
    assert not list(tmp_path.iterdir())


def test_a_library_takes_nobodys_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        write_library(tmp_path, [howto.FRY])
    with pytest.raises((ConfigError, RunError)):
        write_library(tmp_path / "file" / "l", [howto.FRY])
    assert (tmp_path / "file").read_text() == "mine"


def test_a_page_of_a_megabyte_costs_no_more_than_its_screen(tmp_path: Path) -> None:
    huge = Article("Be Huge", intro="word " * 200_000, methods=(("M", ("step " * 1000,) * 1000),),
                   references=("r" * 1_000_000,), categories=("c" * 10_000,) * 500)  # fmt: skip
    write_library(tmp_path / "l", [huge]).close()
    env = wh.WikiHowEnv(library=str(tmp_path / "l"))
    task = Task("t", "wikihow", options=WikiHowGoal("article", "Be Huge", "Be-Huge").to_json())
    last = play(env, task, "INPUT(2, be huge)", "CLICK(3)")[-1]
    assert last.success
    assert len(last.text) < 120_000
    env.close()

"""WebShop as an environment: the contract, what a purchase pays, its options, and its identity."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shelves import DOZEN, LAMP, MUG
from trailnotes.config.schema import EnvConfig
from trailnotes.config.toml import load_config
from trailnotes.envs import check_env, get_env_identity, list_env_tasks, make_env
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import ConfigError, EnvError
from trailnotes.runs.evaluate import rollout
from trailnotes.types import Observation, Task
from trailnotes_worlds.webshop import env as ws
from trailnotes_worlds.webshop.protocols import SPLITS
from trailnotes_worlds.webshop.writing import write_catalogue


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A catalogue on disk that the tests of this module share."""
    folder = tmp_path_factory.mktemp("catalogues") / "dozen"
    write_catalogue(folder, DOZEN.products)
    return str(folder)


@pytest.fixture
def task(shop: str) -> Task:
    """Wants the small blue mug."""
    tasks = [task for split in SPLITS for task in listed(shop, split)]
    options = [["color", "blue"], ["size", "small"]]
    return next(t for t in tasks if t.options["asin"] == MUG.asin and t.options["options"] == options)


def listed(shop: str, split: str) -> list[Task]:
    return list_env_tasks("webshop", split, {"catalogue": shop})


def play(env: ws.WebShopEnv, task: Task, *actions: str) -> list[Observation]:
    return [env.reset(task), *map(env.step, actions)]


PURCHASE = ("search[mug]", f"click[{MUG.asin.lower()}]", "click[blue]", "click[small]", "click[buy now]")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compat": "original", "view": "text_rich"},
        {"view": "rememberer", "actions": False, "reward": "success"},
        {"show_attributes": True, "products_per_page": 2, "max_steps": 4, "max_title": 20, "max_text": 50},
    ],
)
def test_it_keeps_the_contract(shop: str, options: dict[str, object]) -> None:
    assert check_env(partial(ws.WebShopEnv, catalogue=shop, **options)) == ()  # type: ignore[arg-type]


def test_the_right_purchase_is_a_success(shop: str, task: Task) -> None:
    first, *_, last = play(ws.WebShopEnv(catalogue=shop), task, *PURCHASE)
    assert first.instruction == task.options["instruction"]
    assert first.actions == ("search[Find me a lead free mug with color: blue, and size: small]",)
    assert (last.terminated, last.success, last.reward, last.score, last.actions) == (True, True, 1.0, 1.0, ())
    assert last.text == "Thank you for shopping with us!"
    assert json.loads(json.dumps(last.info["purchase"]))["num_options"] == 2


@pytest.mark.parametrize(("reward", "paid"), [("score", 0.75), ("success", 0.0)])
def test_a_purchase_that_lacks_an_option_pays_its_share_or_nothing(
    shop: str, task: Task, reward: str, paid: float
) -> None:
    env = ws.WebShopEnv(catalogue=shop, reward=reward)
    *_, last = play(env, task, *PURCHASE[:3], "click[buy now]")
    assert (last.terminated, last.success, last.reward, last.score) == (True, False, paid, 0.75)
    with pytest.raises(EnvError, match="call reset"):
        env.step("search[mug]")


def test_it_ends_without_a_purchase_at_the_last_step(shop: str, task: Task) -> None:
    seen = play(ws.WebShopEnv(catalogue=shop), task, *["search[mug]", "click[back to search]"] * 7, "search[cup]")
    assert [observation.truncated for observation in seen] == [False] * 15 + [True]
    assert seen[-1].score == 0


def test_a_purchase_at_the_last_step_counts(shop: str, task: Task) -> None:
    *_, last = play(ws.WebShopEnv(catalogue=shop, max_steps=5), task, *PURCHASE)
    assert (last.terminated, last.truncated, last.success) == (True, False, True)


def test_a_no_op_shows_the_same_page_and_says_why_where_nobody_acts_on_it(shop: str, task: Task) -> None:
    before, after = play(ws.WebShopEnv(catalogue=shop), task, "click[mug]")
    assert (after.text, after.actions) == (before.text, before.actions)
    assert after.info == {"action_refused": True, "refused": "nothing of that name to click"}


def test_the_original_repeats_the_instruction_and_tells_the_score(shop: str, task: Task) -> None:
    first, *_, last = play(ws.WebShopEnv(catalogue=shop, compat="original"), task, *PURCHASE)
    assert first.text == f"WebShop [SEP] Instruction: [SEP] {task.options['instruction']} [SEP] Search"
    assert "Your score (min 0.0, max 1.0) [SEP] 1.0 [SEP]" in last.text
    fixed = play(ws.WebShopEnv(catalogue=shop), task, *PURCHASE)
    assert not any("Instruction" in observation.text for observation in fixed)
    said = play(ws.WebShopEnv(catalogue=shop, repeat_instruction=True), task, *PURCHASE[:1])
    assert "Instruction: [SEP]" in said[1].text


def test_what_a_range_costs_is_drawn_from_the_seed_of_the_task(shop: str) -> None:
    """So a limit of price within the range decides, the same way in every process."""
    tasks = [t for split in SPLITS for t in listed(shop, split) if t.options["asin"] == LAMP.asin]
    task = replace(tasks[0], options={**tasks[0].options, "price_upper": 40.0})
    env, fits = ws.WebShopEnv(catalogue=shop), set()
    actions = ("search[lamp]", f"click[{LAMP.asin}]", "click[buy now]")
    for seed in range(8):
        played = [play(env, replace(task, seed=seed), *actions)[-1] for _ in range(2)]
        assert played[0] == played[1]
        fits.add(played[0].info["purchase"]["price_fits"])
    assert fits == {True, False}


def test_environments_of_one_process_share_one_catalogue_and_nothing_else(shop: str, task: Task) -> None:
    envs = [ws.WebShopEnv(catalogue=shop) for _ in range(3)]
    for env in envs:
        env.reset(task)
    for action in PURCHASE:
        seen = [env.step(action) for env in envs]
        assert seen[0] == seen[1] == seen[2]
    assert ws.open_cached_catalogue(shop) is ws.open_cached_catalogue(shop)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.sampled_from(["{}", "search[{}]", "click[{}]", "search[<r> {}]", "search[<q> {}]"]),
    words=st.text(),
    compat=st.sampled_from(ws.COMPATS),
)
def test_whatever_is_said_is_answered(shop: str, task: Task, said: str, words: str, compat: str) -> None:
    last = play(ws.WebShopEnv(catalogue=shop, compat=compat), task, said.format(words))[-1]
    assert last.actions
    last.text.encode()


def test_half_a_surrogate_pair_finds_nothing(shop: str, task: Task) -> None:
    for said in ("search[\ud800]", "search[<r> \ud800]", "search[<a> \udfff mug]", "click[\ud800]"):
        for compat in ("fixed", "original"):
            last = play(ws.WebShopEnv(catalogue=shop, compat=compat), task, said)[-1]
            last.text.encode()


def test_a_page_offers_what_can_be_clicked_in_order(shop: str, task: Task) -> None:
    *_, item = play(ws.WebShopEnv(catalogue=shop), task, *PURCHASE[:2])
    assert item.actions == (
        "click[back to search]", "click[< prev]", "click[description]", "click[features]", "click[reviews]",
        "click[buy now]", "click[blue]", "click[rectangular]", "click[small]", "click[large]",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- wrong options


TRUTHS = ("actions", "repeat_instruction", "show_attributes")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compat": "orginal"}, "env.options.compat = 'orginal' is unknown: use 'fixed' or 'original'"),
        ({"view": "html"}, "env.options.view = 'html' is unknown"),
        ({"reward": "10"}, "env.options.reward = '10' is unknown"),
        ({"max_steps": 0}, "env.options.max_steps = 0 must be a whole number, 1 or more"),
        ({"products_per_page": True}, "env.options.products_per_page = True must be"),
        ({"max_title": 481}, "env.options.max_title = 481 must be a whole number, 1 to 480"),
        ({"view": ["text"]}, "env.options.view = ['text'] must be a text"),
        ({"catalogue": 5}, "env.options.catalogue = 5 must be a text"),
        ({"prices": 1}, "env.options.prices: webshop has no such option"),
        *(({key: "no"}, f"env.options.{key} = 'no' must be true or false") for key in TRUTHS),
    ],
)
def test_a_wrong_option_is_refused_with_the_fix(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env("webshop", **options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"goals": ["human"]}, "env.options.goals = ['human'] must be a text"),
        ({"catalogue": 5}, "env.options.catalogue = 5 must be a text"),
        ({"protocol": {}}, "env.options.protocol = {} must be a text"),
        ({"train_set": 0}, "env.options.train_set = 0 must be a text"),
        ({"dataset_seed": True}, "env.options.dataset_seed = True must be a whole number"),
        ({"dataset_seed": [1]}, "env.options.dataset_seed = [1] must be a whole number"),
    ],
)
def test_a_choice_of_the_wrong_kind_is_refused(options: dict[str, object], said: str) -> None:
    for ask in (partial(list_env_tasks, "webshop", "train"), partial(get_env_identity, "webshop")):
        with pytest.raises(ConfigError) as caught:
            ask(options)
        assert said in str(caught.value)


def test_the_permission_to_leak_is_true_or_false(shop: str) -> None:
    with pytest.raises(ConfigError, match="allow_leak = 'no' must be true or false"):
        list_env_tasks("webshop", "test", {"catalogue": shop, "protocol": "verl-agent-small", "allow_leak": "no"})


def test_a_rollout_that_is_refused_does_not_say_that_it_was_stopped(
    shop: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    words = ["--model.path", "random", "--env.name", "webshop", "--env.options.catalogue", shop]
    config = load_config(None, [*words, "--env.options.compat", "orginal", "--rollout.num_tasks", "1"])
    with pytest.raises(ConfigError, match=r"env\.options\.compat = 'orginal' is unknown"):
        rollout(config)
    assert "stopped" not in caplog.text + capsys.readouterr().err


def test_a_task_of_another_catalogue_is_refused(shop: str, task: Task) -> None:
    env = ws.WebShopEnv(catalogue=shop)
    with pytest.raises(ConfigError, match="wants a product that the catalogue"):
        env.reset(replace(task, options={**task.options, "asin": "B000000000"}))
    with pytest.raises(ConfigError, match="is none of webshop_tasks"):
        env.reset(replace(task, options={}))


def test_a_leaking_protocol_trains_but_is_not_examined(shop: str) -> None:
    options = {"catalogue": shop, "protocol": "verl-agent-small"}
    with pytest.raises(ConfigError, match="allow_leak = true"):
        list_env_tasks("webshop", "test", options)
    assert len(list_env_tasks("webshop", "test", options | {"allow_leak": True})) == 108


def test_no_catalogue_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        list_env_tasks("webshop", "train", {"catalogue": str(tmp_path / "none")})


# ---------------------------------------------------------------------------------------------- identity


def test_the_identity_names_catalogue_protocol_and_goals(shop: str) -> None:
    identity = get_env_identity("webshop", {"catalogue": shop, "view": "text_rich"})
    assert identity["catalogue"] == ws.open_cached_catalogue(shop).name
    assert (identity["protocol"], identity["leaks"], identity["compat"]) == ("by-product", False, "fixed")
    assert {split: facts["goals"] for split, facts in identity["splits"].items()} == {
        split: len(listed(shop, split)) for split in SPLITS
    }
    assert json.loads(json.dumps(identity)) == identity


@pytest.mark.parametrize(
    "change",
    [{"dataset_seed": 1}, {"goals": "human"}, {"compat": "original"}, {"show_attributes": True}, {"train_set": "S1"}],
)
def test_another_protocol_is_another_identity(shop: str, change: dict[str, object]) -> None:
    assert get_env_identity("webshop", {"catalogue": shop}) != get_env_identity(
        "webshop", {"catalogue": shop, **change}
    )


def test_an_environment_without_an_identity_has_none() -> None:
    assert get_env_identity("waymarks-simulator", {}) == {}


def sequence(shop: str, env: ws.WebShopEnv, tasks: Sequence[Task]) -> list[str]:
    return [observation.text for task in tasks for observation in play(env, task, *PURCHASE[:2])]


def test_what_was_played_before_changes_nothing(shop: str) -> None:
    tasks = [task for split in SPLITS for task in listed(shop, split)][:6]
    env = ws.WebShopEnv(catalogue=shop)
    assert sequence(shop, env, tasks) == sequence(shop, ws.WebShopEnv(catalogue=shop), tasks)
    assert sequence(shop, env, tasks[::-1])[-3:] == sequence(shop, env, tasks[:1])


# ---------------------------------------------------------------------------------------------- processes, command


def test_a_worker_process_plays_the_same(shop: str, task: Task) -> None:
    async def episode(pool: EnvPool) -> list[Observation]:
        async with pool.lease() as lease:
            return [await lease.reset(task), *[await lease.step(action) for action in PURCHASE]]

    with EnvPool(EnvConfig(name="webshop", options={"catalogue": shop}, num_workers=1)) as pool:
        seen = asyncio.run(episode(pool))
    expected = play(ws.WebShopEnv(catalogue=shop), task, *PURCHASE)
    assert [o.text for o in seen] == [o.text for o in expected]
    assert (seen[-1].score, seen[-1].info) == (1.0, expected[-1].info)


def test_the_smoke_config_plays_our_own_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path))
    config = load_config("webshop/smoke", ["--env.num_workers", "0"])
    episodes = rollout(config)
    assert len(episodes) == 2
    assert all(episode.outcome in ("truncated", "terminated") and len(episode.steps) <= 8 for episode in episodes)
    assert all(step.action in (step.observation.actions or ()) for episode in episodes for step in episode.steps)

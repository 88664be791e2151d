"""WebShop as an environment: the contract, what a purchase pays, its options, and its identity."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trailnotes
from small_shop import DOZEN, MUG
from tinyrun import metrics
from trailnotes.config.toml import load_config
from trailnotes.envs import check_env, get_env_identity, list_env_tasks
from trailnotes.errors import EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.webshop import env as ws
from trailnotes_worlds.webshop.catalogue import write_catalogue
from trailnotes_worlds.webshop.protocols import SPLITS


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
def test_a_purchase_without_an_option(shop: str, task: Task, reward: str, paid: float) -> None:
    env = ws.WebShopEnv(catalogue=shop, reward=reward)
    *_, last = play(env, task, *PURCHASE[:3], "click[buy now]")
    assert (last.terminated, last.success, last.reward, last.score) == (True, False, paid, 0.75)
    with pytest.raises(EnvError, match="call reset"):
        env.step("search[mug]")


def test_compat_original_repeats_the_instruction(shop: str, task: Task) -> None:
    first, *_, last = play(ws.WebShopEnv(catalogue=shop, compat="original"), task, *PURCHASE)
    assert first.text == f"WebShop [SEP] Instruction: [SEP] {task.options['instruction']} [SEP] Search"
    assert "Your score (min 0.0, max 1.0) [SEP] 1.0 [SEP]" in last.text
    fixed = play(ws.WebShopEnv(catalogue=shop), task, *PURCHASE)
    assert not any("Instruction" in observation.text for observation in fixed)
    repeated = play(ws.WebShopEnv(catalogue=shop, repeat_instruction=True), task, *PURCHASE[:1])
    assert "Instruction: [SEP]" in repeated[1].text


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from(["{}", "search[{}]", "click[{}]", "search[<r> {}]", "search[<q> {}]"]),
    words=st.text(),
    compat=st.sampled_from(ws.COMPATS),
)
def test_any_text_is_an_action(shop: str, task: Task, form: str, words: str, compat: str) -> None:
    last = play(ws.WebShopEnv(catalogue=shop, compat=compat), task, form.format(words))[-1]
    assert last.actions
    last.text.encode()


def test_the_identity_names_catalogue_protocol_and_goals(shop: str) -> None:
    identity = get_env_identity("webshop", {"catalogue": shop, "view": "text_rich"})
    assert identity["catalogue"] == ws.open_cached_catalogue(shop).name
    assert (identity["protocol"], identity["leaks"], identity["compat"]) == ("by-product", False, "fixed")
    assert {split: facts["goals"] for split, facts in identity["splits"].items()} == {
        split: len(listed(shop, split)) for split in SPLITS
    }
    assert json.loads(json.dumps(identity)) == identity


SETTINGS = (
    "--model.path builtin:waymarks-start --model.device cpu --rollout.num_tasks 2 "
    "--rollout.max_steps 3 --rollout.max_action_tokens 8 --rollout.max_observation_tokens 48 "
    "--rollout.max_context_tokens 512 --memory.max_write_tokens 8 --train.iterations 1 --train.eval_every 0"
)


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize(
    "method", ["empo2", *(pytest.param(name, marks=pytest.mark.long) for name in ("grpo", "gigpo"))]
)
def test_a_tiny_model_can_be_trained(method: str, tmp_path: Path) -> None:
    words = [*SETTINGS.split(), "--algorithm.name", method]
    trailnotes.train(load_config("webshop/small", words), tmp_path / "run")
    (line,) = metrics(tmp_path / "run")
    assert (line["rollout/errors"], line["episodes"], line["rollout/env_steps"]) == (0.0, 8, 24.0)
    assert ("tips/written" in line) == (method == "empo2")

"""Ten whole purchases in a real browser, beside the text environment: the same page, offers and reward at each step."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trailnotes.storage.demonstrations import read_demonstrations
from trailnotes_worlds.webshop.env import WebShopEnv, webshop_tasks

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = os.environ.get("TRAILNOTES_TEST_CHROMIUM") or shutil.which("chromium")
HOW = "needs a browser: apt-get install chromium, pip install playwright"
GOALS = range(0, 1000, 100)
WANDER = 7  # steps before the visitor makes for a purchase


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the command's own process, and the file that it records to."""
    pytest.importorskip("playwright.sync_api", reason=HOW)
    if CHROMIUM is None:
        pytest.skip(HOW)
    record = tmp_path_factory.mktemp("shop") / "played.jsonl"
    command = [sys.executable, "-m", "trailnotes", "webshop", "serve", "--port", "0", "--record", str(record)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().removeprefix("ready: ").strip(), record
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def page(shop: tuple[str, Path]) -> Iterator[Page]:
    """A browser's page, which collects what it complains about and whom else it calls."""
    from playwright.sync_api import sync_playwright

    address, _ = shop
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        trouble: list[str] = []
        page.on("console", lambda message: trouble.append(message.text))
        page.on("request", lambda request: request.url.startswith(address) or trouble.append(request.url))
        yield page
        browser.close()
        assert not trouble


def on_page(page: Page, selector: str, what: str) -> list[Any]:
    found: list[Any] = page.eval_on_selector_all(selector, f"all => all.map(each => each.{what})")
    return found


def same(page: Page, env: WebShopEnv, instruction: str) -> None:
    """The browser shows the state of the environment: its page, all its texts, all its offers, all that is chosen."""
    state, shop = env.state, env.shop
    assert on_page(page, ".goal p", "textContent") == [instruction]
    (kind,) = on_page(page, "form.page", "className")
    known = state.page if state.page in ("search", "results", "item", "done") else "details"
    assert kind.split() == ["page", known]
    values = on_page(page, "button[name=action]", "value")
    assert sorted(values) == sorted(shop.list_actions(state))
    assert page.locator("input[name=query]").count() == shop.can_search(state)
    shown = " ".join(" ".join(on_page(page, "main", "textContent")).split())
    for part in shop.list_elements(state):
        if state.page != "search":
            assert " ".join(part.text.split()) in shown
    labels = {part.text for part in shop.list_elements(state) if part.option and part.clicked}
    assert {*map(str.strip, on_page(page, "[aria-pressed=true]", "textContent"))} == labels
    assert state.page != "item" or len(labels) == len(state.options)


def choose(env: WebShopEnv, steps: int, instruction: str, rng: random.Random) -> str:
    """What the visitor does next: wanders about, then makes for a purchase with some options."""
    offers = env.shop.list_actions(env.state)
    if env.state.page == "search":
        return f"search[{instruction if steps < 2 else ' '.join(rng.sample(instruction.split(), 3))}]"
    if steps < WANDER:
        return rng.choice([offer for offer in offers if offer != "click[buy now]"])
    if env.state.page == "results":
        products = [f"click[{asin.lower()}]" for asin in env.shop.results(env.state)]
        return rng.choice(products or ["click[back to search]"])
    if env.state.page != "item":
        return "click[< prev]"
    options = [
        f"click[{part.target}]" for part in env.shop.list_elements(env.state) if part.option and not part.clicked
    ]
    return rng.choice([*options, "click[buy now]", "click[buy now]"])


def press(page: Page, selector: str, place: int = 0) -> None:
    """Click, and wait for the page that it leads to."""
    with page.expect_navigation():
        page.locator(selector).nth(place).click()


def do(page: Page, action: str) -> None:
    """By the mouse and the keyboard."""
    if action.startswith("search["):
        page.fill("input[name=query]", action[7:-1])
        press(page, "form.search button")
    else:
        place = on_page(page, "button[name=action]", "value").index(action)
        press(page, "button[name=action]", place)


@pytest.mark.parametrize("goal", GOALS)
def test_a_purchase_is_that_of_the_environment(shop: tuple[str, Path], page: Page, goal: int) -> None:
    address, _ = shop
    task = webshop_tasks("train")[goal]
    env, rng = WebShopEnv(max_steps=200), random.Random(goal)
    observation = env.reset(task)
    instruction = observation.instruction or ""
    page.goto(address)
    page.fill("#goal", str(goal))
    press(page, "form.choose button")
    steps = 0
    while not observation.done:
        same(page, env, instruction)
        action = choose(env, steps, instruction, rng)
        observation = env.step(action)
        do(page, action)
        steps += 1
    same(page, env, instruction)
    press(page, "a.first")
    purchase = observation.info["purchase"]
    assert on_page(page, ".total b", "textContent") == [f"{observation.score:.2f}"]
    found = on_page(page, ".score tbody td:last-child", "textContent")
    wanted = task.options
    assert found[1:3] == [
        f"{purchase['num_attributes']} of {len(wanted['attributes'])}",
        f"{purchase['num_options']} of {len(wanted['options'])}",
    ]
    met = on_page(page, ".score tbody tr", "className")
    assert (met[3] == "met") == purchase["price_fits"]
    assert (met[0] == "met") == (purchase["type_factor"] == 1)
    env.close()


def test_all_of_it_was_recorded(shop: tuple[str, Path], page: Page) -> None:
    _, record = shop
    played = read_demonstrations(record, "warmstart.demonstrations")
    tasks = webshop_tasks("train")
    assert [each.task.id for each in played if each.task] == [tasks[goal].id for goal in GOALS]
    assert all(each.messages[-1].content == "click[buy now]" for each in played)

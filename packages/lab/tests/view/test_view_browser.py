"""The window in a real browser: the command serves it, and what only a browser can tell is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import chromium
from chromium import Browser
from trailnotes.runs.directory import RunDir, load_run_config
from viewed import HOSTILE, episode, make_run

pytestmark = [chromium.needed, pytest.mark.long]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("window") / "runs"
    make_run(root / "first")
    make_run(root / "hostile", words=HOSTILE)
    return root


@pytest.fixture(scope="module")
def served(root: Path) -> Iterator[tuple[str, str]]:
    """The address of the command's own process, and its token."""
    command = [sys.executable, "-m", "trailnotes", "view", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            address, _, token = process.stdout.readline().removeprefix("ready: ").strip().partition("/?token=")
            yield address, token
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Browser, served: tuple[str, str]) -> Iterator[Browser]:
    """The browser with the token's cookie; whatever it complains about, or loads from elsewhere, fails the test."""
    address, token = served
    browser.resize(1280, 900)
    browser.go(f"{address}/?token={token}")
    browser.trouble.clear()
    browser.asked.clear()
    yield browser
    assert not browser.trouble
    assert all(url.startswith(address) for url in browser.asked)


def test_curves_are_switched_and_keys_lead_on(page: Browser, served: tuple[str, str]) -> None:
    assert page.run("document.querySelectorAll('.series').length") == 2
    page.run("document.querySelector('[data-toggles]').click()")
    assert page.run("getComputedStyle(document.querySelector('.series')).display") == "none"
    page.go(f"{served[0]}/run/first/episodes/3")
    page.press("ArrowRight")
    page.wait("location.pathname === '/run/first/episodes/4' && document.readyState === 'complete'")
    assert page.run("document.querySelectorAll('mark').length") == 1
    page.press("k")
    page.wait("location.pathname === '/run/first/episodes/3'")
    page.go(f"{served[0]}/run/first/tips")
    page.press("/")
    assert page.run("document.activeElement.name") == "task"


def test_a_run_that_goes_on_is_kept_up_with(page: Browser, served: tuple[str, str], root: Path) -> None:
    with RunDir.open(root / "first", load_run_config(root / "first")) as run:
        page.go(f"{served[0]}/run/first/episodes")
        page.run("window.same = true")
        before = page.run("document.querySelectorAll('tbody tr').length")
        run.append_trajectories(7, [episode()])
        page.wait(f"document.querySelectorAll('tbody tr').length === {before + 1}")
        assert page.run("window.same"), "without loading the page again"

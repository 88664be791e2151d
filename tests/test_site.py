"""The documentation site builds without a warning; its links lead somewhere, and it loads nothing from other hosts."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import chromium
import trailnotes
from trailnotes.commands import TABLE
from trailnotes.commands.command import render_cli_page
from trailnotes.config.__main__ import render_config_page

ROOT = Path(__file__).parents[1]
ELSEWHERE = re.compile(r"https?://|mailto:|data:")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("records"))
    (folder / "docs/config.md").write_text(render_config_page(), encoding="utf-8")
    (folder / "docs/cli.md").write_text(render_cli_page(TABLE), encoding="utf-8")
    (folder / "src").symlink_to(ROOT / "src")
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "build" / "site"


def pages(site: Path) -> dict[Path, str]:
    return {page: page.read_text(encoding="utf-8") for page in sorted(site.rglob("*.html")) if page.name != "404.html"}


def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    texts = pages(site)
    places = {page: {*re.findall(r'\sid="?([^"\s>]+)', text)} for page, text in texts.items()}
    for page, text in texts.items():
        for link in re.findall(r'\s(?:href|src)="?([^"\s>]+)', text):
            name, _, place = unescape(link).partition("#")
            if ELSEWHERE.match(link):
                continue
            target = (page.parent / name).resolve() if name else page
            assert target.is_file(), f"{page.name}: {link}"
            assert not place or place in places[target] or place == "__top", f"{page.name}: {link}"


def test_no_text_is_taken_for_markup(site: Path) -> None:
    """Code hosts read Markdown otherwise: escaped bars in code; a line that begins with > by accident."""
    assert not [page.name for page, text in pages(site).items() if re.search(r"<blockquote>|<code>[^<]*\\\|", text)]


def test_every_page_is_in_the_navigation(site: Path) -> None:
    linked = {*re.findall(r'href="?(?:\./)?([\w/-]+\.html)', (site / "index.html").read_text(encoding="utf-8"))}
    assert {str(page.relative_to(site)) for page in pages(site)} == linked | {"index.html"}


def test_no_script_nor_record_is_published(site: Path) -> None:
    assert {file.suffix for file in site.rglob("*") if file.is_file() and "assets" not in file.parts} == {
        ".css", ".html", ".inv", ".json", ".png", ".svg", ".xml",
    }  # fmt: skip


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    for page, text in pages(site).items():
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="?([^"\s>]+)', text)
        loaded += re.findall(r'<link[^>]*\srel="?(?:stylesheet|preconnect|icon)[^>]*\shref="?([^"\s>]+)', text)
        assert not [address for address in loaded if ELSEWHERE.match(address)], page.name


@chromium.needed
def test_a_browser_searches_and_asks_no_other_host(site: Path, tmp_path: Path) -> None:
    files = partial(SimpleHTTPRequestHandler, directory=str(site))
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), files) as server,
        contextlib.closing(chromium.Browser(tmp_path)) as browser,
    ):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            home = f"http://127.0.0.1:{server.server_port}/"
            browser.go(f"{home}index.html")
            browser.run("document.querySelector('.md-search__button').click()")
            browser.wait("document.activeElement.shadowRoot !== null")
            browser.call("Input.insertText", text="anchor_tips")
            browser.wait("document.activeElement.shadowRoot.textContent.includes('Settings')")
        finally:
            server.shutdown()
            thread.join()
    assert browser.asked
    assert not [address for address in browser.asked if not address.startswith((home, "data:", "blob:"))]
    assert not browser.trouble


@pytest.mark.parametrize("name", trailnotes.__all__)
def test_the_reference_has_every_public_name(site: Path, name: str) -> None:
    assert f'id="trailnotes.{name}"' in (site / "api.html").read_text(encoding="utf-8")

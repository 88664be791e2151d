"""`make docs`: the site builds without a warning, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trailnotes
from trailnotes.commands import TABLE

ROOT = Path(__file__).parents[1]
PAGE_MAKERS = runpy.run_path(str(ROOT / "docs/pages.py"))
ELSEWHERE = re.compile(r"https?://|mailto:|data:")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """The pages of the built site."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    docs = shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("records"))
    (docs / "config.md").write_text(PAGE_MAKERS["render_config_page"](), encoding="utf-8")
    (docs / "cli.md").write_text(PAGE_MAKERS["render_cli_page"](TABLE), encoding="utf-8")
    (docs / "metrics.md").write_text(PAGE_MAKERS["render_metrics_page"](), encoding="utf-8")
    (folder / "src").symlink_to(ROOT / "src")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    environment = os.environ | {"PYTHONPATH": str(docs)}
    built = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    site = folder / "build" / "site"
    return {page: page.read_text(encoding="utf-8") for page in sorted(site.rglob("*.html")) if page.name != "404.html"}


def test_the_site_loads_nothing_from_other_hosts(pages: dict[Path, str]) -> None:
    for page, text in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="?([^"\s>]+)', text)
        loaded += re.findall(r'<link[^>]*\srel="?(?:stylesheet|preconnect|icon)[^>]*\shref="?([^"\s>]+)', text)
        assert not [address for address in loaded if ELSEWHERE.match(address)], page.name


def test_the_reference_has_every_public_name(pages: dict[Path, str]) -> None:
    (reference,) = (text for page, text in pages.items() if page.name == "api.html")
    assert not [name for name in trailnotes.__all__ if f'id="trailnotes.{name}"' not in reference]

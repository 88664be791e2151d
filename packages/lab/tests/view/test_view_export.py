"""The window as files: every link leads to a file that is there, and nothing of a run can act."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trailnotes.commands import main
from trailnotes_lab.view.export import LinkRegistry, make_file_name
from viewed import HOSTILE, WORDS, Seen, make_run


def test_every_link_leads_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs/first")
    make_run(tmp_path / "runs/hostile", words=HOSTILE)
    out = tmp_path / "out"
    assert main(["view", str(tmp_path / "runs"), "--export", str(out)]) == 0
    assert f"open {out / 'index.html'}" in capsys.readouterr().out
    pages = {path.name: Seen(path.read_text(encoding="utf-8")) for path in out.glob("*.html")}
    assert {"index.html", "run+first.html", "run+first+episodes+4.html", "run+first+tips+1.html"} <= pages.keys()
    for page in pages.values():
        for link in [*page.values("a", "href"), *page.values("link", "href"), *page.values("script", "src")]:
            assert link.startswith("#") or (out / link).is_file(), link
        assert "default-src 'none'" in page.values("meta", "content")[0]
        assert not page.values("form", "action") or "index.html" in page.values("form", "action")
        assert not [name for _, values in page.tags for name in values if name.startswith("on")]
    assert WORDS[2] in pages["run+first+tips+1.html"].text


def test_only_the_newest_are_written(tmp_path: Path) -> None:
    make_run(tmp_path / "runs/first", iterations=5)
    assert main(["view", str(tmp_path / "runs"), "--export", str(tmp_path / "out"), "--limit", "2"]) == 0
    written = {path.name for path in (tmp_path / "out").glob("run+first+episodes+*")}
    assert len(written) == 2


def test_a_folder_that_holds_something_and_nonsense_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").touch()
    for words, why in [
        ([str(tmp_path), "--export", str(tmp_path / "out")], "is not empty"),
        ([str(tmp_path), "--export", str(tmp_path / "new"), "--write"], "leave out --write"),
        ([str(tmp_path), "--export", str(tmp_path / "new"), "--limit", "0"], "give 1 or more"),
        ([str(tmp_path / "nowhere")], "is no directory"),
    ]:
        assert main(["view", *words]) == 2
        assert why in capsys.readouterr().err


def test_no_two_addresses_share_a_file() -> None:
    paths = ["/", "/run/a", "/run/a/b", "/run/a-b", "/run/runs", "/run/A", "/run/a!2f.b", "/run/a%2Fb"]
    addresses = [(path, path) for path in paths] + [
        ("/", "/?metric=a"),
        ("/", "/?metric=b"),
        ("/run/a", "/run/a?page=2"),
    ]
    files = [make_file_name(*each) for each in addresses]
    assert len({*files}) == len(files)
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]+\.html", file) for file in files)
    assert make_file_name(*addresses[0]) == "index.html"


def test_links_beyond_the_limit_lead_nowhere() -> None:
    links = LinkRegistry(1)
    assert links("/run/a/episodes/9") == "run+a+episodes+9.html"
    assert links("/run/a/episodes/8") == "#main"
    assert links("/run/a/episodes/9", turn=41) != "#main", "the rest of one that is written"
    assert links("/run/b/episodes/8") == "run+b+episodes+8.html"
    assert links("/run/a/episodes", task="maze") == "#main"
    assert links("/run/a/tips", page=2) == "#main"

"""An index is whole or none, and an incomplete one is not opened."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from trailnotes.errors import ConfigError
from trailnotes_worlds.search.building import FILES, IndexBuilder
from trailnotes_worlds.search.index import SearchIndex


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with IndexBuilder(tmp_path / "index") as builder:
        for number in range(50):
            builder.add(f"d{number}", f"cup number {number}")
        builder.finish()
    return tmp_path / "index"


def test_nothing_is_left_but_the_index(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "meta.json"])


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_or_is_gone_is_named(folder: Path, name: str) -> None:
    os.truncate(folder / name, (folder / name).stat().st_size - 1)
    with pytest.raises(ConfigError, match=rf"^{folder / name} has \d+ bytes instead of \d+"):
        SearchIndex.open(folder)
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} has 0 bytes instead of"):
        SearchIndex.open(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no search index"),
        ("[]", "is no search index"),
        ('{"kind": "search index"}', "is no search index"),
        ('{"kind": "search index", "files": {}, "version": 99}', "version 99, and this Trailnotes reads version 1"),
        ('{"kind": "search index", "files": {}, "version": 1}', "is damaged, it does not tell 'filled'"),
    ],
)
def test_another_meta_is_named(folder: Path, text: str, message: str) -> None:
    (folder / "meta.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        SearchIndex.open(folder)


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no search index: it has no meta\.json"):
        SearchIndex.open(tmp_path)


def test_a_folder_that_is_replaced_does_not_disturb(folder: Path, tmp_path: Path) -> None:
    index = SearchIndex.open(folder)
    before = index.search("cup 7")
    shutil.copytree(folder, tmp_path / "other")
    shutil.rmtree(folder)
    (tmp_path / "other").rename(folder)
    assert index.search("cup 7") == before
    index.close()


def test_a_build_that_breaks_off_is_no_index(tmp_path: Path) -> None:
    with IndexBuilder(tmp_path) as builder:
        builder.add("a", "cup")
    with pytest.raises(ConfigError, match="is no search index"):
        SearchIndex.open(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_meta_tells_what_is_in_it(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["documents"], meta["filled"], meta["tokens"]) == (50, 50, 150)

"""An index is whole or none, and says when its files are not what they were."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from trailnotes.errors import ConfigError, RunError
from trailnotes_worlds.search.building import FILES, KIND, VERSION, IndexBuilder
from trailnotes_worlds.search.index import SearchIndex
from trailnotes_worlds.search.mapped import MappedFolder


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
    with pytest.raises(ConfigError, match=f"{name} cannot be read"):
        SearchIndex.open(folder)


def test_a_header_that_is_none_is_named(folder: Path) -> None:
    data = (folder / "docs.npy").read_bytes()
    (folder / "docs.npy").write_bytes(b"x" * len(data))
    with pytest.raises(ConfigError, match=r"docs\.npy is damaged"):
        SearchIndex.open(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged"),
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


def test_a_file_that_changes_in_place_is_noticed(folder: Path) -> None:
    index = SearchIndex.open(folder)
    assert len(index.search("cup", 50)) == 50
    os.truncate(folder / "docs.npy", 100)
    with pytest.raises(ConfigError, match=r"docs\.npy was changed while it was in use"):
        index.search("cup")
    index.close()


def test_a_folder_that_is_replaced_does_not_disturb(folder: Path, tmp_path: Path) -> None:
    index = SearchIndex.open(folder)
    before = index.search("cup 7")
    shutil.copytree(folder, tmp_path / "other")
    shutil.rmtree(folder)
    (tmp_path / "other").rename(folder)
    assert index.search("cup 7") == before
    index.close()


def test_what_is_mapped_is_the_file_that_was_opened(folder: Path) -> None:
    """A file that takes its name a moment later has no part in it, whatever its size."""
    files = MappedFolder(folder, KIND, VERSION, {})
    files.open_file("docs.npy")
    before = np.load(folder / "docs.npy")
    np.save(folder / "other.npy", np.zeros(3))
    (folder / "other.npy").replace(folder / "docs.npy")
    assert np.array_equal(files.map_array("docs.npy"), before)
    files.close()


def test_objects_are_never_unpickled(folder: Path) -> None:
    np.save(folder / "docs.npy", np.array([{}], dtype=object), allow_pickle=True)
    meta = json.loads((folder / "meta.json").read_text())
    meta["files"]["docs.npy"] = (folder / "docs.npy").stat().st_size
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ConfigError, match=r"docs\.npy is damaged \(it holds objects\)"):
        SearchIndex.open(folder)


def test_a_build_that_breaks_off_is_no_index(tmp_path: Path) -> None:
    with IndexBuilder(tmp_path) as builder:
        builder.add("a", "cup")
    with pytest.raises(ConfigError, match="is no search index"):
        SearchIndex.open(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with IndexBuilder(tmp_path) as builder:
        builder.add("a", "cup")
        with pytest.raises(RunError, match=r"No space left on device\): free space"):
            builder.finish()
    assert not (tmp_path / "meta.json").exists()


def test_the_meta_tells_what_is_in_it(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["documents"], meta["filled"], meta["tokens"]) == (50, 50, 150)

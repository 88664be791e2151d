from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from trailnotes.storage.files import (
    find_free_path,
    open_aside,
    open_no_follow,
    write_bytes_atomic,
    write_text_atomic,
)


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o002, 0o664), (0o022, 0o644)])
def test_a_file_has_the_mode_that_the_umask_leaves(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_text_atomic(tmp_path / "note.txt", "private\n")
        write_text_atomic(tmp_path / "note.txt", "again\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "note.txt").stat().st_mode) == mode


def test_text_is_written_as_utf8_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "note.txt"
    write_text_atomic(path, "élan\n")
    assert path.read_bytes() == b"\xc3\xa9lan\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [file.name for file in path.parent.iterdir()] == ["note.txt"]


@pytest.mark.parametrize("fault", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_and_nothing_else(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    write_bytes_atomic(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if fault == "fsync" else (Path, "replace")), full)
    with pytest.raises(OSError, match="No space"):
        write_bytes_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["table.json"]


def test_content_is_flushed_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "a", []
    flush, rename = os.fsync, Path.replace

    def watched_flush(handle: int) -> None:
        seen.append("flush")
        flush(handle)

    def watched_rename(self: Path, target: Path) -> Path:
        seen.append("rename")
        assert self.read_bytes() == b"whole"
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", watched_flush)
    monkeypatch.setattr(Path, "replace", watched_rename)
    write_bytes_atomic(path, b"whole")
    assert seen == ["flush", "rename"]


def test_free_name_counts_past_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "tips.jsonl"
    assert find_free_path(path).name == "tips.1.jsonl"
    (tmp_path / "tips.1.jsonl").touch()
    (tmp_path / "tips.3.jsonl").touch()
    assert find_free_path(path).name == "tips.2.jsonl"


def test_what_a_killed_process_left_aside_is_taken_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    (tmp_path / ".best.json.tmp").write_text("half of what was written before, and longer than what comes")
    write_text_atomic(path, "whole")
    assert path.read_text() == "whole"
    with pytest.raises(TypeError):
        write_bytes_atomic(path, "no bytes")  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["best.json"]


@pytest.mark.parametrize("taken", ["written", "a link", "a folder"])
def test_who_writes_the_same_file_meanwhile_has_a_name_of_its_own(tmp_path: Path, taken: str) -> None:
    path, first = tmp_path / "best.json", tmp_path / ".best.json.tmp"
    with ExitStack() as stack:
        if taken == "written":
            assert stack.enter_context(open_aside(path)) == first
        elif taken == "a link":
            (tmp_path / "precious").write_text("kept")
            first.symlink_to(tmp_path / "precious")
        else:
            first.mkdir()
        write_text_atomic(path, "whole")
        assert path.read_text() == "whole"
        assert first.exists()
    assert taken != "a link" or (tmp_path / "precious").read_text() == "kept"


def test_a_lock_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        open_no_follow(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()


def test_two_writers_of_one_file_take_nothing_from_each_other(tmp_path: Path) -> None:
    """The first renames its file; the second begins one of the same name before the first has let go."""
    path = tmp_path / "x"
    first = open_aside(path)
    mine = first.__enter__()
    mine.write_text("first")
    mine.replace(path)
    with open_aside(path) as other:
        other.write_text("second")
        first.__exit__(None, None, None)
        other.replace(path)
    assert path.read_text() == "second"
    assert [file.name for file in tmp_path.iterdir()] == ["x"]

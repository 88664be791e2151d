from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trailnotes.storage.files import find_free_path, open_no_follow, write_bytes_atomic, write_text_atomic


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


def test_a_lock_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        open_no_follow(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trailnotes.storage.files import write_bytes_atomic


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

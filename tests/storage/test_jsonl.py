from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.errors import RunError
from trailnotes.storage.files import append_jsonl, encode_line, read_jsonl, split_after


def lines(*iterations: int) -> list[dict[str, int]]:
    return [{"iteration": i, "value": 10 * i} for i in iterations]


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_jsonl(path, lines(0, 1))
    append_jsonl(path, [])
    append_jsonl(path, [{"text": "zwölf\u2028\x85"}])
    assert list(read_jsonl(path)) == [*lines(0, 1), {"text": "zwölf\u2028\x85"}]
    assert list(read_jsonl(tmp_path / "absent.jsonl")) == []


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.booleans())))
def test_lines_are_one_line_of_strict_json_whatever_the_text(record: dict[str, object]) -> None:
    line = encode_line(record)
    assert line.count(b"\n") == 1
    assert json.loads(line) == record


def test_a_half_written_last_line_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_jsonl(path, lines(0))
    with path.open("ab") as file:
        file.write(b'{"iteration": 1, "val')
    assert list(read_jsonl(path)) == lines(0)
    aside = split_after(path)
    assert aside == tmp_path / "a.half.1.jsonl"
    assert aside.read_bytes() == b'{"iteration": 1, "val'
    append_jsonl(path, lines(1))
    assert list(read_jsonl(path)) == lines(0, 1)
    assert split_after(path) is None


def test_lines_after_an_iteration_are_moved_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_jsonl(path, lines(0, 1, 1, 2, 3))
    before = path.read_bytes()
    aside = split_after(path, 2)
    assert aside == tmp_path / "a.after-000002.1.jsonl"
    assert list(read_jsonl(path)) == lines(0, 1, 1)
    assert path.read_bytes() + aside.read_bytes() == before
    assert split_after(path, 2) is None
    append_jsonl(path, lines(2))
    assert split_after(path, 2) == tmp_path / "a.after-000002.2.jsonl"
    assert split_after(path, 0) == tmp_path / "a.after-000000.1.jsonl"
    assert path.read_bytes() == b""
    assert split_after(tmp_path / "absent.jsonl", 0) is None


def test_a_crash_between_copy_and_cut_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    append_jsonl(path, lines(0, 1, 2))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", fail)
        with pytest.raises(RunError, match="all are still there"):
            split_after(path, 1)
    assert list(read_jsonl(path)) == lines(0, 1, 2)
    aside = split_after(path, 1)
    assert aside.name == "a.after-000001.2.jsonl"
    assert list(read_jsonl(aside)) == lines(1, 2)


def test_a_full_disk_keeps_the_earlier_lines_whole(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    path = tmp_path / "a.jsonl"
    append_jsonl(path, lines(0))
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))  # the write stops in mid-line
    try:
        with pytest.raises(RunError, match="its earlier lines are whole; free space"):
            append_jsonl(path, [{"iteration": 1, "long": "x" * 100}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before

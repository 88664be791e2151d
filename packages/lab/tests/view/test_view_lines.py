"""The rows of a trajectories.jsonl: what they say is what the file holds, however the file came to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trailnotes.errors import RunError
from trailnotes_lab.view.lines import (
    DAMAGED,
    EpisodeFilter,
    EpisodeRow,
    LineReader,
    parse_episode_row,
    read_episode,
)


def record(iteration: int = 0, task: str = "maze/1", tips: tuple[int | None, ...] = (), **more: Any) -> dict[str, Any]:
    step = {"tips": [{"id": tip, "text": "t"} for tip in tips], "action": "north", "observation": {"text": "a hall"}}
    plain = {"mode": "off_policy" if tips else "plain", "member": 0, "outcome": "terminated", "success": True}
    numbers = {"score": 1.0, "max_score": 1.0, "return": 1.0}
    return {"iteration": iteration, "task": {"id": task}, **plain, **numbers, "steps": [step], **more}


def write(path: Path, *records: object, mode: str = "w") -> Path:
    with path.open(mode, encoding="utf-8") as file:
        file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in records)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trajectories.jsonl"


def read(path: Path) -> list[EpisodeRow]:
    return LineReader(path, parse_episode_row).read()


def numbers(rows: list[EpisodeRow], **wanted: Any) -> list[int]:
    return [row.number for row in rows if EpisodeFilter(**wanted).matches(row)]


def test_each_filter_finds_its_episodes(path: Path) -> None:
    write(path, record(), record(1, "maze/2", (7,)), record(1, "keys/1", success=False), record(2, tips=(7, 8, None)))
    rows = read(path)
    assert numbers(rows) == [1, 2, 3, 4]
    assert numbers(rows, task="maze/") == [1, 2, 4]
    assert numbers(rows, mode="off_policy") == [2, 4]
    assert numbers(rows, success="no") == [3]
    assert numbers(rows, iteration=1) == [2, 3]
    assert numbers(rows, tip=7, task="maze/2") == [2]
    assert (rows[3].tips, rows[3].last_action) == (3, "north")
    assert read_episode(path, rows[3]) == record(2, tips=(7, 8, None))


def test_a_file_that_grows_is_read_on_and_half_a_line_waits(path: Path) -> None:
    reader = LineReader(path, parse_episode_row)
    assert reader.read() == []
    write(path, record(), record(1))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"iteration": 2')
    assert numbers(reader.read()) == [1, 2]
    path.write_text(path.read_text(encoding="utf-8").rpartition("\n")[0] + "\n", encoding="utf-8")
    write(path, record(2), mode="a")
    assert numbers(reader.read(), iteration=2) == [3]


def test_a_file_that_was_cut_replaced_or_deleted_is_read_anew(path: Path) -> None:
    reader = LineReader(write(path, record(0), record(1), record(2)), parse_episode_row)
    assert len(reader.read()) == 3
    write(path, record(0))
    assert numbers(reader.read()) == [1]
    write(path, record(8, "keys/1"), record(9), record(9), record(9))
    assert [row.iteration for row in reader.read()] == [8, 9, 9, 9]
    path.unlink()
    assert reader.read() == []


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"iteration": 1}', '{"steps": 5}', "[" * 5000, "\x00\ufffd", ""])
def test_a_damaged_line_is_one_episode_that_says_so(path: Path, line: str) -> None:
    rows = read(write(path, record(), line, record(1)))
    assert [row.outcome for row in rows] == ["terminated", DAMAGED, "terminated"]
    if line not in {'{"iteration": 1}', '{"steps": 5}'}:
        with pytest.raises(RunError, match="line 2 is damaged"):
            read_episode(path, rows[1])

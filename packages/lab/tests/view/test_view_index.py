"""The index of a trajectories.jsonl: what it says is what the file holds, however the file came to be."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes.errors import RunError
from trailnotes_lab.view.index import DAMAGED, INDEX_SUFFIX, EpisodeFilter, EpisodeIndex, TipIterationStats


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


def numbers(index: EpisodeIndex, **wanted: Any) -> list[int]:
    return [episode.number for episode in index.list_episodes(EpisodeFilter(**wanted), 0, 99, newest=False)]


def test_each_filter_finds_its_episodes(path: Path) -> None:
    write(path, record(), record(1, "maze/2", (7,)), record(1, "keys/1", success=False), record(2, tips=(7, 8, None)))
    index = EpisodeIndex(path)
    assert index.catch_up() == 1
    assert numbers(index) == [1, 2, 3, 4]
    assert numbers(index, task="maze/") == [1, 2, 4]
    assert numbers(index, mode="off_policy") == [2, 4]
    assert numbers(index, success="no") == [3]
    assert numbers(index, iteration=1) == [2, 3]
    assert numbers(index, tip=7, task="maze/2") == [2]
    assert [episode.number for episode in index.list_episodes(EpisodeFilter(), 1, 2)] == [3, 2], "the newest first"
    assert index.count(EpisodeFilter(iteration=1)) == 2
    assert index.iterations() == (0, 2)
    (fourth,) = index.list_episodes(EpisodeFilter(iteration=2), 0, 9)
    assert (fourth.tips, fourth.last_action) == (3, "north")
    assert index.read_record(fourth) == record(2, tips=(7, 8, None))


def test_the_worth_of_a_tip_is_that_of_its_readers_beside_the_others_of_their_groups(path: Path) -> None:
    group = [record(3, tips=(5,), **{"return": 1.0}), record(3, **{"return": 0.25}), record(3, **{"return": 0.75})]
    other = [record(3, "keys/1", **{"return": 9.0}), record(3, tips=(), outcome="error", **{"return": 5.0})]
    alone = record(4, tips=(5,), **{"return": 0.0})
    index = EpisodeIndex(write(path, *group, *other, alone))
    index.catch_up()
    assert index.worth(5) == [TipIterationStats(3, 1, 1.0, 2, 0.5), TipIterationStats(4, 1, 0.0, 0, None)]
    assert index.worth(6) == []


def test_a_file_that_grows_is_read_on_and_half_a_line_waits(path: Path) -> None:
    index = EpisodeIndex(path)
    assert index.catch_up() == 1
    assert index.count() == 0
    write(path, record(), record(1))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"iteration": 2')
    index.catch_up()
    assert index.count() == 2
    index.close()
    again = EpisodeIndex(path)
    assert again.count() == 2, "kept beside the file"
    path.write_text(path.read_text(encoding="utf-8").rpartition("\n")[0] + "\n", encoding="utf-8")
    write(path, record(2), mode="a")
    again.catch_up()
    assert numbers(again, iteration=2) == [3]


def test_a_file_that_was_cut_replaced_or_deleted_is_read_anew(path: Path) -> None:
    index = EpisodeIndex(write(path, record(0), record(1), record(2)))
    index.catch_up()
    write(path, record(0))
    index.catch_up()
    assert numbers(index) == [1]
    write(path, record(8, "keys/1"), record(9), record(9), record(9))
    index.catch_up()
    assert index.iterations() == (8, 9)
    path.unlink()
    index.catch_up()
    assert index.count() == 0


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"iteration": 1}', '{"steps": 5}', "[" * 5000, "\x00\ufffd", ""])
def test_a_damaged_line_is_one_episode_that_says_so(path: Path, line: str) -> None:
    index = EpisodeIndex(write(path, record(), line, record(1)))
    index.catch_up()
    assert [episode.outcome for episode in index.list_episodes(EpisodeFilter(), 0, 9, newest=False)] == [
        "terminated", DAMAGED, "terminated",
    ]  # fmt: skip
    assert len([*index.iterate_outlines()]) == 2
    if line not in {'{"iteration": 1}', '{"steps": 5}'}:
        damaged = index.get_episode(2)
        assert damaged
        with pytest.raises(RunError, match="line 2 is damaged"):
            index.read_record(damaged)


@pytest.mark.parametrize("rubbish", [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 600])
def test_the_index_may_be_damaged_or_thrown_away(path: Path, rubbish: bytes) -> None:
    write(path, record(), record(1))
    beside = path.with_name(f"{path.name}{INDEX_SUFFIX}")
    beside.write_bytes(rubbish)
    index = EpisodeIndex(path)
    index.catch_up()
    assert numbers(index) == [1, 2]
    index.close()
    beside.unlink()
    index = EpisodeIndex(path)
    index.catch_up()
    assert numbers(index) == [1, 2]


def test_two_windows_share_an_index(path: Path) -> None:
    one, two = EpisodeIndex(write(path, record())), EpisodeIndex(path)
    for iteration in range(1, 4):
        one.catch_up()
        two.catch_up()
        write(path, record(iteration), mode="a")
    assert one.catch_up() == two.catch_up() == 1
    assert numbers(one) == numbers(two) == [1, 2, 3, 4]


def test_reading_on_stops_in_time(path: Path) -> None:
    index = EpisodeIndex(write(path, *(record(n) for n in range(500))))
    shares = [index.catch_up(0.0) for _ in range(9)]
    assert 0 < shares[0] < shares[1] < 1 == shares[-1]
    assert index.count() == 500


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a/1", "a/2"]), st.sets(st.integers(1, 4))), max_size=8))
def test_the_index_says_what_the_file_says(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, str, set[int]]]
) -> None:
    records = [record(iteration, task, tuple(tips)) for iteration, task, tips in made]
    index = EpisodeIndex(write(tmp_path_factory.mktemp("index") / "trajectories.jsonl", *records))
    index.catch_up()
    assert [
        index.read_record(episode) for episode in index.list_episodes(EpisodeFilter(), 0, 99, newest=False)
    ] == records
    for tip in range(1, 5):
        assert numbers(index, tip=tip) == [n for n, (_, _, tips) in enumerate(made, 1) if tip in tips]


@pytest.mark.parametrize("length", [10**12, -1, "x"])
def test_no_more_is_read_than_the_file_holds(path: Path, length: object) -> None:
    with closing(EpisodeIndex(write(path, record()))) as index:
        index.catch_up()
        with closing(sqlite3.connect(path.with_name(f"{path.name}{INDEX_SUFFIX}"))) as connection, connection:
            connection.execute("UPDATE episodes SET length = ?", [length])
        (first, *_) = index.list_episodes(EpisodeFilter(), 0, 1, newest=False)
        with pytest.raises(RunError, match="line 1 is damaged"):
            index.read_record(first)


def test_a_link_in_the_place_of_the_index_is_thrown_away(tmp_path: Path) -> None:
    """The database that it leads to would be written to."""
    file, index = tmp_path / "episodes.jsonl", tmp_path / f"episodes.jsonl{INDEX_SUFFIX}"
    precious = tmp_path / "precious.db"
    file.write_text(json.dumps(record(0)) + "\n")
    with closing(sqlite3.connect(precious)) as connection, connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    before = precious.read_bytes()
    index.symlink_to(precious)
    with closing(EpisodeIndex(file)) as episodes:
        episodes.catch_up()
        assert numbers(episodes) == [1]
    assert not index.is_symlink()
    assert precious.read_bytes() == before

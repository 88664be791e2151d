"""A run goes back to a checkpoint; what a person did to its tips meanwhile stays."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import exchange as p
from trailnotes.memory import open_memory, schema
from trailnotes.memory.exchange import reconcile, rewind_to_snapshot
from trailnotes.memory.store import TipStore
from trailnotes.memory.tipfile import read_tips
from trailnotes.memory.tips import TipMemory
from trailnotes.types import Tip

ANY = MemoryConfig(threshold=-1, capacity=8)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[TipMemory]:
    """Three tips, of which a checkpoint was made."""
    with open_memory(tmp_path / "memory.db", ANY, clock=lambda: "") as memory:
        memory.add(own("one", "two", "three"))
        memory.snapshot(tmp_path / "snapshot.db")
        yield memory


def own(*texts: str) -> list[Tip]:
    """Tips as the run writes them."""
    return [Tip("cellar", text, f"key of {text}", 1.0) for text in texts]


def back(memory: TipMemory, tmp_path: Path) -> list[str]:
    """Texts that are set aside."""
    (aside := tmp_path / "late.jsonl").unlink(missing_ok=True)
    num = rewind_to_snapshot(memory, tmp_path / "snapshot.db", aside)
    late = [tip.text for tip in read_tips(aside)] if aside.exists() else []
    assert len(late) == num
    return late


def texts(memory: TipMemory) -> list[str]:
    return [tip.text for tip in reversed(p.list_tips(memory.store))]


def rows(path: Path) -> list[tuple[Any, ...]]:
    """Everything in the file that a run depends on: tips with ids, ages and vectors, counters, ids given.

    The era is not: an index is to know that rows were exchanged, even for the same.
    """
    with closing(sqlite3.connect(path)) as connection:
        tables = ("tips", "meta WHERE name <> 'era'", "sizes", "owner_changes", "sqlite_sequence")
        return [tuple(connection.execute(f"SELECT * FROM {table} ORDER BY 1")) for table in tables]


def test_later_tips_are_set_aside(memory: TipMemory, tmp_path: Path) -> None:
    before = rows(tmp_path / "memory.db")
    assert back(memory, tmp_path) == []
    memory.add(own("late", "one"), once="batch")
    memory.search("cellar", "q", 1)  # a page is cached
    assert back(memory, tmp_path) == ["late", "one"]
    assert rows(tmp_path / "memory.db") == before, "to the last bit, counters and marks among them"
    assert [tip.text for tip in memory.search("cellar", "q", 9)] == ["three", "two", "one"]


def test_a_batch_without_tips_is_forgotten(memory: TipMemory, tmp_path: Path) -> None:
    """Played again, the same batch may have some."""
    assert memory.add(own("..."), once="batch") == 0
    assert back(memory, tmp_path) == []
    assert memory.add(own("late"), once="batch") == 1
    with patch.object(memory, "embed", side_effect=AssertionError("a batch known by its name is not embedded again")):
        assert memory.add(own("later"), once="batch") == 0


# --- the owner's --------------------------------------------------------------------------------------------------

Do = Callable[[TipMemory, Path], object]


def imports(memory: TipMemory, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({"namespace": "cellar", "text": "from afar", "key": "k", "score": 0.5}))
    p.import_tips(memory.store, file, enable=True)


CHANGES: dict[str, tuple[Do, list[str]]] = {
    "import": (imports, ["one", "two", "three", "from afar"]),
    "add": (lambda m, _: p.add_tip(m.store, "cellar", "mine"), ["one", "two", "three", "mine"]),
    "edit": (lambda m, _: p.edit_tip(m.store, 2, "zwei", score=5), ["one", "zwei", "three"]),
    "delete": (lambda m, _: p.delete_tips(m.store, [1, 3]), ["two"]),
    "off": (lambda m, _: p.enable_tips(m.store, [3], enabled=False), ["one", "two", "three"]),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("written", [(), ("late",), ("one", "late")])
def test_what_the_owner_did_survives(memory: TipMemory, tmp_path: Path, name: str, written: tuple[str, ...]) -> None:
    """Whether or not the run wrote tips since its checkpoint, and however often it is killed and goes back."""
    do, expected = CHANGES[name]
    do(memory, tmp_path)
    shown = {(tip.id, tip.text, tip.score, tip.enabled) for tip in memory.store.load_tips()}
    for _ in range(2):
        memory.add(own(*written))
        assert set(back(memory, tmp_path)) <= {*written}
        assert texts(memory) == expected
        assert {(tip.id, tip.text, tip.score, tip.enabled) for tip in memory.store.load_tips()} == shown
        enabled = {text for _, text, _, on in shown if on}
        assert {tip.text for tip in memory.search("cellar", "q", 9)} == enabled
    memory.snapshot(tmp_path / "snapshot.db")
    assert back(memory, tmp_path) == []
    assert texts(memory) == expected


def test_changes_come_in_their_order(memory: TipMemory, tmp_path: Path) -> None:
    memory.add(own("late"))
    mine = p.add_tip(memory.store, "cellar", "mine")
    p.edit_tip(memory.store, mine.id or 0, "mine, better", score=3)
    gone = p.add_tip(memory.store, "cellar", "gone")
    p.delete_tips(memory.store, [gone.id or 0])
    p.enable_tips(memory.store, [1], enabled=False)
    p.enable_tips(memory.store, [1], enabled=True)
    memory.add(own("later"))
    assert back(memory, tmp_path) == ["late", "later"]
    assert texts(memory) == ["one", "two", "three", "mine, better"]
    assert p.require_tip(memory.store, 1).enabled
    assert p.require_tip(memory.store, mine.id or 0).score == 3, "it keeps its id"


def test_a_late_tip_that_the_owner_touched_is_kept(memory: TipMemory, tmp_path: Path) -> None:
    memory.add(own("right", "wrong", "useless", "late"))
    p.edit_tip(memory.store, 4, "right after all")
    p.enable_tips(memory.store, [5], enabled=False)
    p.delete_tips(memory.store, [6])
    assert back(memory, tmp_path) == ["late"]
    assert texts(memory) == ["one", "two", "three", "right after all", "wrong"]
    memory.add(own("wrong"))  # written again by the run that goes on
    assert "wrong" not in {tip.text for tip in memory.search("cellar", "q", 9)}, "off stays off"


def test_a_retired_tip_that_the_owner_turns_off_stays_off(memory: TipMemory) -> None:
    memory.add(own(*"abcde"))
    p.add_tip(memory.store, "cellar", "f", config=ANY)
    ((retired, mark),) = memory.store.load_retirements().items()
    assert (retired, bool(mark.on)) == (1, True), "its mark has the time"
    p.enable_tips(memory.store, [1], enabled=False)
    assert not memory.store.load_retirements()
    memory.add(own("one"))
    assert "one" not in {tip.text for tip in memory.search("cellar", "q", 9)}


def test_a_lost_file_comes_back_from_the_checkpoint_before_it_is_taken_for_a_new_one(tmp_path: Path) -> None:
    files = tmp_path / "snapshot.db", tmp_path / "start.db", tmp_path / "late.jsonl", own("of the start")
    with open_memory(tmp_path / "memory.db", ANY) as lost:
        lost.add(own("one"))
        lost.snapshot(tmp_path / "snapshot.db")
    for file in tmp_path.glob("memory.db*"):
        file.unlink()
    with open_memory(tmp_path / "memory.db", ANY) as memory:
        assert reconcile(memory, *files) is False
        assert texts(memory) == ["one"]
    with open_memory(tmp_path / "another.db", ANY) as another:
        another.add(own("of another file"))
        assert reconcile(another, *files) is True
        assert texts(another) == ["of another file", "of the start"]


def test_a_run_that_goes_back_has_the_marks_of_then(memory: TipMemory, tmp_path: Path) -> None:
    memory.add(own(*"abcdef"))
    (mark,) = memory.store.load_retirements().values()
    assert (mark.rule, mark.write, mark.by) == ("oldest", 10, "memory.capacity = 8"), "after nine writes of tips"
    assert memory.stats() == memory.stats() | {"tips": 8, "enabled": 8, "retired": 1}
    p.enable_tips(memory.store, [1])
    memory.add(own("late"))
    assert back(memory, tmp_path) == [*"abcdef", "late"]
    assert texts(memory) == ["one", "two", "three"]
    assert not memory.store.load_retirements()


def test_a_snapshot_of_an_earlier_version(memory: TipMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "snapshot.db").unlink()
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
    with TipStore(tmp_path / "snapshot.db", memory.store.identity) as old, old.transaction():
        for tip, vector in zip(tips := memory.store.load_tips(), memory.embed([tip.key for tip in tips]), strict=True):
            old.insert(tip, vector, tip.id)
        old.write("UPDATE meta SET value = ? WHERE name = 'lineage'", (memory.store.lineage,))
    monkeypatch.undo()
    lineage = memory.store.lineage
    p.add_tip(memory.store, "cellar", "mine")
    memory.add(own("late"))
    assert reconcile(memory, tmp_path / "snapshot.db", tmp_path / "start.db", tmp_path / "late.jsonl") is False
    assert texts(memory) == ["one", "two", "three", "mine"]
    assert memory.store.lineage == lineage

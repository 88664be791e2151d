"""The file: its tables, migrations, faults, snapshots."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from trailnotes.config.schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import open_memory, schema
from trailnotes.memory.exchange import open_store
from trailnotes.memory.schema import EmbedderIdentity
from trailnotes.memory.store import TipStore
from trailnotes.memory.tip_stats import ReaderStats
from trailnotes.memory.tipfile import read_tips
from trailnotes.memory.tips import TipMemory
from trailnotes.types import Tip

ANY = MemoryConfig(threshold=-1)
HASHING = EmbedderIdentity("hashing", 256)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
def memory(path: Path) -> Iterator[TipMemory]:
    with open_memory(path, ANY) as memory:
        yield memory


def tips(count: int, namespace: str = "task") -> list[Tip]:
    return [Tip(namespace, f"tip {number}", f"key {number}", float(number)) for number in range(count)]


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS)))
def test_files_of_all_versions_open(path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tips are enabled, and nobody has read, retired or registered anything."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        with TipStore(path, HASHING) as store, store.transaction():
            for tip in tips(2):
                store.insert(tip, np.ones(256, np.float32))
    assert [tip.text for tip in read_tips(path)] == ["tip 0", "tip 1"]
    with closing(open_store(path)) as store:
        assert [tip.text for tip in store.load_tips()] == ["tip 0", "tip 1"]
        assert store.size("task") == store.stats()["enabled"] == 2
        assert set(store.load_reader_stats().values()) == {ReaderStats(0, 0.0, 0, 0.0, 0)}
        assert not store.load_retirements()
        assert store.tasks.get_info("task") is None
        assert store.query("PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
        assert store.query("PRAGMA journal_mode") == [("wal",)]


def test_a_failed_migration_leaves_the_file_as_it_was(memory: TipMemory, path: Path, monkeypatch) -> None:
    memory.add(tips(2))
    memory.close()
    broken = ("ALTER TABLE tips ADD COLUMN mood TEXT", "this is no SQL")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
        with pytest.raises(MemoryStoreError, match=r"memory\.db"):
            open_store(path)
    with closing(open_store(path)) as store:
        assert len(store.load_tips()) == 2
        assert ("mood",) not in store.query("SELECT name FROM pragma_table_info('tips')")


def test_damage_is_named_with_the_way_out(memory: TipMemory, path: Path) -> None:
    memory.add(tips(300))
    memory.close()
    whole = path.read_bytes()
    assert len(whole) > 40 * 4096
    damaged = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "cut in a page": whole[:-1000],
        "a few bytes": whole[:50],
        "text": b"these are my notes\n" * 1000,
        "a page of noise": whole[: 23 * 4096] + bytes(range(256)) * 16 + whole[24 * 4096 :],
    }
    for name, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(MemoryStoreError, match=r"memory\.db.*restore the memory\.db of the last checkpoint"):
            open_memory(path, ANY)
        assert path.read_bytes() == content, f"{name}: the damaged file was touched"
    path.write_bytes(whole)
    with open_memory(path, ANY) as mended:
        assert mended.stats()["tips"] == 300


def test_a_missing_folder_and_a_closed_memory_name_their_own_fix(memory: TipMemory, path: Path) -> None:
    with pytest.raises(MemoryStoreError, match="make it, or name another"):
        open_memory(path.parent / "gone" / "tips.db")
    memory.close()
    with pytest.raises(MemoryStoreError, match="open it again"):
        memory.search("a", "b", 1)


def test_sessions_leave_cached_tips_alone(memory: TipMemory) -> None:
    memory.add(tips(3))
    page = memory.store.load_page("task", ["score"])
    memory.session("task", "q", show_tips=False).report(1.0)
    session = memory.session("task", "q")
    assert memory.store.load_page("task", ["score"]) is page
    session.report(1.0)  # this one has read tips, whose columns change
    assert memory.store.load_page("task", ["score"]).columns["shown"].sum() == len(session.tips) > 0


def test_a_full_disk_keeps_what_was_written(memory: TipMemory) -> None:
    memory.add(tips(3))
    pages = memory.store.query("PRAGMA page_count")[0][0]
    memory.store.query(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(MemoryStoreError, match="everything written before is kept"):
        memory.add(tips(500, "other"))
    assert memory.stats()["tips"] == 3
    assert len(memory.search("task", "q", 10)) == 3
    memory.store.query(f"PRAGMA max_page_count = {pages + 1000}")
    assert memory.add(tips(500, "other")) == 500


def test_bad_snapshots_change_nothing(memory: TipMemory, path: Path, tmp_path: Path) -> None:
    memory.add(tips(300))
    memory.snapshot(tmp_path / "cut.db")
    (tmp_path / "cut.db").write_bytes((tmp_path / "cut.db").read_bytes()[:-5000])
    TipStore(tmp_path / "other.db", EmbedderIdentity("other", 8)).close()
    memory.snapshot(tmp_path / "newer.db")
    with closing(sqlite3.connect(tmp_path / "newer.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    memory.add(tips(1, "after the snapshots"))
    cases = {"cut": "damaged", "other": r"vectors of other \(8", "newer": "upgrade", "missing": "there is no memory"}
    for name, message in cases.items():
        with pytest.raises(MemoryStoreError, match=message):
            memory.restore(tmp_path / f"{name}.db")
        assert memory.stats()["tips"] == 301
    with pytest.raises(MemoryStoreError, match="over the file itself"):
        memory.snapshot(path)
    with pytest.raises(MemoryStoreError, match="nowhere"):
        memory.snapshot(tmp_path / "nowhere" / "memory.db")

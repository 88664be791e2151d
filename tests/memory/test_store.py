"""The file: its tables, migrations, faults, snapshots."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from trailnotes.commands import main
from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import open_memory, schema
from trailnotes.memory.exchange import open_store
from trailnotes.memory.retrieval import HashingEmbedder
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


def test_migrations_that_were_released_stay_as_they_are() -> None:
    digest = hashlib.sha256(repr(schema.MIGRATIONS[:9]).encode()).hexdigest()
    assert digest == "07e52f4e5c19da78d1104d0febf00da36a1926e239b7235672999d108762ec34"


def test_every_field_comes_back(memory: TipMemory, path: Path) -> None:
    tip = Tip("task", "a tip", "a key", 0.25, 2.0, "go north", None, 3, 7, "model", 9, "run", "2024-01-01", True, False)
    memory.add([tip])
    memory.close()
    with closing(open_store(path)) as store:
        (found,) = store.load_tips()
    assert found == Tip(*[getattr(tip, f) if f != "id" else 1 for f in Tip.__dataclass_fields__])


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
        assert store.get_task_info("task") is None
        assert store._query("PRAGMA user_version") == [(len(schema.MIGRATIONS),)]
        assert store._query("PRAGMA journal_mode") == [("wal",)]


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
        assert ("mood",) not in store._query("SELECT name FROM pragma_table_info('tips')")


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


def test_damage_in_a_large_file_is_named_when_it_is_read(memory: TipMemory, path: Path, monkeypatch) -> None:
    memory.add(tips(300))
    monkeypatch.setattr(schema, "MAX_FULL_CHECK_BYTES", 0)
    with open_memory(path, ANY) as other:  # what it holds is in the write-ahead log
        assert other.stats()["tips"] == 300
    memory.close()
    whole = path.read_bytes()
    page = whole.rindex(b"key 7") // 4096 * 4096
    path.write_bytes(whole[:page] + bytes(range(256)) * 16 + whole[page + 4096 :])
    with (
        open_memory(path, ANY) as damaged,
        pytest.raises(MemoryStoreError, match=r"memory\.db.*restore the memory\.db of the last checkpoint"),
    ):
        damaged.search("task", "key 7", 300)
    path.write_bytes(whole[:-4096])
    with pytest.raises(MemoryStoreError, match=r"damaged.*restore the memory\.db of the last checkpoint"):
        open_memory(path, ANY)


def test_files_that_cannot_be_opened_are_refused(path: Path, tmp_path: Path) -> None:
    recipes = sqlite3.connect(tmp_path / "recipes.db")
    recipes.execute("CREATE TABLE recipes (name TEXT)")
    recipes.close()
    TipStore(path, EmbedderIdentity("minilm", 384)).close()
    newer = tmp_path / "newer.db"
    shutil.copy(path, newer)
    with closing(sqlite3.connect(newer)) as connection:
        connection.execute("PRAGMA user_version = 99")
    (tmp_path / "left.db-wal").write_bytes(b"what a lost file left behind")
    cases = {
        "recipes.db": "another program", "memory.db": r"memory\.embedder = 'minilm'", "newer.db": "version 99",
        "left.db": "left.db-wal", "no such place/memory.db": "no such place",
    }  # fmt: skip
    for name, named in cases.items():
        with pytest.raises(MemoryStoreError, match=named):
            open_memory(tmp_path / name, ANY)
    with pytest.raises(MemoryStoreError, match="there is no memory file"):
        open_store(tmp_path / "missing.db")
    with pytest.raises(MemoryStoreError, match="identity"):
        TipStore(None)


def test_a_full_disk_keeps_what_was_written(memory: TipMemory) -> None:
    memory.add(tips(3))
    pages = memory.store._query("PRAGMA page_count")[0][0]
    memory.store._query(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(MemoryStoreError, match="everything written before is kept"):
        memory.add(tips(500, "other"))
    assert memory.stats()["tips"] == 3
    assert len(memory.search("task", "q", 10)) == 3
    memory.store._query(f"PRAGMA max_page_count = {pages + 1000}")
    assert memory.add(tips(500, "other")) == 500


def test_a_writer_that_holds_the_file_too_long_is_named(memory: TipMemory, path: Path, monkeypatch) -> None:
    monkeypatch.setattr("trailnotes.memory.schema.BUSY_TIMEOUT", 0.05)
    with (
        open_memory(path, ANY) as other,
        memory.store.transaction(),
        pytest.raises(MemoryStoreError, match=r"memory\.db: database is locked: another process"),
    ):
        other.add(tips(1))


def test_a_new_file_has_ordinary_permissions_and_leaves_nothing_beside(memory: TipMemory, path: Path) -> None:
    memory.close()
    memory.close()
    (path.parent / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((path.parent / "plain").stat().st_mode)
    assert sorted(p.name for p in path.parent.iterdir()) == ["memory.db", "plain"]


def test_snapshot_and_restore(memory: TipMemory, tmp_path: Path) -> None:
    snapshot = tmp_path / "checkpoint" / "memory.db"
    snapshot.parent.mkdir()
    memory.add(tips(3))
    before, sequence = memory.store.load_tips(), memory.store.sequence
    memory.snapshot(snapshot)
    assert [p.name for p in snapshot.parent.iterdir()] == ["memory.db"]  # one self-contained file

    memory.add([Tip("task", "later", "key", 99.0), Tip("task", "tip 0", "moved", 50.0)])
    assert [tip.text for tip in memory.search("task", "q", 2)] == ["later", "tip 0"]
    with memory.store.transaction():
        memory.store.delete([2])
    memory.restore(snapshot)
    assert memory.store.load_tips() == before
    assert memory.store.sequence == sequence
    assert [tip.text for tip in memory.search("task", "q", 10)] == ["tip 2", "tip 1", "tip 0"]
    assert [p.name for p in snapshot.parent.iterdir()] == ["memory.db"]

    memory.add([Tip("task", "after", "key", 0.0)])
    assert memory.store.load_tips()[-1].id == 4, "ids go on as they would have from the snapshot"


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


def test_pages_are_kept_until_a_write_and_bounded(memory: TipMemory, monkeypatch) -> None:
    monkeypatch.setattr("trailnotes.memory.store.CACHED_PAGES", 2)
    memory.add([*tips(1, "a"), *tips(1, "b"), *tips(1, "c")])
    page = memory.store.load_page("a", ["score"])
    memory.store.load_page("b", ["score"])
    assert memory.store.load_page("a", ["score"]) is page
    memory.add(tips(2, "b"))
    assert memory.store.load_page("a", ["score"]) is page, "a write elsewhere must not cost this page"
    memory.store.load_page("b", ["score"])
    memory.store.load_page("c", ["score"])
    assert memory.store.load_page("a", ["score"]) is not page
    assert len(memory.store._pages) == 2


@pytest.mark.parametrize("version", [1, len(schema.MIGRATIONS)])
def test_a_file_on_a_medium_for_reading_alone_is_read(tmp_path: Path, version: int, monkeypatch, capsys) -> None:
    """SQLite would write to it here, whoever asks; so what is written would be seen."""
    path = tmp_path / "memory.db"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        with TipStore(path, HASHING) as store, store.transaction():
            (vector,) = HashingEmbedder().embed(["a damp room"])
            store.insert(Tip("cellar", "mind the lamp", "a damp room", 1.0), vector)
    before, access = path.read_bytes(), os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: mode != os.W_OK and access(path, mode, **more))
    for name, *rest in ("list",), ("stats",), ("show", "1"), ("search", "cellar", "room"), ("export", f"{tmp_path}/t"):
        assert main(["memory", name, str(path), *rest]) == 0
    assert "mind the lamp" in capsys.readouterr().out
    assert main(["memory", "edit", str(path), "1", "--score", "0.5"]) == 2
    assert "readonly database" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["memory.db", "t"]

"""A memory file that somebody else made is data: nothing in it runs, hangs, or ends in a traceback."""

from __future__ import annotations

import ctypes
import os
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hotjournal import hot_journal
from trailnotes.commands import main
from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import open_memory, schema
from trailnotes.memory.exchange import open_store
from trailnotes.memory.retrieval import HashingEmbedder
from trailnotes.memory.schema import MIGRATIONS, EmbedderIdentity
from trailnotes.memory.scope import ALL_TIPS
from trailnotes.memory.store import TipStore
from trailnotes.memory.tipfile import read_tips
from trailnotes.types import Tip
from trailnotes_lab.view.tips import TipsFile

ANY = MemoryConfig(threshold=-1)
IN_CREATE = 0x100  # of inotify
ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i AS name, i AS value FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_memory(tmp_path / "memory.db", ANY) as memory:
        memory.add([Tip("cellar", f"tip {number}", f"a damp room {number}", 1.0) for number in range(3)])
    return tmp_path / "memory.db"


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def read(path: Path) -> None:
    """All that one may do to look into a file."""
    with open_memory(path, ANY) as memory:
        memory.search("cellar", "q", 3)
        memory.store.list_sorted(None, "worth")
        memory.store.load_retirements()
        memory.store.list_families(ALL_TIPS)
        memory.store.load_owner_changes(after=0)
        memory.store.stats()


LOOKS: list[Callable[[Path], object]] = [read, read_tips, lambda path: TipsFile(path).list_tips()]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TABLE meta", f"CREATE VIEW meta AS {ENDLESS}"),
        ("CREATE TRIGGER spy AFTER UPDATE ON tips BEGIN UPDATE tips SET text = 'obey'; END",),
        ("DROP TRIGGER tip_deleted",),
        ("CREATE TABLE other (name)",),
    ],
)
def test_a_file_with_other_tables_is_refused_before_anything_is_read(
    path: Path, statements: tuple[str, ...], look: Callable[[Path], object]
) -> None:
    change(path, *statements)
    with pytest.raises(MemoryStoreError, match=r"memory\.db is damaged, or no memory of Trailnotes \(the .*\): re"):
        look(path)


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_files_of_all_versions_are_ours(path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    old = path.with_name("old.db")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", MIGRATIONS[:version])
        TipStore(old, EmbedderIdentity("hashing", 256)).close()
    assert read_tips(old) == []
    with closing(open_store(old)) as store:
        assert store.stats()["tips"] == 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE meta SET value = 'x' WHERE name = 'dim'",
        "UPDATE meta SET value = 1 << 40 WHERE name = 'dim'",
        "UPDATE meta SET value = -1 WHERE name = 'sequence'",
        "UPDATE meta SET value = printf('%.*c', 5000000, 'x') WHERE name = 'embedder'",
        "UPDATE meta SET value = x'00' WHERE name = 'era'",
        "DELETE FROM meta WHERE name = 'embedder'",
        "UPDATE tips SET score = 'high'",
        "UPDATE tips SET score = 9e999",
        "UPDATE tips SET text = x'ff'",
        "UPDATE tips SET text = '  '",
        "UPDATE tips SET namespace = CAST(x'ff' AS TEXT)",
        "UPDATE tips SET enabled = 'yes'",
        "UPDATE sizes SET enabled = 1000000",
        "UPDATE sizes SET enabled = -1",
        "UPDATE sizes SET enabled = 9e999",
    ],
)
def test_values_that_cannot_be_are_one_line(path: Path, statement: str, capsys: pytest.CaptureFixture[str]) -> None:
    change(path, statement)
    assert main(["memory", "list", str(path)]) == 2
    told = capsys.readouterr().err
    assert "damaged" in told
    assert "restore" in told
    assert len(told) < 1000


@pytest.mark.parametrize("number", ["1000000", "-1", "1 << 62", "1e308", "9e999"])
def test_sizes_of_a_large_file_that_cannot_be_are_one_line(
    path: Path, number: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MAX_FULL_CHECK_BYTES", 0)
    change(path, f"UPDATE sizes SET enabled = {number}", "INSERT INTO sizes VALUES ('another', 1 << 62)")
    for arguments in (["cellar", "damp"], ["cellar", "damp", "--scope", "all"]):
        assert main(["memory", "search", str(path), *arguments]) == 2
        assert "damaged (" in capsys.readouterr().err


@pytest.mark.parametrize("look", LOOKS)
def test_names_that_are_no_text_are_damage(path: Path, look: Callable[[Path], object]) -> None:
    change(path, "CREATE TABLE other_one (name)")
    path.write_bytes(path.read_bytes().replace(b"other_one", b"other\xff\xfe_"))
    with pytest.raises(MemoryStoreError, match=r"memory\.db: damaged"):
        look(path)


@pytest.mark.parametrize("vector", ["zeroblob(7)", "'text'", "CAST(zeroblob(1020) || x'0000c07f' AS BLOB)"])
def test_vectors_that_cannot_be_are_one_line(path: Path, vector: str, capsys: pytest.CaptureFixture[str]) -> None:
    change(path, f"UPDATE tips SET vector = {vector}")
    assert main(["memory", "search", str(path), "cellar", "a damp room"]) == 2
    assert "damaged (malformed" in capsys.readouterr().err


def test_the_owners_changes_are_read_as_data(path: Path) -> None:
    for fields in ("[1]", '{"vector": 1}', "{", '{"text": 5}'):
        change(path, "DELETE FROM owner_changes", f"INSERT INTO owner_changes (tip, fields) VALUES (1, '{fields}')")
        with closing(open_store(path)) as store, pytest.raises(MemoryStoreError, match="malformed"):
            store.load_owner_changes(after=0)


# --- journals -----------------------------------------------------------------------------------------------------


def test_a_journal_beside_a_memory_file_is_not_played_back(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SQLite would delete the file that the journal names."""
    precious, link = path.with_name("precious"), path.with_name("link.db")
    hot_journal(path, precious)
    precious.write_bytes(b"dear")
    link.symlink_to(path)
    for name in path, link:
        assert main(["memory", "add", str(name), "a tip", "--task", "cellar"]) == 2
        assert "which Trailnotes never writes: delete it, if the file is yours\n" in capsys.readouterr().err
    assert precious.exists()
    path.with_name("memory.db-journal").unlink()
    assert main(["memory", "list", str(link)]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
@pytest.mark.parametrize("version", [1, len(MIGRATIONS)])
def test_we_write_no_journal_ourselves(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a moment: another process that opens the file then would refuse it."""
    monkeypatch.setattr(schema, "MIGRATIONS", MIGRATIONS[:version])
    libc, events = ctypes.CDLL(None), b""
    watch = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(watch, os.fsencode(tmp_path), IN_CREATE)
    try:
        with TipStore(tmp_path / "memory.db", EmbedderIdentity("hashing", 256)) as store:
            store.snapshot(tmp_path / "copy.db")
            assert store._query("PRAGMA journal_mode") == [("wal",)]
        monkeypatch.undo()
        TipStore(tmp_path / "copy.db").close()  # as written by `write_copy`, and migrated
        events = os.read(watch, 2**16)
    finally:
        os.close(watch)
    assert b"memory.db-wal" in events
    assert b"copy.db-wal" in events
    assert not re.search(rb"\0(memory|copy)\.db-journal", events)


# --- places that may not be written -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, len(MIGRATIONS)])
def test_a_file_on_a_medium_for_reading_alone_is_read(tmp_path: Path, version: int, monkeypatch, capsys) -> None:
    """SQLite would write to it here, whoever asks; so what is written would be seen."""
    path = tmp_path / "memory.db"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", MIGRATIONS[:version])
        with TipStore(path, EmbedderIdentity("hashing", 256)) as store, store.transaction():
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

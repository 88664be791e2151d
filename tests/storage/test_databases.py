"""SQLite files of somebody else: what is not ours is named, and no query is endless."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from trailnotes.storage import databases
from trailnotes.storage.databases import BoundedConnection, find_unexpected, parse_column_types, validate_types

TABLES = (
    "CREATE TABLE shelf (name TEXT NOT NULL, books INTEGER NOT NULL, note TEXT)",
    "CREATE INDEX by_name ON shelf (name)",
    "ALTER TABLE shelf ADD COLUMN weight REAL NOT NULL DEFAULT 0",
)


@pytest.fixture
def ours() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in TABLES:
            connection.execute(statement.replace(" (", "\n  ("))  # white space says nothing
        yield connection


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("CREATE VIEW endless AS SELECT 1", "the view 'endless' is not one of ours"),
        ("CREATE TRIGGER t AFTER INSERT ON shelf BEGIN DELETE FROM shelf; END", "the trigger 't' is not one of ours"),
        ("CREATE TABLE 'a\x1b[2J' (name)", r"the table 'a\\x1b\[2J' is not one of ours"),
        ("DROP INDEX by_name", "the index 'by_name' is missing"),
        ("ALTER TABLE shelf ADD COLUMN more DEFAULT (random())", "the table 'shelf' is made otherwise"),
    ],
)
def test_what_is_not_made_by_our_statements_is_named(ours: sqlite3.Connection, change: str, told: str) -> None:
    assert not find_unexpected(ours, TABLES)
    ours.execute(change)
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(find_unexpected(ours, TABLES))


def test_values_have_the_types_that_their_columns_declare(ours: sqlite3.Connection) -> None:
    types = parse_column_types(TABLES)
    validate_types(["name", "books", "note", "weight", "COUNT(*)"], [("a", 1, None, 1.5, b"any")], types)
    for name, value in {"name": b"a", "books": 1.5, "note": 1, "weight": None}.items():
        with pytest.raises(sqlite3.DataError, match=f"malformed value of {name}"):
            validate_types([name], [(value,)], types)


def test_a_query_that_would_not_end_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "STEPS_PER_CHECK", 1000)
    monkeypatch.setattr(databases, "MAX_CHECKS", 5)
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n {}) SELECT COUNT(*) FROM n"
    with closing(sqlite3.connect(":memory:", factory=BoundedConnection)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            connection.execute(endless.format(""))
        for _ in range(20):  # none is long, together they are
            assert connection.execute(endless.format("LIMIT 100")).fetchone() == (100,)
        with pytest.raises(sqlite3.DataError, match="too big"):
            connection.execute("SELECT zeroblob(100000000)").fetchone()


def test_what_analyze_leaves_is_sqlites_own() -> None:
    statements = ("CREATE TABLE pages (place INTEGER)", "CREATE INDEX places ON pages (place)")
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in (*statements, "INSERT INTO pages VALUES (1)", "ANALYZE"):
            connection.execute(statement)
        assert connection.execute("SELECT COUNT(*) FROM sqlite_stat1").fetchone() == (1,)
        assert find_unexpected(connection, statements) == ""

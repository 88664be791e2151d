"""The memory file: its tables, made, checked, migrated and copied. SQLite's errors leave here with the file's name.

A file may be somebody else's: it is read once its tables are known to be ours (`storage.databases`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from trailnotes.errors import MemoryStoreError
from trailnotes.memory.migrations import COUNT_SIZES, MIGRATIONS, NEW_ERA, WRONG_SIZES
from trailnotes.memory.remote import normalize_embedder_name
from trailnotes.storage.databases import (
    JOURNAL_MESSAGE,
    BoundedConnection,
    ColumnTypes,
    enable_wal,
    find_unexpected,
    parse_column_types,
    validate_types,
)
from trailnotes.storage.files import fsync_path, open_aside
from trailnotes.storage.parsing import parse_json

APPLICATION_ID = 0x54726C6E  # "Trln", in the header of every memory file
MIN_DATABASE_BYTES = 512  # bytes; SQLite takes anything shorter than a header for a new, empty file
MAX_FULL_CHECK_BYTES = 256 * 2**20  # bytes: every page of a larger file is not read each time it is opened
BUSY_TIMEOUT = 60.0  # seconds
# What a file says of itself -> its type, and how long or large it is at least and at most.
META_LIMITS: Mapping[str, tuple[type, int, int]] = {
    "embedder": (str, 1, 4096), "dim": (int, 1, 2**20), "sequence": (int, 0, 2**62), "lineage": (str, 0, 64),
    "era": (str, 0, 64),
}  # fmt: skip
REPAIR_HINT = "restore the memory.db of the last checkpoint, or move the file away to begin without tips"


class EmbedderIdentity(NamedTuple):
    """Whose vectors a file holds: an embedder's name and its dimension."""

    name: str
    dim: int


def open_database(path: Path | None, identity: EmbedderIdentity | None, busy_timeout: float) -> sqlite3.Connection:
    """A checked connection in autocommit mode; makes the file if it is missing and `identity` is given."""
    if path is None:
        if identity is None:
            raise MemoryStoreError("a memory without a file needs the identity of an embedder")
        connection = _connect(":memory:", busy_timeout)
        _initialize(connection, identity)
        return connection
    if not path.exists():
        _create(path, identity)
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return _open_read_only(path)
    connection = _connect(str(path), busy_timeout)
    with _close_on_error(connection), translate_errors(path):
        _check_database(connection, path)
        enable_wal(connection, busy_timeout)
        connection.execute("PRAGMA synchronous = FULL")
        migrate(connection)
    return connection


def _open_read_only(path: Path) -> sqlite3.Connection:
    """A checked connection to a file that may not be written; one of an earlier version is migrated in memory."""
    connection = _connect(_build_read_only_uri(path), BUSY_TIMEOUT)
    with _close_on_error(connection), translate_errors(path):
        _check_database(connection, path)
        if _read_version(connection) == len(MIGRATIONS):
            return connection
        with closing(connection):
            copy = _connect(":memory:", BUSY_TIMEOUT)
            connection.backup(copy)
        with _close_on_error(copy):
            migrate(copy)
            copy.execute("PRAGMA query_only = ON")  # a change would be lost
        return copy


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables up to date, in one transaction."""
    if _read_version(connection) >= len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _read_version(connection)  # again: another process may have migrated while we waited
        for statement in (line for migration in MIGRATIONS[version:] for line in migration):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {max(version, len(MIGRATIONS))}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """Undo the transaction under way. SQLite may have done so itself, as it does when the disk is full."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def replace_surrogates(text: str) -> str:
    """`text` with "?" for half surrogate pairs, which UTF-8 and so the file cannot hold."""
    return text.encode("utf-8", "replace").decode()


def read_identity(connection: sqlite3.Connection) -> EmbedderIdentity:
    """Read whose vectors the file holds: the model alone, since a file says nothing of where it is asked."""
    meta = dict(connection.execute("SELECT name, value FROM meta WHERE name IN ('embedder', 'dim')"))
    return EmbedderIdentity(normalize_embedder_name(str(meta["embedder"])), int(meta["dim"]))


def require_identity(held: EmbedderIdentity, wanted: EmbedderIdentity, path: Path) -> None:
    """Raise `MemoryStoreError` where the snapshot `path` holds vectors of another embedder than the memory."""
    if held != wanted:
        raise MemoryStoreError(
            f"{path} holds vectors of {held.name} ({held.dim} dimensions), the memory those of {wanted.name} "
            f"({wanted.dim}): set memory.embedder to the former"
        )


def read_sequence(connection: sqlite3.Connection) -> int:
    """Number of writes that the file has seen."""
    return int(connection.execute("SELECT value FROM meta WHERE name = 'sequence'").fetchone()[0])


def read_lineage(connection: sqlite3.Connection) -> str:
    """What a file and all copies of it have in common; "" where an earlier version wrote them."""
    return _read_meta(connection, "lineage")


def read_era(connection: sqlite3.Connection) -> str:
    """What changes when rows are exchanged for others: nobody's copy of rows of another era is any good."""
    return _read_meta(connection, "era")


def read_rows(connection: sqlite3.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    """The rows of a query; `sqlite3.DataError` where a column holds what it was not declared for."""
    cursor = connection.execute(sql, values)
    rows = cursor.fetchall()
    check_rows(cursor, rows)
    return rows


def check_rows(cursor: sqlite3.Cursor, rows: Sequence[Any]) -> None:
    """As `read_rows`, of rows that were fetched already."""
    if rows:
        validate_types([name for name, *_ in cursor.description], rows, _column_types())


def parse_fields(text: str) -> dict[str, Any]:
    """Read the fields of a tip that its owner has set; `sqlite3.DataError` where they are none."""
    try:
        fields = parse_json(text)
        if all(isinstance(value, tuple(_column_types()[name])) for name, value in fields.items()):
            return dict(fields)
    except (ValueError, KeyError, AttributeError):
        pass
    raise sqlite3.DataError("malformed fields of a change")


@cache
def _column_types() -> ColumnTypes:
    return parse_column_types(_schema_statements(len(MIGRATIONS)))


def _read_meta(connection: sqlite3.Connection, name: str) -> str:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return str(row[0]) if row else ""


def begin_era(connection: sqlite3.Connection) -> None:
    """Say that the rows are others now."""
    connection.execute(NEW_ERA)


def begin_session(connection: sqlite3.Connection) -> None:
    """Write down, within the first transaction of a process, where in the history of the file its writes begin.

    The name is as long for every number, so that names sort as the sessions began. A file that was put back from a
    backup goes on with another session than the one that it took the place of.
    """
    name = _session_name(read_sequence(connection), read_last_change(connection))
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, lower(hex(randomblob(8))))", (name,))


def read_session(connection: sqlite3.Connection, written: int, changed: int) -> str:
    """The random name of the session that was the last to begin before this write and change; "" if there is none."""
    sql = "SELECT value FROM meta WHERE name > 'session/' AND name < ? ORDER BY name DESC LIMIT 1"
    row = connection.execute(sql, (_session_name(written, changed),)).fetchone()
    return str(row[0]) if row else ""


def _session_name(written: int, changed: int) -> str:
    return f"session/{written:020}/{changed:020}"


def read_last_change(connection: sqlite3.Connection) -> int:
    """Number of the owner's last change; 0 if there is none."""
    if not _list_columns(connection, "owner_changes"):
        return 0  # an earlier version wrote the file
    return int(connection.execute("SELECT COALESCE(MAX(number), 0) FROM owner_changes").fetchone()[0])


def copy_rows(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Replace all rows of `target` by those of `source`, within the transaction under way; its lineage stays.

    `source` may be of an earlier version: what it has no table for is empty afterwards.
    """
    assert target.in_transaction, "old rows and new ones change places at once"
    lineage = read_lineage(target)
    names = [row[0] for row in target.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for name in sorted(names, key="sqlite_sequence".__eq__):  # the last ids given, which inserting moves
        target.execute(f"DELETE FROM {name}")  # noqa: S608 (names of our own tables)
        if columns := _list_columns(source, name):
            words, marks = ", ".join(columns), ", ".join("?" * len(columns))
            rows = source.execute(f"SELECT {words} FROM {name}")  # noqa: S608
            target.executemany(f"INSERT INTO {name} ({words}) VALUES ({marks})", rows)  # noqa: S608
    target.execute("INSERT OR REPLACE INTO meta VALUES ('lineage', ?)", (lineage,))
    target.execute("DELETE FROM sizes")
    target.execute(COUNT_SIZES)
    begin_era(target)


def write_identity(connection: sqlite3.Connection, identity: EmbedderIdentity) -> None:
    """Say whose vectors the file holds."""
    rows = [("embedder", identity.name), ("dim", identity.dim)]
    connection.executemany("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", rows)


def mark_once(connection: sqlite3.Connection, name: str) -> bool:
    """Write a mark within the transaction under way; False if it is there already."""
    assert connection.in_transaction, "a mark belongs to what is written with it"
    return bool(connection.execute("INSERT OR IGNORE INTO meta VALUES (?, 1)", (f"once/{name}",)).rowcount)


def write_copy(source: sqlite3.Connection, path: Path) -> None:
    """Copy a database through SQLite's backup API into one self-contained file, put in place atomically."""
    with open_aside(path) as aside:
        with closing(sqlite3.connect(aside)) as target:
            target.execute("PRAGMA journal_mode = MEMORY")  # a file of its own would outlive a kill
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
        fsync_path(aside)
        aside.replace(path)
        fsync_path(path.parent)


@contextmanager
def open_snapshot(path: Path, *, every_page: bool = True) -> Iterator[sqlite3.Connection]:
    """A checked, read-only connection to a snapshot, or to the memory file of a run, live or killed.

    Without `every_page` it is checked as a large file is, and so opens at once.
    """
    if not path.is_file():
        raise MemoryStoreError(f"there is no memory snapshot at {path}: name the memory.db of a checkpoint")
    with translate_errors(path), closing(_connect(_build_read_only_uri(path), 5.0)) as connection:
        _check_database(connection, path, MAX_FULL_CHECK_BYTES if every_page else 0)
        yield connection


def _build_read_only_uri(path: Path) -> str:
    """A file as SQLite is to open it for reading only."""
    in_use = path.with_name(f"{path.name}-wal").exists()
    mode = "mode=ro" if in_use else "immutable=1"  # immutable leaves no files beside those of a checkpoint
    return f"{path.resolve().as_uri()}?{mode}"


@contextmanager
def translate_errors(path: Path | None) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into one line that names the file and what to do."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError, UnicodeDecodeError) as error:  # the last of names in a stranger's file
        raise MemoryStoreError(f"{path or 'the memory'}: {_suggest_fix(str(error))}") from error


def _suggest_fix(error: str) -> str:
    if "locked" in error or "busy" in error:
        return f"{error}: another process holds the memory file; end it or wait"
    if "interrupted" in error:
        return f"a query takes longer than any of ours would, so that the file is damaged: {REPAIR_HINT}"
    if any(
        sign in error
        for sign in ("malformed", "not a database", "no such table", "too big", "overflow", "UTF-8", "utf-8")
    ):
        return f"damaged ({error}): {REPAIR_HINT}"
    if "disk I/O" in error:
        return f"{error}: a disk that is full or fails, or a quota: free some space; if there is enough, {REPAIR_HINT}"
    if any(sign in error for sign in ("full", "No space left", "quota", "File too large")):
        return f"{error}: free some space, or raise the quota; everything written before is kept"
    return error if error == JOURNAL_MESSAGE else f"{error}: check that the folder exists and may be written"


def _connect(database: str, busy_timeout: float) -> sqlite3.Connection:
    uri = database.startswith("file:")
    with translate_errors(Path(database)):
        return sqlite3.connect(
            database,
            timeout=busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            uri=uri,
            factory=BoundedConnection,
        )


def _initialize(connection: sqlite3.Connection, identity: EmbedderIdentity) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    migrate(connection)
    write_identity(connection, identity)


def _create(path: Path, identity: EmbedderIdentity | None) -> None:
    """Make the file complete aside, then link it: no other process ever sees it empty, and the first one wins."""
    if identity is None:
        raise MemoryStoreError(f"there is no memory file {path}: name a run directory or file that has one")
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and not path.exists():
        raise MemoryStoreError(f"{path} is missing but {log.name} is there: put the file back, or move both away")
    with translate_errors(path), open_aside(path) as aside:
        with closing(_connect(str(aside), 5.0)) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")  # a file of its own would outlive a kill
            _initialize(connection, identity)
        fsync_path(aside)
        try:
            os.link(aside, path)
        except FileExistsError:
            return
        fsync_path(path.parent)


def _check_database(connection: sqlite3.Connection, path: Path, largest: int | None = None) -> None:
    if path.stat().st_size < MIN_DATABASE_BYTES:
        raise MemoryStoreError(f"{path} is damaged (empty or cut short): {REPAIR_HINT}")
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise MemoryStoreError(f"{path} is a database of another program: name another file")
    if (version := _read_version(connection)) > len(MIGRATIONS):
        raise MemoryStoreError(
            f"{path} has version {version}, this Trailnotes knows up to {len(MIGRATIONS)}: it was written by a newer "
            "version: upgrade Trailnotes"
        )
    if foreign := find_unexpected(connection, _schema_statements(_read_version(connection))):
        raise MemoryStoreError(f"{path} is damaged, or no memory of Trailnotes ({foreign}): {REPAIR_HINT}")
    _check_meta(connection)
    if path.stat().st_size > (MAX_FULL_CHECK_BYTES if largest is None else largest):
        return  # SQLite has seen that its end is there; whatever reads it names other damage
    (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if answer != "ok":
        raise MemoryStoreError(f"{path} is damaged ({' '.join(answer.split())}): {REPAIR_HINT}")
    if _list_columns(connection, "sizes") and connection.execute(WRONG_SIZES).fetchone():
        raise sqlite3.DataError("malformed sizes")  # tips would be retired to make room for none


def _schema_statements(version: int) -> tuple[str, ...]:
    """What makes the tables of a version."""
    return tuple(statement for migration in MIGRATIONS[:version] for statement in migration)


def _check_meta(connection: sqlite3.Connection) -> None:
    """Raise `sqlite3.DataError` where what a file says of itself cannot be."""
    sql = f"SELECT name, value FROM meta WHERE name IN ({', '.join('?' * len(META_LIMITS))})"  # noqa: S608 (constants)
    facts: dict[str, Any] = dict(connection.execute(sql, [*META_LIMITS]))
    for name, (kind, least, most) in META_LIMITS.items():
        value: Any = facts.get(name, None if least else kind())
        size: Any = len(value) if isinstance(value, str) else value
        if type(value) is not kind or not least <= size <= most:
            raise sqlite3.DataError(f"malformed {name}")


def _list_columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """The names of a table's columns; none if there is no such table."""
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _read_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _close_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise

"""The memory file: its tables, made, checked, migrated and copied; and one that is open.

An open file is one connection behind one lock, with whole transactions and whole copies. SQLite's errors leave here
with the file's name.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from trailnotes.errors import MemoryStoreError
from trailnotes.memory.migrations import COUNT_SIZES, MIGRATIONS, NEW_ERA
from trailnotes.memory.remote import identity_of
from trailnotes.types import StrPath

APPLICATION_ID = 0x54726C6E  # "Trln", in the header of every memory file
SMALLEST_DATABASE = 512  # bytes; SQLite takes anything shorter than a header for a new, empty file
LARGEST_CHECKED = 256 * 2**20  # bytes: every page of a larger file is not read each time it is opened
BUSY_TIMEOUT = 60.0  # seconds
REPAIR = "restore the memory.db of the last checkpoint, or move the file away to begin without tips"


class Identity(NamedTuple):
    """Whose vectors a file holds: an embedder's name and its dimension."""

    name: str
    dim: int


def open_database(path: Path | None, identity: Identity | None, busy_timeout: float) -> sqlite3.Connection:
    """A checked connection in autocommit mode; makes the file if it is missing and `identity` is given."""
    if path is None:
        if identity is None:
            raise MemoryStoreError("a memory without a file needs the identity of an embedder")
        connection = _connect(":memory:", busy_timeout)
        _fill(connection, identity)
        return connection
    if not path.exists():
        _create(path, identity)
    connection = _connect(str(path), busy_timeout)
    try:
        with named_errors(path):
            _check(connection, path)
            _use_write_ahead_log(connection, busy_timeout)
            connection.execute("PRAGMA synchronous = FULL")
            migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables up to date, in one transaction."""
    if _version(connection) >= len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)  # again: another process may have migrated while we waited
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


def encodable(text: str) -> str:
    """`text` with "?" for half surrogate pairs, which UTF-8 and so the file cannot hold."""
    return text.encode("utf-8", "replace").decode()


def read_identity(connection: sqlite3.Connection) -> Identity:
    """Read whose vectors the file holds: the model alone, since a file says nothing of where it is asked."""
    meta = dict(connection.execute("SELECT name, value FROM meta WHERE name IN ('embedder', 'dim')"))
    return Identity(identity_of(str(meta["embedder"])), int(meta["dim"]))


def read_sequence(connection: sqlite3.Connection) -> int:
    """Number of writes that the file has seen."""
    return int(connection.execute("SELECT value FROM meta WHERE name = 'sequence'").fetchone()[0])


def read_lineage(connection: sqlite3.Connection) -> str:
    """What a file and all copies of it have in common; "" where an earlier version wrote them."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'lineage'").fetchone()
    return str(row[0]) if row else ""


def read_era(connection: sqlite3.Connection) -> str:
    """What changes when rows are exchanged for others: nobody's copy of rows of another era is any good."""
    return str(connection.execute("SELECT value FROM meta WHERE name = 'era'").fetchone()[0])


def begin_era(connection: sqlite3.Connection) -> None:
    """Say that the rows are others now."""
    connection.execute(NEW_ERA)


def read_last_change(connection: sqlite3.Connection) -> int:
    """Number of the owner's last change; 0 if there is none."""
    if not _columns(connection, "owner_changes"):
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
        if columns := _columns(source, name):
            words, marks = ", ".join(columns), ", ".join("?" * len(columns))
            rows = source.execute(f"SELECT {words} FROM {name}")  # noqa: S608
            target.executemany(f"INSERT INTO {name} ({words}) VALUES ({marks})", rows)  # noqa: S608
    target.execute("INSERT OR REPLACE INTO meta VALUES ('lineage', ?)", (lineage,))
    target.execute("DELETE FROM sizes")
    target.execute(COUNT_SIZES)
    begin_era(target)


def write_identity(connection: sqlite3.Connection, identity: Identity) -> None:
    """Say whose vectors the file holds."""
    rows = [("embedder", identity.name), ("dim", identity.dim)]
    connection.executemany("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", rows)


def mark_once(connection: sqlite3.Connection, name: str) -> bool:
    """Write a mark within the transaction under way; False if it is there already."""
    assert connection.in_transaction, "a mark belongs to what is written with it"
    return bool(connection.execute("INSERT OR IGNORE INTO meta VALUES (?, 1)", (f"once/{name}",)).rowcount)


def write_copy(source: sqlite3.Connection, path: Path) -> None:
    """Copy a database through SQLite's backup API into one self-contained file, put in place atomically."""
    with _aside(path) as aside:
        with closing(sqlite3.connect(aside)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
        _sync(aside)
        aside.replace(path)
        _sync(path.parent)


@contextmanager
def opened_snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """A checked, read-only connection to a snapshot, or to the memory file of a run, live or killed."""
    if not path.is_file():
        raise MemoryStoreError(f"there is no memory snapshot at {path}: name the memory.db of a checkpoint")
    in_use = path.with_name(f"{path.name}-wal").exists()
    mode = "mode=ro" if in_use else "immutable=1"  # immutable leaves no files beside those of a checkpoint
    with named_errors(path), closing(_connect(f"{path.resolve().as_uri()}?{mode}", 5.0)) as connection:
        _check(connection, path)
        yield connection


@contextmanager
def named_errors(path: Path | None) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into one line that names the file and what to do."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError) as error:
        raise MemoryStoreError(f"{path or 'the memory'}: {_advice(str(error))}") from error


def _advice(error: str) -> str:
    if "locked" in error or "busy" in error:
        return f"{error}: another process holds the memory file; end it or wait"
    if "malformed" in error or "not a database" in error or "no such table" in error:
        return f"damaged ({error}): {REPAIR}"
    if "disk I/O" in error:
        return f"{error}: a disk that is full or fails, or a quota: free some space; if there is enough, {REPAIR}"
    if any(sign in error for sign in ("full", "No space left", "quota", "File too large")):
        return f"{error}: free some space, or raise the quota; everything written before is kept"
    return f"{error}: check that the folder exists and may be written"


def _connect(database: str, busy_timeout: float) -> sqlite3.Connection:
    uri = database.startswith("file:")
    with named_errors(Path(database)):
        return sqlite3.connect(database, timeout=busy_timeout, isolation_level=None, check_same_thread=False, uri=uri)


def _fill(connection: sqlite3.Connection, identity: Identity) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    migrate(connection)
    write_identity(connection, identity)


def _create(path: Path, identity: Identity | None) -> None:
    """Make the file complete aside, then link it: no other process ever sees it empty, and the first one wins."""
    if identity is None:
        raise MemoryStoreError(f"there is no memory file {path}: name a run directory or file that has one")
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and not path.exists():
        raise MemoryStoreError(f"{path} is missing but {log.name} is there: put the file back, or move both away")
    with named_errors(path), _aside(path) as aside:
        with closing(_connect(str(aside), 5.0)) as connection:
            _fill(connection, identity)
        _sync(aside)
        try:
            os.link(aside, path)
        except FileExistsError:
            return
        _sync(path.parent)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if path.stat().st_size < SMALLEST_DATABASE:
        raise MemoryStoreError(f"{path} is damaged (empty or cut short): {REPAIR}")
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise MemoryStoreError(f"{path} is a database of another program: name another file")
    if (version := _version(connection)) > len(MIGRATIONS):
        raise MemoryStoreError(
            f"{path} has version {version}, this Trailnotes knows up to {len(MIGRATIONS)}: upgrade Trailnotes"
        )
    if path.stat().st_size > LARGEST_CHECKED:
        return  # SQLite has seen that its end is there; whatever reads it names other damage
    (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if answer != "ok":
        raise MemoryStoreError(f"{path} is damaged ({' '.join(answer.split())}): {REPAIR}")


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """The names of a table's columns; none if there is no such table."""
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _use_write_ahead_log(connection: sqlite3.Connection, busy_timeout: float) -> None:
    """Switch the file to WAL; SQLite does not wait here for another process that is doing the same."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    aside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Closes:
    """``with`` closes it at the end."""

    def close(self) -> None:
        """Close it. Twice is fine."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OpenFile(Closes):
    """What all tables of a memory file have in common.

    Args:
        path: the file; None keeps everything in memory. A missing file is created if `identity` is given.
        identity: the embedder of a new file; ignored if the file exists.

    Raises:
        MemoryStoreError: the file is missing, damaged, not ours, or of a newer version.
    """

    def __init__(self, path: StrPath | None, identity: Identity | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._lock = threading.RLock()
        self._touched: set[str] = set()  # namespaces whose rows the transaction under way has changed
        self._connection = open_database(self.path, identity, BUSY_TIMEOUT)

    def close(self) -> None:
        """Close the file. Twice is fine."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All writes within are one, or none. Other processes wait; readers see the state before."""
        with self._lock, named_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                roll_back(self._connection)
                self._undone()
                raise
            finally:
                self._ended()

    def snapshot(self, path: StrPath) -> None:
        """Write a consistent copy to `path`, atomically, while others may read and write."""
        path = Path(path)
        if self.path is not None and path.resolve() == self.path.resolve():
            raise MemoryStoreError(f"a snapshot of {path} cannot be written over the file itself: name another path")
        with self._lock, named_errors(path):
            write_copy(self._connection, path)

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, named_errors(self.path):
            return self._connection.execute(sql, values).fetchall()

    def _next_number(self) -> int:
        """The number that the next write will have."""
        return read_sequence(self._connection) + 1

    def _next_age(self) -> int:
        """Number the write that is under way."""
        assert self._connection.in_transaction, "writes belong into `with store.transaction()`"
        sql = "UPDATE meta SET value = value + 1 WHERE name = 'sequence' RETURNING value"
        return int(self._rows(sql)[0][0])

    def _undone(self) -> None:
        """A transaction was rolled back."""

    def _ended(self) -> None:
        """A transaction is over, either way."""

"""The memory file: its tables are made, checked, migrated and copied here, and its connection shared.

SQLite's errors leave this module with the name of the file.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from trailnotes.config.model_schema import normalize_embedder_name
from trailnotes.errors import MemoryStoreError
from trailnotes.storage.files import fsync_path, open_aside
from trailnotes.types import StrPath

APPLICATION_ID = 0x54726C6E  # "Trln", in the header of every memory file
MIN_DATABASE_BYTES = 512  # bytes; SQLite takes anything shorter than a header for a new, empty file
MAX_FULL_CHECK_BYTES = 256 * 2**20  # bytes: every page of a larger file is not read each time it is opened
BUSY_TIMEOUT = 60.0  # seconds
# Migration k takes a file from version k to k + 1.
MIGRATIONS: tuple[tuple[str, ...], ...] = tuple(
    tuple(re.sub("^--.*\n", "", part, flags=re.MULTILINE) for part in section.partition("\n")[2].strip().split("\n\n"))
    for section in Path(__file__).with_name("migrations.sql").read_text("utf-8").split("\n-- version ")[1:]
)
COUNT_SIZES = "INSERT INTO sizes SELECT namespace, SUM(enabled) FROM tips GROUP BY namespace"
# The worth that a tip is retired by: a mean gain with four more readers who gained nothing. A reader's gain varies by
# about one half, the worth of tips by about a quarter, and a normal prior weighs (1/2)^2 / (1/4)^2 = 4 readers. One
# unlucky reader costs a tip a fifth at most, and an unread tip outlasts all that mislead. An index of the file holds
# this expression, so another prior is another migration.
WORTH_SQL = "gained / (4.0 + compared)"
NEW_ERA = "INSERT OR REPLACE INTO meta VALUES ('era', lower(hex(randomblob(8))))"
REPAIR_HINT = "restore the memory.db of the last checkpoint, or move the file away to begin without tips"


class EmbedderIdentity(NamedTuple):
    """The name and dimension of the embedder of a file's vectors."""

    name: str
    dim: int


def open_database(path: Path | None, identity: EmbedderIdentity | None) -> sqlite3.Connection:
    """Open a checked connection in autocommit mode; a file without write permission opens for reading only."""
    if path is None:
        if identity is None:
            raise MemoryStoreError("a memory without a file needs the identity of an embedder")
        connection = _connect(":memory:")
        _initialize(connection, identity)
        return connection
    if not path.exists():
        _create(path, identity)
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return _open_read_only(path)
    connection = _connect(str(path))
    try:
        with translate_errors(path):
            _check_database(connection, path)
            enable_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")
            migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the tables to the present version, in one transaction."""
    if read_version(connection) >= len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = read_version(connection)  # again: another process may have migrated while we waited
        for statement in (line for migration in MIGRATIONS[version:] for line in migration):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {max(version, len(MIGRATIONS))}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll back the transaction under way; on a full disk SQLite may already have."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def read_identity(connection: sqlite3.Connection) -> EmbedderIdentity:
    return EmbedderIdentity(
        normalize_embedder_name(read_meta(connection, "embedder")), int(read_meta(connection, "dim"))
    )


def require_identity(stored: EmbedderIdentity, wanted: EmbedderIdentity, path: Path | None, fix: str = "") -> None:
    """Require that `path` has vectors of the wanted embedder; raises `MemoryStoreError` with the setting and a fix."""
    if stored != wanted:
        raise MemoryStoreError(
            f"{path} holds vectors of {stored.name} ({stored.dim} dimensions), not of {wanted.name} ({wanted.dim}): "
            f"set memory.embedder = {stored.name!r}{fix}"
        )


def read_meta(connection: sqlite3.Connection, name: str) -> str:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return str(row[0]) if row else ""


def read_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def copy_rows(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Replace all rows of `target` by those of `source`, within the transaction under way; its lineage stays."""
    assert target.in_transaction, "old rows and new ones change places at once"
    lineage = read_meta(target, "lineage")
    names = [row[0] for row in target.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for name in sorted(names, key="sqlite_sequence".__eq__):  # the last ids given, which inserting moves
        target.execute(f"DELETE FROM {name}")  # noqa: S608 (names of our own tables)
        columns = [row[1] for row in source.execute(f"PRAGMA table_info({name})")]
        words, marks = ", ".join(columns), ", ".join("?" * len(columns))
        rows = source.execute(f"SELECT {words} FROM {name}")  # noqa: S608
        target.executemany(f"INSERT INTO {name} ({words}) VALUES ({marks})", rows)  # noqa: S608
    target.execute("INSERT OR REPLACE INTO meta VALUES ('lineage', ?)", (lineage,))
    target.execute("DELETE FROM sizes")
    target.execute(COUNT_SIZES)
    target.execute(NEW_ERA)


def write_identity(connection: sqlite3.Connection, identity: EmbedderIdentity) -> None:
    rows = [("embedder", identity.name), ("dim", identity.dim)]
    connection.executemany("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", rows)


@contextmanager
def open_snapshot(path: Path, *, every_page: bool = True) -> Iterator[sqlite3.Connection]:
    """Open a checked, read-only connection to a snapshot or memory file; without `every_page` it opens at once."""
    if not path.is_file():
        raise MemoryStoreError(f"there is no memory snapshot at {path}: name the memory.db of a checkpoint")
    with translate_errors(path), closing(_open_read_only(path, every_page=every_page)) as connection:
        yield connection


def _open_read_only(path: Path, *, every_page: bool = True) -> sqlite3.Connection:
    """Open a file for reading only; one of an earlier version is copied into memory, and migrated there."""
    in_use = path.with_name(f"{path.name}-wal").exists()
    mode = "mode=ro" if in_use else "immutable=1"  # immutable leaves no files beside those of a checkpoint
    connection = _connect(f"{path.resolve().as_uri()}?{mode}")
    try:
        with translate_errors(path):
            _check_database(connection, path, every_page=every_page)
            if read_version(connection) == len(MIGRATIONS):
                return connection
            copy = _connect(":memory:")
            connection.backup(copy)
            migrate(copy)
            copy.execute("PRAGMA query_only = ON")  # a change would be lost
    except BaseException:
        connection.close()
        raise
    connection.close()
    return copy


@contextmanager
def translate_errors(path: Path | None) -> Iterator[None]:
    """Translate errors of SQLite and of the file system into one line that names the file and the fix."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError) as error:
        fix = "check the folder's rights and the room on the disk; everything written before is kept"
        if "locked" in str(error) or "busy" in str(error):
            fix = "another process holds the memory file; end it or wait"
        elif "closed database" in str(error):
            fix = "it has been closed: open it again"
        elif any(sign in str(error) for sign in ("malformed", "not a database", "no such table")):
            fix = f"it is damaged: {REPAIR_HINT}"
        raise MemoryStoreError(f"{path or 'the memory'}: {error}: {fix}") from error


def _connect(database: str) -> sqlite3.Connection:
    with translate_errors(Path(database)):
        return sqlite3.connect(
            database, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False,
            uri=database.startswith("file:"),
        )  # fmt: skip


def enable_wal(connection: sqlite3.Connection) -> None:
    """Switch a file to a write-ahead log, waiting for other processes, which SQLite does not do here."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _initialize(connection: sqlite3.Connection, identity: EmbedderIdentity) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    migrate(connection)
    write_identity(connection, identity)


def _create(path: Path, identity: EmbedderIdentity | None) -> None:
    """Make the complete file under another name, then link it: none sees it empty, and the first process wins."""
    if identity is None:
        raise MemoryStoreError(f"there is no memory file {path}: name a run directory or file that has one")
    if not path.parent.is_dir():
        raise MemoryStoreError(f"there is no folder {path.parent} for {path.name}: make it, or name another")
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and not path.exists():
        raise MemoryStoreError(f"{path} is missing but {log.name} is there: put the file back, or move both away")
    with translate_errors(path), open_aside(path) as new:
        with closing(_connect(str(new))) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")  # a file of its own would outlive a kill
            _initialize(connection, identity)
        fsync_path(new)
        try:
            os.link(new, path)
        except FileExistsError:
            return
        fsync_path(path.parent)


def _check_database(connection: sqlite3.Connection, path: Path, *, every_page: bool = True) -> None:
    size = path.stat().st_size
    if size < MIN_DATABASE_BYTES:
        raise MemoryStoreError(f"{path} is damaged (empty or cut short): {REPAIR_HINT}")
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise MemoryStoreError(f"{path} is a database of another program: name another file")
    if (version := read_version(connection)) > len(MIGRATIONS):
        raise MemoryStoreError(f"{path} has version {version}, above {len(MIGRATIONS)}: upgrade Trailnotes")
    if every_page and size <= MAX_FULL_CHECK_BYTES:
        (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if answer != "ok":
            raise MemoryStoreError(f"{path} is damaged ({' '.join(answer.split())}): {REPAIR_HINT}")


class Closeable:
    """A resource that ``with`` closes at the end."""

    def close(self) -> None:
        """Close the resource. A second call is harmless."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryFile(Closeable):
    """An open memory file: one connection behind one lock, with transactions and snapshots.

    Without a `path` everything is in memory. A missing file is created if the `identity` of its embedder is given.
    """

    def __init__(self, path: StrPath | None, identity: EmbedderIdentity | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.lock = threading.RLock()
        self.connection = open_database(self.path, identity)

    def close(self) -> None:
        self.connection.close()

    @property
    def identity(self) -> EmbedderIdentity:
        with self.lock, translate_errors(self.path):
            return read_identity(self.connection)

    @property
    def sequence(self) -> int:
        """Return the number of writes so far, which is the age of the newest tip."""
        return int(self.query("SELECT value FROM meta WHERE name = 'sequence'")[0][0])

    @property
    def lineage(self) -> str:
        """Return the random name that this file shares with all its copies."""
        return str(self.query("SELECT value FROM meta WHERE name = 'lineage'")[0][0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all writes within one transaction. Other writers wait; readers see the state before."""
        with self.lock, translate_errors(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                roll_back(self.connection)
                self._on_rollback()
                raise

    def snapshot(self, path: StrPath) -> None:
        """Write a consistent copy to `path`, one self-contained file, atomically, while others may read and write."""
        path = Path(path)
        if self.path is not None and path.resolve() == self.path.resolve():
            raise MemoryStoreError(f"a snapshot of {path} cannot be written over the file itself: name another path")
        with self.lock, translate_errors(path), open_aside(path) as copy:
            with closing(sqlite3.connect(copy)) as target:
                target.execute("PRAGMA journal_mode = MEMORY")  # a file of its own would outlive a kill
                self.connection.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")
            fsync_path(copy)
            copy.replace(path)
            fsync_path(path.parent)

    def mark_first_time(self, name: str) -> bool:
        """Return whether `name` is new, and mark it within the transaction."""
        return bool(self.write("INSERT OR IGNORE INTO meta VALUES (?, 1)", (f"once/{name}",)).rowcount)

    def is_marked(self, name: str) -> bool:
        return bool(self.query("SELECT 1 FROM meta WHERE name = ?", (f"once/{name}",)))

    def write(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        assert self.connection.in_transaction, "writes belong into `with store.transaction()`"
        return self.connection.execute(sql, values)

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self.lock, translate_errors(self.path):
            return self.connection.execute(sql, values).fetchall()

    def _advance_sequence(self) -> int:
        sql = "UPDATE meta SET value = value + 1 WHERE name = 'sequence' RETURNING value"
        return int(self.write(sql).fetchone()[0])

    def _on_rollback(self) -> None: ...

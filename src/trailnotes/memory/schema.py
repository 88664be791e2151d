"""The memory file: its tables are made, checked, migrated and copied here, and its connection shared.

SQLite's errors leave this module with the name of the file. A file may come from a stranger: it is read only after its
tables are known to be Trailnotes' own (`storage.databases`).
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from trailnotes.config.model_schema import OPENAI_PREFIX
from trailnotes.errors import MemoryStoreError
from trailnotes.storage import databases
from trailnotes.storage.files import fsync_path, open_aside, parse_json
from trailnotes.types import StrPath

APPLICATION_ID = 0x54726C6E  # "Trln", in the header of every memory file
MIN_DATABASE_BYTES = 512  # bytes; SQLite takes anything shorter than a header for a new, empty file
MAX_FULL_CHECK_BYTES = 256 * 2**20  # bytes: every page of a larger file is not read each time it is opened
BUSY_TIMEOUT = 60.0  # seconds
# Each fact that a file states about itself: its type, and its least and greatest length or value.
META_LIMITS: Mapping[str, tuple[type, int, int]] = {
    "embedder": (str, 1, 4096), "dim": (int, 1, 2**20), "sequence": (int, 0, 2**62), "lineage": (str, 0, 64),
    "era": (str, 0, 64),
}  # fmt: skip
EMBEDDER_NAME: Final = re.compile(rf"{OPENAI_PREFIX}(?P<model>.+?)(@(?P<url>https?://.*))?", re.DOTALL)
# Migration k takes a file from version k to k + 1.
MIGRATIONS: tuple[tuple[str, ...], ...] = tuple(
    tuple(re.sub("^--.*\n", "", part, flags=re.MULTILINE) for part in section.partition("\n")[2].strip().split("\n\n"))
    for section in Path(__file__).with_name("migrations.sql").read_text("utf-8").split("\n-- version ")[1:]
)
WRONG_SIZES = """
    SELECT 1 FROM sizes LEFT JOIN (SELECT namespace, SUM(enabled) AS counted FROM tips GROUP BY namespace)
    USING (namespace) WHERE enabled IS NOT COALESCE(counted, 0) LIMIT 1
"""
COUNT_SIZES = "INSERT INTO sizes SELECT namespace, SUM(enabled) FROM tips GROUP BY namespace"
# The worth that a tip is retired by: a mean gain with four more readers who gained nothing. A reader's gain varies by
# about one half, the worth of tips by about a quarter, and a normal prior weighs (1/2)^2 / (1/4)^2 = 4 readers. One
# unlucky reader costs a tip a fifth at most, and an unread tip outlasts all that mislead. An index of the file holds
# this expression, so another prior is another migration.
WORTH_SQL = "gained / (4.0 + compared)"
SESSION_NAME = "session/{:020}/{:020}"  # write and change at its beginning; of one length, so that names sort by age
NEW_ERA = "INSERT OR REPLACE INTO meta VALUES ('era', lower(hex(randomblob(8))))"
REPAIR_HINT = "restore the memory.db of the last checkpoint, or move the file away to begin without tips"


def normalize_embedder_name(name: str) -> str:
    """Return the name by which memory files know the embedder `name`: openai:NAME@URL without its address."""
    named = EMBEDDER_NAME.fullmatch(name)
    return f"{OPENAI_PREFIX}{named['model']}" if named else name


class EmbedderIdentity(NamedTuple):
    """The name and dimension of the embedder of a file's vectors."""

    name: str
    dim: int


def open_database(path: Path | None, identity: EmbedderIdentity | None, busy_timeout: float) -> sqlite3.Connection:
    """Open a checked connection in autocommit mode; makes the file if it is missing and `identity` is given.

    A file without write permission opens for reading only; one of an earlier version is then migrated in memory.
    """
    if path is None:
        if identity is None:
            raise MemoryStoreError("a memory without a file needs the identity of an embedder")
        connection = _connect(":memory:", busy_timeout)
        _initialize(connection, identity)
        return connection
    if not path.exists():
        _create(path, identity)
    can_write = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    connection = _connect(str(path) if can_write else _build_read_only_uri(path), busy_timeout)
    with _close_on_error(connection), translate_errors(path):
        _check_database(connection, path)
        if can_write:
            databases.enable_wal(connection, busy_timeout)
            connection.execute("PRAGMA synchronous = FULL")
            migrate(connection)
        elif _read_version(connection) != len(MIGRATIONS):
            with closing(connection):
                copy = _connect(":memory:", busy_timeout)
                connection.backup(copy)
            with _close_on_error(copy):
                migrate(copy)
                copy.execute("PRAGMA query_only = ON")  # a change would be lost
            return copy
    return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the tables to the present version, in one transaction."""
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
    """Roll back the transaction under way; on a full disk SQLite may already have."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def replace_surrogates(text: str) -> str:
    """Replace half surrogate pairs by "?": neither UTF-8 nor the file can hold them."""
    return text.encode("utf-8", "replace").decode()


def read_identity(connection: sqlite3.Connection) -> EmbedderIdentity:
    """Read the identity of the file's embedder: the model alone, without the address of its server."""
    meta = dict(connection.execute("SELECT name, value FROM meta WHERE name IN ('embedder', 'dim')"))
    return EmbedderIdentity(normalize_embedder_name(str(meta["embedder"])), int(meta["dim"]))


def require_identity(held: EmbedderIdentity, wanted: EmbedderIdentity, path: Path | None, fix: str = "") -> None:
    """Require that `path` has vectors of the wanted embedder; raises `MemoryStoreError` with the setting and a fix."""
    if held != wanted:
        raise MemoryStoreError(
            f"{path} holds vectors of {held.name} ({held.dim} dimensions), not of {wanted.name} ({wanted.dim}): "
            f"set memory.embedder = {held.name!r}{fix}"
        )


def read_sequence(connection: sqlite3.Connection) -> int:
    """Read the number of writes to the file."""
    return int(connection.execute("SELECT value FROM meta WHERE name = 'sequence'").fetchone()[0])


def read_rows(connection: sqlite3.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    """Return the rows of a query; `sqlite3.DataError` where a column holds another type than declared."""
    cursor = connection.execute(sql, values)
    rows = cursor.fetchall()
    check_rows(cursor, rows)
    return rows


def check_rows(cursor: sqlite3.Cursor, rows: Sequence[Any]) -> None:
    """Check fetched rows as `read_rows` does."""
    if rows:
        databases.validate_types([name for name, *_ in cursor.description], rows, _column_types())


def parse_fields(text: str) -> dict[str, Any]:
    """Parse the fields of an owner change; `sqlite3.DataError` where they are malformed."""
    try:
        fields = parse_json(text)
        if all(isinstance(value, tuple(_column_types()[name])) for name, value in fields.items()):
            return dict(fields)
    except (ValueError, KeyError, AttributeError):
        pass
    raise sqlite3.DataError("malformed fields of a change")


@cache
def _column_types() -> databases.ColumnTypes:
    return databases.parse_column_types(tuple(chain(*MIGRATIONS)))


def read_meta(connection: sqlite3.Connection, name: str) -> str:
    """Return a fact that a file states about itself; "" where an earlier version wrote no such fact."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return str(row[0]) if row else ""


def begin_session(connection: sqlite3.Connection) -> None:
    """Record, within the first transaction of a process, the write and change at which its session begins.

    A file that was restored from a backup thus continues with another session than the file that it replaced.
    """
    name = SESSION_NAME.format(read_sequence(connection), read_last_change(connection))
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, lower(hex(randomblob(8))))", (name,))


def read_session(connection: sqlite3.Connection, written: int, changed: int) -> str:
    """Read the random name of the last session that began before this write and change; "" if there is none."""
    sql = "SELECT value FROM meta WHERE name > 'session/' AND name < ? ORDER BY name DESC LIMIT 1"
    row = connection.execute(sql, (SESSION_NAME.format(written, changed),)).fetchone()
    return str(row[0]) if row else ""


def read_last_change(connection: sqlite3.Connection) -> int:
    """Read the number of the owner's last change; 0 if there is none."""
    if not _list_columns(connection, "owner_changes"):
        return 0  # an earlier version wrote the file
    return int(connection.execute("SELECT COALESCE(MAX(number), 0) FROM owner_changes").fetchone()[0])


def copy_rows(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Replace all rows of `target` by those of `source`, within the transaction under way; its lineage stays.

    `source` may be of an earlier version: tables that it lacks are empty afterwards.
    """
    assert target.in_transaction, "old rows and new ones change places at once"
    lineage = read_meta(target, "lineage")
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
    target.execute(NEW_ERA)


def write_identity(connection: sqlite3.Connection, identity: EmbedderIdentity) -> None:
    """Write the identity of the file's embedder."""
    rows = [("embedder", identity.name), ("dim", identity.dim)]
    connection.executemany("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", rows)


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
    """Open a checked, read-only connection to a snapshot, or to the memory file of a run, live or killed.

    Without `every_page` it is checked as a large file is, and so opens at once.
    """
    if not path.is_file():
        raise MemoryStoreError(f"there is no memory snapshot at {path}: name the memory.db of a checkpoint")
    with translate_errors(path), closing(_connect(_build_read_only_uri(path), 5.0)) as connection:
        _check_database(connection, path, MAX_FULL_CHECK_BYTES if every_page else 0)
        yield connection


def _build_read_only_uri(path: Path) -> str:
    in_use = path.with_name(f"{path.name}-wal").exists()
    mode = "mode=ro" if in_use else "immutable=1"  # immutable leaves no files beside those of a checkpoint
    return f"{path.resolve().as_uri()}?{mode}"


@contextmanager
def translate_errors(path: Path | None) -> Iterator[None]:
    """Translate errors of SQLite and of the file system into one line that names the file and the fix."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError, UnicodeDecodeError) as error:  # the last: names in a file of unknown origin
        raise MemoryStoreError(f"{path or 'the memory'}: {_suggest_fix(str(error))}") from error


def _suggest_fix(error: str) -> str:
    damage = ("malformed", "not a database", "no such table", "too big", "overflow", "UTF-8", "utf-8")
    if "locked" in error or "busy" in error:
        return f"{error}: another process holds the memory file; end it or wait"
    if "interrupted" in error:
        return f"a query takes longer than any of Trailnotes would, so that the file is damaged: {REPAIR_HINT}"
    if any(sign in error for sign in damage):
        return f"damaged ({error}): {REPAIR_HINT}"
    if "disk I/O" in error:
        return f"{error}: a disk that is full or fails, or a quota: free some space; if there is enough, {REPAIR_HINT}"
    if any(sign in error for sign in ("full", "No space left", "quota", "File too large")):
        return f"{error}: free some space, or raise the quota; everything written before is kept"
    return error if error == databases.JOURNAL_MESSAGE else f"{error}: check that the folder exists and may be written"


def _connect(database: str, busy_timeout: float) -> sqlite3.Connection:
    with translate_errors(Path(database)):
        return sqlite3.connect(
            database, timeout=busy_timeout, isolation_level=None, check_same_thread=False,
            uri=database.startswith("file:"), factory=databases.BoundedConnection,
        )  # fmt: skip


def _initialize(connection: sqlite3.Connection, identity: EmbedderIdentity) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    migrate(connection)
    write_identity(connection, identity)


def _create(path: Path, identity: EmbedderIdentity | None) -> None:
    """Make the complete file aside, then link it: no other process sees it empty, and the first one wins."""
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
    if foreign := databases.find_unexpected(connection, tuple(chain(*MIGRATIONS[: _read_version(connection)]))):
        raise MemoryStoreError(f"{path} is damaged, or no memory of Trailnotes ({foreign}): {REPAIR_HINT}")
    _check_meta(connection)
    if path.stat().st_size > (MAX_FULL_CHECK_BYTES if largest is None else largest):
        return  # SQLite has seen that its end is there; whatever reads it names other damage
    (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if answer != "ok":
        raise MemoryStoreError(f"{path} is damaged ({' '.join(answer.split())}): {REPAIR_HINT}")
    if _list_columns(connection, "sizes") and connection.execute(WRONG_SIZES).fetchone():
        raise sqlite3.DataError("malformed sizes")  # tips would be retired to make room for none


def _check_meta(connection: sqlite3.Connection) -> None:
    sql = f"SELECT name, value FROM meta WHERE name IN ({', '.join('?' * len(META_LIMITS))})"  # noqa: S608 (constants)
    facts: dict[str, Any] = dict(connection.execute(sql, [*META_LIMITS]))
    for name, (kind, least, most) in META_LIMITS.items():
        value: Any = facts.get(name, None if least else kind())
        size: Any = len(value) if isinstance(value, str) else value
        if type(value) is not kind or not least <= size <= most:
            raise sqlite3.DataError(f"malformed {name}")


def _list_columns(connection: sqlite3.Connection, table: str) -> list[str]:
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


class Closeable:
    """A resource that ``with`` closes at the end."""

    def close(self) -> None:
        """Close the resource. Twice is fine."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryFile(Closeable):
    """An open memory file: one connection behind one lock, with transactions and snapshots.

    Without a `path` everything is in memory. A missing file is created if the `identity` of its embedder is given.

    Raises:
        MemoryStoreError: the file is missing, damaged, of another program, or of a newer version.
    """

    def __init__(self, path: StrPath | None, identity: EmbedderIdentity | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._lock = threading.RLock()
        self._in_session = False  # whether this has written to the file
        self._touched: set[str] = set()  # namespaces whose rows the transaction under way has changed
        self._connection = open_database(self.path, identity, BUSY_TIMEOUT)

    def close(self) -> None:
        """Close the file. Twice is fine."""
        self._connection.close()

    @property
    def identity(self) -> EmbedderIdentity:
        """Return the embedder of the file's vectors."""
        with self._lock, translate_errors(self.path):
            return read_identity(self._connection)

    @property
    def sequence(self) -> int:
        """Return the number of writes so far: the age of the tip that was written last."""
        with self._lock, translate_errors(self.path):
            return read_sequence(self._connection)

    @property
    def lineage(self) -> str:
        """Return the random name that this file shares with all its copies."""
        with self._lock, translate_errors(self.path):
            return read_meta(self._connection, "lineage")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all writes within one transaction. Other writers wait; readers see the state before."""
        with self._lock, translate_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if not self._in_session:
                    begin_session(self._connection)
                yield
                self._connection.execute("COMMIT")
                self._in_session = True
            except BaseException:
                roll_back(self._connection)
                self._on_rollback()
                raise
            finally:
                self._on_transaction_end()

    def snapshot(self, path: StrPath) -> None:
        """Write a consistent copy to `path`, atomically, while others may read and write."""
        path = Path(path)
        if self.path is not None and path.resolve() == self.path.resolve():
            raise MemoryStoreError(f"a snapshot of {path} cannot be written over the file itself: name another path")
        with self._lock, translate_errors(path):
            write_copy(self._connection, path)

    def mark_first_time(self, name: str) -> bool:
        """Return whether `name` is new, and mark it as part of the transaction."""
        return bool(self._write("INSERT OR IGNORE INTO meta VALUES (?, 1)", (f"once/{name}",)).rowcount)

    def _write(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        assert self._connection.in_transaction, "writes belong into `with store.transaction()`"
        return self._connection.execute(sql, values)

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, translate_errors(self.path):
            return read_rows(self._connection, sql, values)

    def _peek_sequence(self) -> int:
        return read_sequence(self._connection) + 1

    def _advance_sequence(self) -> int:
        sql = "UPDATE meta SET value = value + 1 WHERE name = 'sequence' RETURNING value"
        return int(self._write(sql).fetchone()[0])

    def _on_rollback(self) -> None:
        """React to a transaction that was rolled back."""

    def _on_transaction_end(self) -> None:
        """React to the end of a transaction, either way."""

"""SQLite files that somebody else may have made: they hold our tables and nothing else, and no query is endless.

A view may never end, a trigger runs with whatever is written, and a column takes values of any type. So a file is
compared with the statements that make ours before it is read, and its values with the types that these declare. A
rollback journal beside it is played back whatever it holds, and the file that it names as its super-journal deleted:
ours have a write-ahead log, and never such a journal, not even while they are made.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from operator import itemgetter
from types import NoneType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

STEPS_PER_CHECK: Final = 1_000_000  # steps of SQLite's machine between two looks at their number
MAX_CHECKS: Final = 2_000  # in a query: a change of a million tips takes a quarter of them
MAX_VALUE_BYTES: Final = 64 * 2**20  # bytes; the longest that we hand over are lists of ids
JOURNAL_MESSAGE: Final = (
    "a rollback journal lies beside it, which Trailnotes never writes: delete it, if the file is yours"
)
PYTHON_TYPES: Final[Mapping[str, set[type]]] = {"TEXT": {str}, "INTEGER": {int}, "REAL": {float, int}, "BLOB": {bytes}}

Statements = tuple[str, ...]  # that make the tables of a file
ColumnTypes = Mapping[str, set[type]]  # column -> what its values may be


class BoundedConnection(sqlite3.Connection):
    """A connection to a file that somebody else may have made; a query of it that takes too long is interrupted.

    Arguments are those of `sqlite3.connect`, which takes this class as its `factory`.

    Raises:
        sqlite3.DatabaseError: a rollback journal lies beside the file (`JOURNAL_MESSAGE`).
    """

    def __init__(self, database: str, *args: Any, **kwargs: Any) -> None:
        if os.path.lexists(find_journal(database)):
            raise sqlite3.DatabaseError(JOURNAL_MESSAGE)
        super().__init__(database, *args, **kwargs)
        looks = self._looks = [0]  # of the query under way
        super().execute("PRAGMA trusted_schema = OFF")
        super().execute("PRAGMA cell_size_check = ON")
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)

        def is_too_long() -> bool:  # a method would hold the connection, which nobody could collect then
            looks[0] += 1
            return looks[0] > MAX_CHECKS

        self.set_progress_handler(is_too_long, STEPS_PER_CHECK)

    def execute(self, *args: Any) -> sqlite3.Cursor:
        """Execute as usual; steps of earlier queries do not count."""
        self._looks[0] = 0
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        """Execute as usual, as `execute`."""
        self._looks[0] = 0
        return super().executemany(*args)


def find_journal(database: str) -> str:
    """The rollback journal that SQLite would look for, of a path or an address (``file:...``)."""
    path = unquote(urlsplit(database).path) if database.startswith("file:") else database
    return f"{os.path.realpath(path)}-journal"


def enable_wal(connection: sqlite3.Connection, busy_timeout: float) -> None:
    """Switch a file to WAL; SQLite does not wait here for another process that is doing the same."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                return
            connection.execute("PRAGMA journal_mode = MEMORY")  # or the switch itself would write a rollback journal
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def find_unexpected(connection: sqlite3.Connection, statements: Statements) -> str:
    """Say which table, index, view or trigger of a database is not as `statements` make it; "" if all are."""
    there, ours = _read_schema(connection), _build_expected_schema(statements)[0]
    for kind, name in sorted(there.keys() | ours.keys()):
        if there.get((kind, name)) != ours.get((kind, name)):
            why = "is made otherwise" if (kind, name) in there.keys() & ours.keys() else "is not one of ours"
            return f"the {kind[:20]} {name[:60]!a} {why if (kind, name) in there else 'is missing'}"
    return ""


def parse_column_types(statements: Statements) -> ColumnTypes:
    """The types of all columns that `statements` declare."""
    return _build_expected_schema(statements)[1]


def validate_types(names: Sequence[str], rows: Sequence[Sequence[Any]], types: ColumnTypes) -> None:
    """Raise `sqlite3.DataError` where a value of a known column has another type than was declared."""
    for place, name in enumerate(names):
        if (kinds := types.get(name)) and not kinds.issuperset(map(type, map(itemgetter(place), rows))):
            raise sqlite3.DataError(f"malformed value of {name}")


def _read_schema(connection: sqlite3.Connection) -> dict[tuple[str, str], tuple[str, str]]:
    """Kind and name of all that a database holds -> the table that it is of, and the statement that made it."""
    sql = r"SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\_stat_' ESCAPE '\'"
    rows = connection.execute(sql)  # what ANALYZE leaves is SQLite's own
    return {(str(kind), str(name)): (str(table), " ".join(str(sql).split())) for kind, name, table, sql in rows}


@cache
def _build_expected_schema(statements: Statements) -> tuple[dict[tuple[str, str], tuple[str, str]], ColumnTypes]:
    types: dict[str, set[type]] = {}
    with closing(sqlite3.connect(":memory:")) as empty:
        for statement in statements:
            empty.execute(statement)
        objects = _read_schema(empty)
        for kind, table in objects:
            columns = empty.execute(f"PRAGMA table_info({table})") if kind == "table" else ()
            for _, name, declared, is_set, _, is_key in columns:
                types.setdefault(name, set()).update(
                    PYTHON_TYPES.get(declared, {object}), *([] if is_set or is_key else [{NoneType}])
                )
    return objects, {name: kinds for name, kinds in types.items() if object not in kinds}

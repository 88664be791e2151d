"""SQLite files that somebody else may have made: they hold our tables and nothing else, and no query is endless.

A view may never end, a trigger runs with whatever is written, and a column takes values of any type. So a file is
compared with the statements that make ours before it is read, and its values with the types that these declare.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache
from operator import itemgetter
from types import NoneType
from typing import Any, Final

LOOK: Final = 1_000_000  # steps of SQLite's machine between two looks at their number
MOST_LOOKS: Final = 2_000  # in a query: a change of a million tips takes a quarter of them
LONGEST_VALUE: Final = 64 * 2**20  # bytes; the longest that we hand over are lists of ids
KINDS: Final[Mapping[str, set[type]]] = {"TEXT": {str}, "INTEGER": {int}, "REAL": {float, int}, "BLOB": {bytes}}

Statements = tuple[str, ...]  # that make the tables of a file
Types = Mapping[str, set[type]]  # column -> what its values may be


def distrust(connection: sqlite3.Connection) -> Callable[[], None]:
    """Bound what a file can make a new connection do; a query that takes too long is interrupted.

    Returns:
        What to call before a query whose steps are not to count with those of earlier ones.
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    looks = 0

    def count() -> bool:
        nonlocal looks
        looks += 1
        return looks > MOST_LOOKS

    def start_again() -> None:
        nonlocal looks
        looks = 0

    connection.set_progress_handler(count, LOOK)
    return start_again


def find_foreign(connection: sqlite3.Connection, statements: Statements) -> str:
    """Say which table, index, view or trigger of a database is not as `statements` make it; "" if all are."""
    there, ours = _objects(connection), _made_by(statements)[0]
    for kind, name in sorted(there.keys() | ours.keys()):
        if there.get((kind, name)) != ours.get((kind, name)):
            why = "is made otherwise" if (kind, name) in there.keys() & ours.keys() else "is not one of ours"
            return f"the {kind[:20]} {name[:60]!a} {why if (kind, name) in there else 'is missing'}"
    return ""


def types_of(statements: Statements) -> Types:
    """The types of all columns that `statements` declare."""
    return _made_by(statements)[1]


def check_types(names: Sequence[str], rows: Sequence[Sequence[Any]], types: Types) -> None:
    """Raise `sqlite3.DataError` where a value of a known column has another type than was declared."""
    for place, name in enumerate(names):
        if (kinds := types.get(name)) and not kinds.issuperset(map(type, map(itemgetter(place), rows))):
            raise sqlite3.DataError(f"malformed value of {name}")


def _objects(connection: sqlite3.Connection) -> dict[tuple[str, str], tuple[str, str]]:
    """Kind and name of all that a database holds -> the table that it is of, and the statement that made it."""
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
    return {(str(kind), str(name)): (str(table), " ".join(str(sql).split())) for kind, name, table, sql in rows}


@cache
def _made_by(statements: Statements) -> tuple[dict[tuple[str, str], tuple[str, str]], Types]:
    types: dict[str, set[type]] = {}
    with closing(sqlite3.connect(":memory:")) as empty:
        for statement in statements:
            empty.execute(statement)
        objects = _objects(empty)
        for kind, table in objects:
            columns = empty.execute(f"PRAGMA table_info({table})") if kind == "table" else ()
            for _, name, declared, is_set, _, is_key in columns:
                types.setdefault(name, set()).update(
                    KINDS.get(declared, {object}), *([] if is_set or is_key else [{NoneType}])
                )
    return objects, {name: kinds for name, kinds in types.items() if object not in kinds}

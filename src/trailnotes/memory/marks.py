"""Marks in a memory file: that a write has happened, so that it is not done again."""

from __future__ import annotations

import sqlite3

REQUEST = "request/"  # in the mark of a write that may be asked for again
REQUESTS_KEPT = 64


def mark_once(connection: sqlite3.Connection, name: str) -> bool:
    """Write a mark within the transaction under way; False if it is there already.

    One in whose name `REQUEST` is gives way to the `REQUESTS_KEPT` newest of these: only what is under way is repeated.
    """
    assert connection.in_transaction, "a mark belongs to what is written with it"
    if REQUEST not in name:
        return bool(connection.execute("INSERT OR IGNORE INTO meta VALUES (?, 1)", (f"once/{name}",)).rowcount)
    of_requests = f"name GLOB 'once/*{REQUEST}*'"
    newest = f"(SELECT COALESCE(MAX(value), 0) FROM meta WHERE {of_requests})"  # noqa: S608 (constants)
    sql = f"INSERT OR IGNORE INTO meta VALUES (?, {newest} + 1)"  # noqa: S608 (constants)
    is_first = bool(connection.execute(sql, (f"once/{name}",)).rowcount)
    sql = f"DELETE FROM meta WHERE {of_requests} AND value <= {newest} - ?"  # noqa: S608 (constants)
    connection.execute(sql, (REQUESTS_KEPT,))
    return is_first

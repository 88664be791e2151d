"""Read the tips of a run a page at a time from its memory file, while others may write to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trailnotes.errors import MemoryStoreError
from trailnotes.memory.schema import open_snapshot
from trailnotes.memory.store import (
    READER_COLUMNS,
    RETIREMENT_COLUMNS,
    SCORE_SHARE,
    SELECT_TIP,
    Retirement,
    parse_tip_row,
)
from trailnotes.memory.tip_stats import ReaderStats
from trailnotes.types import Tip

PAGE_SIZE: Final = 50  # tips on a page
MAX_TASKS: Final = 500  # names that the list offers to choose from
SORT_ORDERS: Final = {
    "newest": "age DESC",
    "score": f"{SCORE_SHARE} DESC, age DESC",
    "read most": "shown DESC, age DESC",
    "earned": "(0.5 + earned) / (1 + shown) DESC, age DESC",
    "repeated": "support DESC, age DESC",
}


@dataclass(frozen=True, slots=True)
class TipRow:
    tip: Tip
    readers: ReaderStats
    retirement: Retirement | None = None


class TipsFile:
    """Reader of one memory file; methods raise `MemoryStoreError` if it is missing, damaged, or of another version."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def list_tips(self, task: str = "", order: str = "newest", first: int = 0) -> tuple[list[TipRow], int]:
        where, values = ("namespace = ?", [task]) if task else ("TRUE", [])
        with self._open_connection() as connection:
            count = f"SELECT COUNT(*) FROM tips WHERE {where}"  # noqa: S608 (constants)
            ((total,),) = connection.execute(count, values)
            ending = f"ORDER BY {SORT_ORDERS[order]} LIMIT ? OFFSET ?"
            return self._load_rows(connection, f"{where} {ending}", [*values, PAGE_SIZE, first]), int(total)

    def get_tip(self, tip_id: int) -> TipRow:
        with self._open_connection() as connection:
            rows = self._load_rows(connection, "id = ?", [tip_id])
        if not rows:
            raise MemoryStoreError(f"there is no tip {tip_id} any more: it was deleted, or was evicted")
        return rows[0]

    def list_tasks(self) -> list[str]:
        with self._open_connection() as connection:
            sql = "SELECT DISTINCT namespace FROM tips ORDER BY namespace LIMIT ?"
            return [str(name) for (name,) in connection.execute(sql, [MAX_TASKS])]

    def _load_rows(self, connection: sqlite3.Connection, ending: str, values: list[Any]) -> list[TipRow]:
        columns, _, table = SELECT_TIP.partition(" FROM ")
        sql = f"{columns}, {', '.join((*RETIREMENT_COLUMNS, *READER_COLUMNS))} FROM {table} WHERE {ending}"
        rows = []
        for values_of_row in connection.execute(sql, values):
            end = len(values_of_row) - len(READER_COLUMNS)
            start = end - len(RETIREMENT_COLUMNS)
            mark = Retirement(*values_of_row[start:end])
            readers = ReaderStats(*values_of_row[end:])
            rows.append(TipRow(parse_tip_row(values_of_row[:start]), readers, mark if mark.rule else None))
        return rows

    @contextmanager
    def _open_connection(self) -> Iterator[sqlite3.Connection]:
        if not self.path.is_file():
            raise MemoryStoreError(f"there is no {self.path.name} in this run: it has no tips")
        with open_snapshot(self.path, every_page=False) as connection:
            yield connection

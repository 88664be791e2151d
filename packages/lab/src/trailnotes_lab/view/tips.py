"""Read the tips of a run a page at a time from its memory file, while others may write to it.

Pages open the file for reading only, and check no more than its header: a file of a million tips opens at once.
Searching and changing go through the store itself (`memory/`), as the agent and the command line do.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory.exchange import open_store, require_searchable, require_tip
from trailnotes.memory.retrieval import load_file_embedder
from trailnotes.memory.schema import open_snapshot, translate_errors
from trailnotes.memory.scope import RETIREMENT_COLUMNS, Retirement
from trailnotes.memory.store import READER_COLUMNS, SELECT_TIP, TipStore, parse_tip_row
from trailnotes.memory.tip_stats import ReaderStats
from trailnotes.memory.tips import MAX_KEY_CHARS, TipMemory
from trailnotes.types import Tip

PAGE_SIZE: Final = 50  # tips on a page
MAX_RESULTS: Final = 20  # of a search
MAX_OPEN_MEMORIES: Final = 4  # memories that are searched
OPEN_TIMEOUT_S: Final = 1.0  # that a page waits for a memory to be opened
RESULT_TTL_S: Final = 600.0  # after which a late result is searched anew
STALE_TIP_ERROR: Final = "this tip has changed since its page was drawn, so nothing was done: here it is as it is now"
SORT_ORDERS: Final = {
    "newest": "age DESC",
    "score": "score DESC, age DESC",
    "read most": "shown DESC, age DESC",
    "earned": "(0.5 + earned) / (1 + shown) DESC, age DESC",
    "repeated": "support DESC, age DESC",
}
MAX_RETIRED_SCANNED: Final = 5_000  # retired tips that a page scans: no index says which tip they became one with
MAX_SORTED: Final = 20_000  # tips that are counted and sorted for a page; of more the newest come first


@dataclass(frozen=True, slots=True)
class TipRow:
    """A tip with the results of its readers."""

    tip: Tip
    readers: ReaderStats
    similarity: float | None = None
    retirement: Retirement | None = None
    joined: tuple[int, ...] = ()  # tips that became one with it, and are counted with it

    @property
    def shown(self) -> int:
        """Count the episodes that were shown it."""
        return self.readers.shown

    @property
    def earned(self) -> float | None:
        """Get the mean return of its readers, 0 to 1; None where there are none."""
        return self.readers.earned / self.readers.shown if self.readers.shown else None


@dataclass(frozen=True, slots=True)
class TipListPage:
    """One page of the list of tips."""

    rows: list[TipRow]
    total: int  # `MAX_SORTED` + 1: more than are counted
    order: str  # as they stand
    sorted: bool  # False: there are too many to sort


class TipsFile:
    """Reader of one memory file; methods raise `MemoryStoreError` if it is missing, damaged, or of another version."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def list_newest(self, before: int | None) -> TipListPage:
        """List `PAGE_SIZE` tips of all tasks with ids below `before`, the highest first, in a file of any size."""
        with self._open_connection() as connection:
            sql = "SELECT id FROM tips WHERE id < ? ORDER BY id DESC LIMIT ?"
            rows = self._load_rows(connection, sql, [before or 2**62, PAGE_SIZE])
            return TipListPage(rows, self._count_tips(connection, ""), "newest", sorted=True)

    def list_tips(self, namespace: str, order: str, first: int) -> TipListPage:
        """List `PAGE_SIZE` tips from the `first` on, counted from 0; of all tasks where `namespace` is ""."""
        if not namespace and order == "newest":
            return self.list_newest(None)
        with self._open_connection() as connection:
            total = self._count_tips(connection, namespace)
            is_sorted = order == "newest" or total <= MAX_SORTED
            if not is_sorted and not namespace:
                return replace(self.list_newest(None), sorted=False)
            order = order if is_sorted else "newest"
            where, values = ("WHERE namespace = ?", [namespace]) if namespace else ("", [])
            sql = f"SELECT id FROM tips {where} ORDER BY {SORT_ORDERS[order]} LIMIT ? OFFSET ?"  # noqa: S608 (constants)
            rows = self._load_rows(connection, sql, [*values, PAGE_SIZE, first])
        return TipListPage(rows, total, order, is_sorted)

    def get_tip_row(self, tip_id: int) -> TipRow:
        """Load one tip, with those of the newest `MAX_RETIRED_SCANNED` retired ones that became one with it."""
        sql = (
            "SELECT id FROM (SELECT id, merged_into FROM tips INDEXED BY tips_by_retirement WHERE retired_at > 0 "
            "ORDER BY retired_at DESC LIMIT ?) WHERE merged_into = ? ORDER BY id"
        )
        with self._open_connection() as connection:
            found = self._load_row(connection, tip_id)
            joined = tuple(each for (each,) in connection.execute(sql, [MAX_RETIRED_SCANNED, tip_id]))
        if found is None:
            raise MemoryStoreError(f"there is no tip {tip_id} any more: it was deleted, or was evicted")
        return replace(found, joined=joined)

    def list_tasks(self, most: int = 500) -> list[str]:
        """List the tasks that have tips, the first `most` by name: one step in the index for each."""
        sql = """
            WITH RECURSIVE names (name) AS (
                SELECT MIN(namespace) FROM tips
                UNION ALL SELECT (SELECT MIN(namespace) FROM tips WHERE namespace > name) FROM names
                WHERE name IS NOT NULL
            )
            SELECT name FROM names WHERE name IS NOT NULL LIMIT ?
        """
        with self._open_connection() as connection:
            return [str(name) for (name,) in connection.execute(sql, [most])]

    def _count_tips(self, connection: sqlite3.Connection, namespace: str) -> int:
        """`MAX_SORTED` + 1 at most: counting a million takes longer than a page may."""
        where, values = ("WHERE namespace = ?", [namespace]) if namespace else ("", [])
        sql = f"SELECT COUNT(*) FROM (SELECT 1 FROM tips {where} LIMIT ?)"  # noqa: S608 (constants)
        return int(connection.execute(sql, [*values, MAX_SORTED + 1]).fetchone()[0])

    def _load_rows(self, connection: sqlite3.Connection, sql: str, values: list[Any]) -> list[TipRow]:
        ids = [row[0] for row in connection.execute(sql, values)]
        return [row for tip_id in ids if (row := self._load_row(connection, tip_id))]

    def _load_row(self, connection: sqlite3.Connection, tip_id: int) -> TipRow | None:
        columns, _, table = SELECT_TIP.partition(" FROM ")
        sql = f"{columns}, {', '.join((*RETIREMENT_COLUMNS, *READER_COLUMNS))} FROM {table} WHERE id = ?"
        for found in connection.execute(sql, [tip_id]):
            end = len(found) - len(READER_COLUMNS)
            mark = Retirement(*found[end - len(RETIREMENT_COLUMNS) : end])
            return TipRow(
                parse_tip_row(found[: end - len(RETIREMENT_COLUMNS)]),
                ReaderStats(*found[end:]),
                retirement=mark if mark.rule else None,
            )
        return None

    @contextmanager
    def _open_connection(self) -> Iterator[sqlite3.Connection]:
        if not self.path.is_file():
            raise MemoryStoreError(f"there is no {self.path.name} in this run: it has no tips")
        with open_snapshot(self.path, every_page=False) as connection:
            yield connection


SearchKey = tuple[Path, str, str, str]  # file, settings, task, words


class MemoryNotReady(MemoryStoreError):  # noqa: N818 (it is an answer)
    """The memory is still being opened: its file is checked, or its index built."""


class TipSearcher:
    """Search as an agent does, in a thread of its own; memories stay open, since opening may take long."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="searcher")
        self._lock = threading.Lock()
        self._late: dict[SearchKey, tuple[Future[list[TipRow]], float]] = {}  # with the time of the first request
        self._open: OrderedDict[tuple[Path, int, str], TipMemory] = OrderedDict()

    def close(self) -> None:
        """Close all files, once the search under way has ended."""
        self._thread.shutdown(cancel_futures=True)
        for memory in self._open.values():
            memory.close()
        self._open.clear()

    def search(self, path: Path, config: MemoryConfig, namespace: str, query: str) -> list[TipRow]:
        """Find the tips that an agent of these settings would be shown for `query`, the best first, with similarities.

        `config.embedder` is the one that the user names, as for `load_file_embedder`.

        Raises:
            ConfigError: as `load_file_embedder`.
            MemoryStoreError: the file cannot be used, or has no tip of that task, which may read no others.
            MissingExtraError: its embedder is not installed.
            MemoryNotReady: it takes longer than `OPEN_TIMEOUT_S`; the search goes on for the next call.
        """
        ask, now = (path, config.model_dump_json(), namespace, query), time.monotonic()
        with self._lock:
            self._late = {each: late for each, late in self._late.items() if now - late[1] < RESULT_TTL_S}
            if ask not in self._late:
                self._late[ask] = self._thread.submit(self._run_search, path, config, namespace, query), now
            found, _ = self._late[ask]
        wait([found], OPEN_TIMEOUT_S)
        if not found.done():
            raise MemoryNotReady(f"{path.name} is being opened")
        with self._lock:
            self._late.pop(ask, None)
        return found.result()

    def _run_search(self, path: Path, config: MemoryConfig, namespace: str, query: str) -> list[TipRow]:
        memory = self._get_memory(path, config)
        if not (found := memory.search(namespace, query, MAX_RESULTS)):
            require_searchable(memory.store, namespace, memory.config.scope)  # goes through all names
            return []
        (vector,) = memory.embedder.embed([query[:MAX_KEY_CHARS]])
        alike = memory.embed_keys(found) @ vector
        return [
            TipRow(tip, readers, float(each))
            for tip, each in zip(found, alike, strict=True)
            for readers in memory.store.load_reader_stats(tip.id or 0).values()  # none of one that was just deleted
        ]

    def _get_memory(self, path: Path, config: MemoryConfig) -> TipMemory:
        with translate_errors(path):
            slot = (path, path.stat().st_ino, config.model_dump_json())
        if slot not in self._open:
            store = open_store(path)
            try:
                embedder = load_file_embedder(store.identity.name, config.embedder)
                self._open[slot] = TipMemory(store, embedder, config)
            except BaseException:
                store.close()
                raise
        self._open.move_to_end(slot)
        while len(self._open) > MAX_OPEN_MEMORIES:
            self._open.popitem(last=False)[1].close()
        return self._open[slot]


def apply_change(path: Path, tip_id: int, seen: str, act: Callable[[TipStore], object]) -> None:
    """Apply a change to a tip, or raise `MemoryStoreError` if it is not the one that the page showed (`hash_tip`)."""
    with closing(open_store(path)) as store:
        if hash_tip(require_tip(store, tip_id)) != seen:
            raise MemoryStoreError(STALE_TIP_ERROR)
        act(store)


def hash_tip(tip: Tip) -> str:
    """Hash the state of a tip, by which a form names the tip that its page showed."""
    return blake2b(f"{tip.text}\n{tip.score}\n{tip.enabled}".encode(), digest_size=8).hexdigest()

"""The rows of a memory file: tips, the results of their readers, attempts, and values under keys.

Every write is one transaction: a killed process loses at most the write in flight. `tips.py` decides on duplicates,
capacity and order; this module only stores rows.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trailnotes.memory import schema
from trailnotes.memory.index import ID_CONDITION, BM25Index, Doubles, ExactIndex, IndexedFile, decode_vectors
from trailnotes.memory.retrieval import Floats
from trailnotes.memory.schema import Closeable, EmbedderIdentity, translate_errors
from trailnotes.memory.scope import ALL_TIPS, CLEAR_RETIREMENT, RetiredTips, TaskTable, TipFilter, make_tip_filter
from trailnotes.memory.tip_stats import ReaderStats, TipExposure
from trailnotes.types import StrPath, Tip, replace_surrogates

CACHED_PAGES = 128
COLUMNS = (
    *("namespace", "text", "key", "score", "max_score", "action", "support", "step"),
    *("model", "version", "run", "created", "imported", "enabled"),
)
SELECT_TIP = f"SELECT id, {', '.join(COLUMNS)} FROM tips"  # noqa: S608 (constants)
SELECT_ITEM = "SELECT namespace, key, value, tip, created, updated FROM items"
ORDERS = {"score": "score DESC", "support": "support DESC", "recency": "age DESC"}
# The worth is `mean_gain`.
LIST_ORDERS = {"recency": "age", "score": "score", "shown": "shown", "worth": "gained / (1.0 + compared)"}
READER_COLUMNS = ReaderStats._fields  # columns that `update` keeps: results of the tip, not the tip


@dataclass(slots=True)
class TipPage:
    """The searchable enabled tips of a namespace or filter. Row numbers of `index` are positions in `ids`."""

    ids: tuple[int, ...]  # best first, in the order of the page
    columns: dict[str, Floats]  # "score", "support", "recency" and those of `READER_COLUMNS`: float64 (n,)
    index: ExactIndex
    fetched: dict[int, Tip] = field(default_factory=dict)  # by id: rows that were read before
    words: BM25Index | None = None  # of their keys, once they are searched by words


class ItemRow(NamedTuple):
    """One value under a key."""

    namespace: str  # in JSON
    key: str
    value: str  # in JSON
    tip: int | None  # the tip that finds it
    created: float  # seconds since 1970
    updated: float

    @property
    def dotted_namespace(self) -> str:
        return ".".join(json.loads(self.namespace))


class OwnerChange(NamedTuple):
    """One manual change of the owner to a tip."""

    tip_id: int
    fields: dict[str, Any] | None  # those set; None: deleted

    @property
    def is_addition(self) -> bool:
        return self.fields is not None and self.fields.keys() >= set(COLUMNS)


class TipStore(IndexedFile, TaskTable, RetiredTips):
    """The rows of tips with their vectors, in one memory file."""

    def __init__(self, path: StrPath | None, identity: EmbedderIdentity | None = None) -> None:
        super().__init__(path, identity)
        self._pages: OrderedDict[tuple[str | TipFilter, tuple[str, ...]], TipPage] = OrderedDict()
        self._data_version = -1

    def load_tips(self, namespace: str | None = None, *, after: int = 0) -> list[Tip]:
        """Return the tips, oldest first: of all namespaces or one, and only those written since `after`."""
        where, values = ("AND namespace = ?", (namespace,)) if namespace is not None else ("", ())
        rows = self._query(f"{SELECT_TIP} WHERE age > ? {where} ORDER BY age", (after, *values))
        return [parse_tip_row(row) for row in rows]

    def list_sorted(self, namespace: str | None, by: str, limit: int = 0, *, retired: bool | None = None) -> list[Tip]:
        """List all tips, or those (not) retired, by a key of `LIST_ORDERS`, then the newest; `limit` 0 gives all."""
        kept = {None: "TRUE", True: "retired_at > 0", False: "retired_at = 0"}[retired]
        where, values = ("AND namespace = ?", [namespace]) if namespace is not None else ("", [])
        sql = f"{SELECT_TIP} WHERE {kept} {where} ORDER BY {LIST_ORDERS[by]} DESC, age DESC LIMIT ?"
        return [parse_tip_row(row) for row in self._query(sql, [*values, min(limit, 2**31) or -1])]

    def get_tip(self, tip_id: int) -> Tip | None:
        return next(map(parse_tip_row, self._query(f"{SELECT_TIP} WHERE id = ?", (tip_id,))), None)

    def get_best_score(self, namespace: str) -> tuple[float, float]:
        """Return score and highest possible score of the best tip of a namespace: 1 of 1 where there is none."""
        best = next(iter(self.list_sorted(namespace, "score", 1)), None)
        return (best.score, best.max_score) if best else (1.0, 1.0)

    def load_reader_stats(self, tip_id: int | None = None) -> dict[int, ReaderStats]:
        where, values = ("WHERE id = ?", (tip_id,)) if tip_id is not None else ("", ())
        rows = self._query(f"SELECT id, {', '.join(READER_COLUMNS)} FROM tips {where} ORDER BY id", values)  # noqa: S608 (constants)
        return {tip: ReaderStats(*counts) for tip, *counts in rows}

    def count_by_namespace(self, place: TipFilter = ALL_TIPS) -> dict[str, int]:
        """Count the tips that are not retired in each namespace, sorted by name: all, less the few retired ones."""
        all_of, retired = (
            f"SELECT namespace, {number} AS tips FROM {rows} AND {place.condition} GROUP BY namespace"  # noqa: S608
            for number, rows in (
                ("COUNT(*)", "tips WHERE TRUE"),
                ("-COUNT(*)", "tips INDEXED BY tips_by_retirement WHERE retired_at > 0"),
            )
        )
        sql = f"SELECT namespace, SUM(tips) FROM ({all_of} UNION ALL {retired}) GROUP BY namespace ORDER BY namespace"  # noqa: S608
        return dict(self._query(sql, (*place.values, *place.values)))

    def load_owner_changes(self, *, after: int) -> list[OwnerChange]:
        """Return the owner's changes since the change of that number, the oldest first."""
        rows = self._query("SELECT tip, fields FROM owner_changes WHERE number > ? ORDER BY number", (after,))
        return [OwnerChange(tip, fields and json.loads(fields)) for tip, fields in rows]

    def find_duplicate(self, tip: Tip, *, same_key: bool, among_own: bool = False) -> int | None:
        """Return the row with the same text in the same namespace, imported or own as `tip` is, or `among_own` rows."""
        whose = "(imported = ? OR retired = '')" if among_own else "imported = ?"
        sql = f"SELECT id FROM tips WHERE namespace = ? AND text = ? AND {whose}"  # noqa: S608 (constants)
        values: tuple[Any, ...] = (tip.namespace, tip.text, tip.imported)
        if same_key:
            sql, values = f"{sql} AND key = ?", (*values, tip.key)
        rows = self._query(f"{sql} ORDER BY id LIMIT 1", values)
        return int(rows[0][0]) if rows else None

    def load_page(self, namespace: str | TipFilter, order: Sequence[str]) -> TipPage:
        """Return the enabled tips by `order` (keys of `ORDERS`), then the newest; cached until any process writes."""
        with self._lock:
            version = self._query("PRAGMA data_version")[0][0]  # changes when another connection has written
            if version != self._data_version:
                self._pages.clear()
                self._data_version = version
            slot = (namespace, tuple(order))
            if slot not in self._pages:
                place = make_tip_filter(namespace)
                rows = self._query(_build_page_query(f"{place.condition} AND enabled", order), place.values)
                self._pages[slot] = self._build_page(rows)
            self._pages.move_to_end(slot)
            while len(self._pages) > CACHED_PAGES:
                self._pages.popitem(last=False)
            return self._pages[slot]

    def load_nearest_page(
        self, namespace: str | TipFilter, order: Sequence[str], vector: Floats, count: int
    ) -> TipPage:
        """Return about the `count` enabled tips that the index finds nearest to `vector` (dim,), as `load_page`."""
        place = make_tip_filter(namespace)
        # The plus keeps SQLite from going through the whole place.
        query = _build_page_query(f"{ID_CONDITION} AND +{place.condition} AND enabled", order)
        with self._lock:
            return self._build_page(self.find_nearest(place, vector, count, query))

    def fetch(self, page: TipPage, positions: Sequence[int]) -> list[Tip]:
        """Return the tips at `positions` of a page, without those deleted a moment ago."""
        ids = [page.ids[position] for position in positions]
        missing = [tip_id for tip_id in ids if tip_id not in page.fetched]
        if missing:
            rows = self._query(f"{SELECT_TIP} WHERE id IN ({', '.join('?' * len(missing))})", missing)
            page.fetched.update((row[0], parse_tip_row(row)) for row in rows)
        return [page.fetched[tip_id] for tip_id in ids if tip_id in page.fetched]

    def score_words(self, page: TipPage, query: str) -> Doubles:
        if page.words is None:
            sql = "SELECT id, key FROM tips WHERE id IN (SELECT value FROM json_each(?))"
            keys = dict(self._query(sql, (json.dumps(page.ids),)))
            page.words = BM25Index([keys.get(tip_id, "") for tip_id in page.ids])
        return page.words.score(query)

    def stats(self) -> dict[str, float]:
        """Return counts, of which `support` is of writes with repeats; retired tips count as such alone."""
        ((total, *counts),) = self._query(
            "SELECT COUNT(*), COUNT(NULLIF(retired_at = 0, 0)), COALESCE(SUM(enabled), 0), "
            "COALESCE(SUM(imported AND retired_at = 0), 0), "
            "COUNT(DISTINCT CASE WHEN retired_at = 0 THEN namespace END), "
            "COALESCE(SUM(support * (retired_at = 0)), 0) FROM tips"
        )
        pages = self._query("PRAGMA page_count")[0][0] - self._query("PRAGMA freelist_count")[0][0]
        size = pages * self._query("PRAGMA page_size")[0][0]
        names = ("tips", "enabled", "imported", "namespaces", "support", "retired", "bytes")
        return dict(zip(names, map(float, (*counts, total - counts[0], size)), strict=True))

    # writing, inside `with store.transaction():`

    def insert(self, tip: Tip, vector: Floats, tip_id: int | None = None) -> int:
        values = [getattr(tip, name) for name in COLUMNS]
        columns = ("id", *COLUMNS, "vector", "age")
        sql = f"INSERT INTO tips ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
        cursor = self._write(sql, (tip_id, *values, _encode_vector(vector), self._advance_sequence()))
        self._touched.add(tip.namespace)
        return int(cursor.lastrowid or 0)

    def update(self, tip: Tip, vector: Floats | None = None, *, refresh: bool = False, settled: bool = False) -> None:
        """Write all fields of `tip` to the row of its id; `refresh` makes it the newest.

        Reader statistics stay for the same text. An enabled tip, or a `settled` one, loses its mark of retirement.
        """
        assignments = ", ".join(f"{name} = ?" for name in COLUMNS)
        values: list[Any] = [getattr(tip, name) for name in COLUMNS]
        for name in READER_COLUMNS:
            assignments, values = f"{assignments}, {name} = {name} * (text = ?)", [*values, tip.text]
        if vector is not None:
            assignments, values = f"{assignments}, vector = ?", [*values, _encode_vector(vector)]
        if tip.enabled or settled:
            assignments = f"{assignments}, {CLEAR_RETIREMENT}"
        if refresh:
            assignments, values = f"{assignments}, age = ?", [*values, self._advance_sequence()]
        self._write(f"UPDATE tips SET {assignments} WHERE id = ?", (*values, tip.id))  # noqa: S608
        self._touched.add(tip.namespace)

    def record_exposures(self, readings: Iterable[TipExposure]) -> None:
        """Count readers of the tips that still exist, as a numbered write, which a run that rewinds notices."""
        sql = (
            "UPDATE tips SET shown = shown + 1, earned = earned + ?, compared = compared + ?, gained = gained + ?, "
            "used = ? WHERE id = ? RETURNING namespace"
        )
        namespaces, number = [], self.sequence + 1
        for tip, earned, gained in readings:
            values = (earned, gained is not None, gained or 0.0, number, tip)
            namespaces += [namespace for (namespace,) in self._query(sql, values)]
        if namespaces:
            self._advance_sequence()
        self._touched.update(namespaces)

    def insert_attempt(self, name: str, namespace: str, tips: Sequence[int], kept: int) -> None:
        """Insert an attempt that reads `tips`, and delete those before the `kept` newest."""
        values = (name, replace_surrogates(namespace), json.dumps(list(tips)))
        number = self._write("INSERT INTO attempts (id, namespace, tips) VALUES (?, ?, ?)", values).lastrowid or 0
        self._write("DELETE FROM attempts WHERE number <= ?", (number - kept,))

    def finish_attempt(self, name: str, earned: float, task: str | None = None) -> tuple[str, list[int]] | None:
        """Record what an attempt earned, 0 to 1; return its task and tips, None if none such (at `task`) is open."""
        sql = "UPDATE attempts SET earned = ? WHERE id = ? AND earned IS NULL AND namespace = IFNULL(?, namespace)"
        rows = self._query(f"{sql} RETURNING namespace, tips", (earned, name, task))
        return next(((namespace, json.loads(tips)) for namespace, tips in rows), None)

    def load_attempts(self, namespace: str, limit: int, *, without: str = "") -> list[tuple[set[int], float]]:
        """Return the tips and earnings of the newest finished attempts at a task, but for one."""
        sql = (
            "SELECT tips, earned FROM attempts WHERE namespace = ? AND earned IS NOT NULL AND id <> ? "
            "ORDER BY number DESC LIMIT ?"
        )
        return [(set(json.loads(tips)), earned) for tips, earned in self._query(sql, (namespace, without, limit))]

    def count_events(self) -> int:
        """Count writes and attempts: a number that changes from one search to the next, wherever they are reported."""
        ((attempts,),) = self._query("SELECT COALESCE(MAX(number), 0) FROM attempts")
        return self.sequence + int(attempts)

    def load_items(self, namespace: str | None = None, key: str = "") -> list[ItemRow]:
        where, values = ("WHERE namespace = ? AND key = ?", (namespace, key)) if namespace is not None else ("", ())
        return [ItemRow(*row) for row in self._query(f"{SELECT_ITEM} {where} ORDER BY rowid", values)]

    def put_item(self, namespace: str, key: str, value: str | None, tip: int | None) -> None:
        """Insert an item, or replace its value and tip; delete it where the value is None."""
        if value is None:
            self._write("DELETE FROM items WHERE namespace = ? AND key = ?", (namespace, key))
            return
        sql = (
            "INSERT INTO items VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value, "
            "tip = excluded.tip, updated = excluded.updated"
        )
        self._write(sql, (namespace, key, value, tip, time.time(), time.time()))

    def record_effects(self, leads: Iterable[tuple[int, float]], window: int) -> None:
        """Record by how many nats tips made actions likelier: a mean of `window` readers, then a moving average."""
        sql = (
            "UPDATE tips SET measured = measured + 1, lead = lead + (? - lead) / MIN(measured + 1, ?) WHERE id = ? "
            "RETURNING namespace"
        )
        namespaces = [name for tip, lead in leads for (name,) in self._query(sql, (lead, window, tip))]
        if namespaces:
            self._advance_sequence()
        self._touched.update(namespaces)

    def delete(self, ids: Iterable[int]) -> int:
        sql = "DELETE FROM tips WHERE id = ? RETURNING namespace"
        namespaces = [namespace for tip_id in ids for (namespace,) in self._query(sql, (tip_id,))]
        self._touched.update(namespaces)
        return len(namespaces)

    def record_owner_change(self, change: OwnerChange) -> None:
        """Record a change of the owner, for a run that rewinds to an earlier snapshot."""
        fields = None if change.fields is None else json.dumps(change.fields, ensure_ascii=False)
        self._write("INSERT INTO owner_changes (tip, fields) VALUES (?, ?)", (change.tip_id, fields))

    def replace_rows(self, source: sqlite3.Connection) -> None:
        schema.copy_rows(source, self._connection)
        self._pages.clear()

    def set_vectors(self, identity: EmbedderIdentity, tips: Sequence[Tip], vectors: Floats) -> None:
        for tip, vector in zip(tips, vectors, strict=True):
            self._write("UPDATE tips SET vector = ? WHERE id = ?", (_encode_vector(vector), tip.id))
            self._touched.add(tip.namespace)
        schema.write_identity(self._connection, identity)
        self._write(schema.NEW_ERA)

    def restore(self, path: StrPath) -> None:
        """Replace the content by that of a snapshot, in one transaction, or raise `MemoryStoreError`."""
        with self._lock, schema.open_snapshot(Path(path)) as source:
            schema.require_identity(schema.read_identity(source), self.identity, Path(path))
            with translate_errors(self.path):
                source.backup(self._connection)
                schema.migrate(self._connection)
                self._connection.execute(schema.NEW_ERA)
            self._pages.clear()

    def _on_transaction_end(self) -> None:
        for slot in [slot for slot in self._pages if slot[0] in self._touched or isinstance(slot[0], TipFilter)]:
            del self._pages[slot]
        self._touched.clear()
        super()._on_transaction_end()

    def _build_page(self, rows: Sequence[Sequence[Any]]) -> TipPage:
        names = (*ORDERS, *READER_COLUMNS)
        ids, vectors, *numbers = zip(*rows, strict=True) if rows else ((), (), *((),) * len(names))
        columns = {name: np.array(column, float) for name, column in zip(names, numbers, strict=True)}
        return TipPage(tuple(ids), columns, ExactIndex(decode_vectors(vectors, self.identity.dim)))


class StoreBackedMemory(Closeable):
    """A memory whose rows are in one `TipStore`."""

    store: TipStore

    def snapshot(self, path: StrPath) -> None:
        self.store.snapshot(path)

    def restore(self, path: StrPath) -> None:
        self.store.restore(path)

    def stats(self) -> dict[str, float]:
        return self.store.stats()

    def close(self) -> None:
        self.store.close()


def build_addition(tip: Tip) -> OwnerChange:
    assert tip.id is not None, "stored tips have an id"
    return OwnerChange(tip.id, {name: getattr(tip, name) for name in COLUMNS})


def _build_page_query(condition: str, order: Sequence[str]) -> str:
    columns = ", ".join(("id", "vector", "score", "support", "age", *READER_COLUMNS))
    by = ", ".join([*(ORDERS[name] for name in order), "age DESC"])
    return f"SELECT {columns} FROM tips WHERE {condition} ORDER BY {by}"  # noqa: S608 (constants)


def parse_tip_row(row: Sequence[Any]) -> Tip:
    fields = dict(zip(("id", *COLUMNS), row, strict=True))
    return Tip(**fields | {name: bool(fields[name]) for name in ("imported", "enabled")})


def _encode_vector(vector: Floats) -> bytes:
    return vector.astype("<f4").tobytes()

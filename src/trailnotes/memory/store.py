"""The memory file: one SQLite database that outlives runs, crashes and several processes at once.

Write-ahead log, full synchronisation, every write one transaction: a killed process loses at most the write in
flight. What the rows mean (duplicates, capacity, order) is `tips.py`; here they are only kept.
"""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trailnotes.errors import MemoryStoreError
from trailnotes.memory import schema
from trailnotes.memory.indexed import IndexedFile, build_id_condition, decode_vectors
from trailnotes.memory.openfile import Closeable
from trailnotes.memory.retired import CLEAR_RETIREMENT, RetiredTips
from trailnotes.memory.retrieval import ExactIndex, Floats, VectorIndex
from trailnotes.memory.schema import EmbedderIdentity, translate_errors
from trailnotes.memory.scope import ALL_TIPS, TaskTable, TipFilter, make_tip_filter
from trailnotes.memory.tip_stats import ReaderStats, TipExposure
from trailnotes.memory.words import BM25Index
from trailnotes.types import StrPath, Tip

CACHED_PAGES = 128
REQUEST = "request/"  # in the mark of a write that may be asked for again
REQUESTS_KEPT = 64
COLUMNS = (
    *("namespace", "text", "key", "score", "max_score", "action", "support", "step"),
    *("model", "version", "run", "created", "imported", "enabled"),
)
SELECT_TIP = f"SELECT id, {', '.join(COLUMNS)} FROM tips"  # noqa: S608 (constants)
ORDERS = {"score": "score DESC", "support": "support DESC", "recency": "age DESC"}
LIST_ORDERS = {
    "recency": "age",
    "score": "score",
    "shown": "shown",
    "worth": "gained / (1.0 + compared)",
}  # see `mean_gain`
READER_COLUMNS = ReaderStats._fields  # columns that `update` leaves alone: what came of the tip, not the tip


@dataclass(frozen=True, slots=True)
class TipPage:
    """The enabled tips of a namespace or place, ready to be searched. Row numbers of `index` are positions in `ids`."""

    ids: tuple[int, ...]  # best first, by the order that the page was asked for
    columns: dict[str, Floats]  # "score", "support", "recency" and those of `READER_COLUMNS`: float64 (n,)
    index: VectorIndex
    fetched: dict[int, Tip] = field(default_factory=dict)  # by id: rows that were shown before
    words: list[BM25Index] = field(default_factory=list)  # of the keys: none, or one when a search has asked for it


class OwnerChange(NamedTuple):
    """What the owner of a file did to one tip by hand."""

    tip_id: int
    fields: dict[str, Any] | None  # those set; None: deleted

    @property
    def is_addition(self) -> bool:
        """Whether the tip was new: all fields were set."""
        return self.fields is not None and self.fields.keys() >= set(COLUMNS)


class TipStore(IndexedFile, TaskTable, RetiredTips):
    """Rows of tips with their vectors, in a file that `MemoryFile` opens."""

    def __init__(self, path: StrPath | None, identity: EmbedderIdentity | None = None) -> None:
        super().__init__(path, identity)
        self._pages: OrderedDict[tuple[str | TipFilter, tuple[str, ...]], TipPage] = OrderedDict()
        self._data_version = -1

    # reading

    def load_tips(self, namespace: str | None = None, *, after: int = 0) -> list[Tip]:
        """All tips, or those of one namespace, oldest first; `after`: only those new or changed since `sequence`."""
        where, values = ("AND namespace = ?", (namespace,)) if namespace is not None else ("", ())
        return [
            parse_tip_row(row)
            for row in self._query(f"{SELECT_TIP} WHERE age > ? {where} ORDER BY age", (after, *values))
        ]

    def list_sorted(self, namespace: str | None, by: str, limit: int = 0, *, retired: bool | None = None) -> list[Tip]:
        """All tips, or those (not) retired, by a key of `LIST_ORDERS`, of equals the newest first; `limit` 0 gives all."""
        kept = {None: "TRUE", True: "retired_at > 0", False: "retired_at = 0"}[retired]
        where, values = ("AND namespace = ?", [namespace]) if namespace is not None else ("", [])
        sql = f"{SELECT_TIP} WHERE {kept} {where} ORDER BY {LIST_ORDERS[by]} DESC, age DESC LIMIT ?"
        return [parse_tip_row(row) for row in self._query(sql, [*values, min(limit, 2**31) or -1])]

    def get_tip(self, tip_id: int) -> Tip | None:
        """One tip by its id."""
        return next((parse_tip_row(row) for row in self._query(f"{SELECT_TIP} WHERE id = ?", (tip_id,))), None)

    def load_reader_stats(self, tip_id: int | None = None) -> dict[int, ReaderStats]:
        """What came of reading each tip, or one: by id."""
        where, values = ("WHERE id = ?", (tip_id,)) if tip_id is not None else ("", ())
        rows = self._query(f"SELECT id, {', '.join(READER_COLUMNS)} FROM tips {where} ORDER BY id", values)  # noqa: S608 (constants)
        return {tip: ReaderStats(*counts) for tip, *counts in rows}

    def count_by_namespace(self, place: TipFilter = ALL_TIPS) -> dict[str, int]:
        """Number of tips not retired of each namespace, or of each in `place`, in the order of the names.

        All are counted in an index; only the rows of those that are retired are read, and taken off.
        """
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
        """What the owner changed by hand since the change of that number, the oldest first."""
        rows = self._query("SELECT tip, fields FROM owner_changes WHERE number > ? ORDER BY number", (after,))
        with translate_errors(self.path):
            return [OwnerChange(tip, fields if fields is None else schema.parse_fields(fields)) for tip, fields in rows]

    def find_duplicate(self, tip: Tip, *, same_key: bool, among_own: bool = False) -> int | None:
        """Id of the row that says the same in the same namespace, imported or own as `tip` is.

        With `among_own` an own one that is not retired is the same as an imported one, too.
        """
        whose = "(imported = ? OR retired = '')" if among_own else "imported = ?"
        sql = f"SELECT id FROM tips WHERE namespace = ? AND text = ? AND {whose}"  # noqa: S608 (constants)
        values: tuple[Any, ...] = (tip.namespace, tip.text, tip.imported)
        if same_key:
            sql, values = f"{sql} AND key = ?", (*values, tip.key)
        rows = self._query(f"{sql} ORDER BY id LIMIT 1", values)
        return int(rows[0][0]) if rows else None

    def load_page(self, namespace: str | TipFilter, order: Sequence[str]) -> TipPage:
        """The enabled tips of a namespace or place, by `order` (keys of `ORDERS`), the newest first among equals.

        Cached until anybody, in this process or another, writes.
        """
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
        """About the `count` enabled tips of a namespace or place most similar to `vector` (dim,), sorted as by `page`.

        They are found through the index (`nearest`), and compared by their full vectors.
        """
        with self._lock:
            place = make_tip_filter(namespace)
            return self._build_page(
                self.find_nearest(place, vector, count, _build_page_query(build_id_condition(place), order))
            )

    def fetch(self, page: TipPage, positions: Sequence[int]) -> list[Tip]:
        """Tips at `positions` of a page; one that was deleted a moment ago is left out."""
        ids = [page.ids[position] for position in positions]
        missing = [tip_id for tip_id in ids if tip_id not in page.fetched]
        if missing:
            rows = self._query(f"{SELECT_TIP} WHERE id IN ({_placeholders(missing)})", missing)
            page.fetched.update((row[0], parse_tip_row(row)) for row in rows)
        return [page.fetched[tip_id] for tip_id in ids if tip_id in page.fetched]

    def get_word_index(self, page: TipPage) -> BM25Index:
        """The words of the keys of a page, counted once for as long as the page is cached."""
        with self._lock:
            if not page.words:
                sql = "SELECT id, key FROM tips WHERE id IN (SELECT value FROM json_each(?))"
                keys = dict(self._query(sql, (json.dumps(page.ids),)))
                page.words.append(BM25Index([keys.get(tip_id, "") for tip_id in page.ids]))
            return page.words[0]

    def stats(self) -> dict[str, float]:
        """Counts: tips, enabled, imported, namespaces, support (writes, repeats included) and retired; bytes in use.

        Those that are retired count as such alone.
        """
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
        """Add a row, under an id of its own or one that was its before; returns the id."""
        values = [getattr(tip, name) for name in COLUMNS]
        cursor = self._write(
            f"INSERT INTO tips (id, {', '.join(COLUMNS)}, vector, age) VALUES (?, {_placeholders(COLUMNS)}, ?, ?)",  # noqa: S608
            (tip_id, *values, _encode_vector(vector), self._advance_sequence()),
        )
        self._touched.add(tip.namespace)
        return int(cursor.lastrowid or 0)

    def update(self, tip: Tip, vector: Floats | None = None, *, refresh: bool = False, settled: bool = False) -> None:
        """Write all fields of `tip` to the row of its id; `refresh` makes it the newest.

        What came of reading it is kept for the same text alone. A mark of retirement goes from what is enabled, and
        from what its owner has switched (`settled`).
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
        """Count readers. What is gone is not counted.

        It is a write like any other, so that a run that goes back to a snapshot knows of it.
        """
        sql = (
            "UPDATE tips SET shown = shown + 1, earned = earned + ?, compared = compared + ?, gained = gained + ?, "
            "used = ? WHERE id = ? RETURNING namespace"
        )
        found, number = [], self._peek_sequence()
        for tip, earned, gained in readings:
            values = (earned, gained is not None, gained or 0.0, number, tip)
            found += [namespace for (namespace,) in self._query(sql, values)]
        if found:
            self._advance_sequence()
        self._touched.update(found)

    def record_effects(self, leads: Iterable[tuple[int, float]], window: int) -> None:
        """Take in by how many nats tips made likelier what a reader did who did well, of each tip that it read.

        lead_k = lead_(k-1) + (new - lead_(k-1)) / min(k, window): the mean of the first `window` readers, and of those
        after them one that forgets, since the policy learns.
        """
        sql = (
            "UPDATE tips SET measured = measured + 1, lead = lead + (? - lead) / MIN(measured + 1, ?) WHERE id = ? "
            "RETURNING namespace"
        )
        found = [name for tip, lead in leads for (name,) in self._query(sql, (lead, window, tip))]
        if found:
            self._advance_sequence()
        self._touched.update(found)

    def delete(self, ids: Iterable[int]) -> int:
        """Remove rows; returns how many there were."""
        deleted = 0
        for tip_id in ids:
            namespaces = self._query("DELETE FROM tips WHERE id = ? RETURNING namespace", (tip_id,))
            self._touched.update(row[0] for row in namespaces)
            deleted += len(namespaces)
        return deleted

    def mark_first_time(self, name: str) -> bool:
        """Whether this is the first time for `name`: a mark that is written, or undone, with the whole transaction.

        Marks travel with snapshots: a batch that a restored memory does not hold is not marked either. One in whose
        name `REQUEST` is gives way to the `REQUESTS_KEPT` newest of these: only what is under way is repeated.
        """
        is_first = schema.mark_once(self._connection, name)
        if is_first and REQUEST in name:
            of_requests = f"name GLOB 'once/*{REQUEST}*'"
            newest = f"(SELECT MAX(value) FROM meta WHERE {of_requests})"  # noqa: S608 (constants)
            self._write(f"UPDATE meta SET value = {newest} + 1 WHERE name = ?", (f"once/{name}",))  # noqa: S608
            self._write(f"DELETE FROM meta WHERE {of_requests} AND value <= {newest} - ?", (REQUESTS_KEPT,))  # noqa: S608
        return is_first

    def record_owner_change(self, change: OwnerChange) -> None:
        """Keep what the owner did, for a run that goes back to a snapshot from before (`owner.go_back`)."""
        fields = None if change.fields is None else json.dumps(change.fields, ensure_ascii=False)
        self._write("INSERT INTO owner_changes (tip, fields) VALUES (?, ?)", (change.tip_id, fields))

    def replace_rows(self, source: sqlite3.Connection) -> None:
        """All rows become those of another memory file, marks and counters among them."""
        schema.copy_rows(source, self._connection)
        self._pages.clear()

    def set_vectors(self, identity: EmbedderIdentity, tips: Sequence[Tip], vectors: Sequence[Floats]) -> None:
        """Replace the vectors of `tips`, and the embedder of the file."""
        for tip, vector in zip(tips, vectors, strict=True):
            self._write("UPDATE tips SET vector = ? WHERE id = ?", (_encode_vector(vector), tip.id))
            self._touched.add(tip.namespace)
        schema.write_identity(self._connection, identity)
        schema.begin_era(self._connection)

    # whole files

    def restore(self, path: StrPath) -> None:
        """Replace the content by that of a snapshot, in one transaction.

        Raises:
            MemoryStoreError: the snapshot is missing, damaged, or of another embedder; nothing has changed then.
        """
        with self._lock, schema.open_snapshot(Path(path)) as source:
            schema.require_identity(schema.read_identity(source), self.identity, Path(path))
            with translate_errors(self.path):
                source.backup(self._connection)
                schema.migrate(self._connection)
                schema.begin_era(self._connection)
            self._pages.clear()

    # details

    def _on_transaction_end(self) -> None:
        for slot in [slot for slot in self._pages if slot[0] in self._touched or isinstance(slot[0], TipFilter)]:
            del self._pages[slot]
        self._touched.clear()
        super()._on_transaction_end()

    def _write(self, sql: str, values: Sequence[Any]) -> sqlite3.Cursor:
        assert self._connection.in_transaction, "writes belong into `with store.transaction()`"
        return self._connection.execute(sql, values)

    def _build_page(self, rows: Sequence[Sequence[Any]]) -> TipPage:
        names = (*ORDERS, *READER_COLUMNS)
        ids, vectors, *numbers = zip(*rows, strict=True) if rows else ((), (), *((),) * len(names))
        columns = {name: np.array(column, float) for name, column in zip(names, numbers, strict=True)}
        return TipPage(tuple(ids), columns, ExactIndex(decode_vectors(vectors, self.identity.dim)))


class StoreBackedMemory(Closeable):
    """A memory whose rows lie in one `TipStore`."""

    store: TipStore

    def snapshot(self, path: StrPath) -> None:
        """Write a consistent copy to `path`, atomically, while others may read and write."""
        self.store.snapshot(path)

    def restore(self, path: StrPath) -> None:
        """Replace the content by that of a snapshot."""
        self.store.restore(path)

    def stats(self) -> dict[str, float]:
        """See `TipStore.stats`."""
        return self.store.stats()

    def close(self) -> None:
        """Close the store. Twice is fine."""
        self.store.close()


def build_addition(tip: Tip) -> OwnerChange:
    """The owner added a tip, which has its id."""
    assert tip.id is not None, "stored tips have an id"
    return OwnerChange(tip.id, {name: getattr(tip, name) for name in COLUMNS})


def _build_page_query(condition: str, order: Sequence[str]) -> str:
    """The query of what makes a page."""
    by = ", ".join([*(ORDERS[name] for name in order), "age DESC"])
    return (
        f"SELECT id, vector, score, support, age, {', '.join(READER_COLUMNS)} FROM tips "  # noqa: S608 (constants)
        f"WHERE {condition} ORDER BY {by}"
    )


def parse_tip_row(row: Sequence[Any]) -> Tip:
    """Make the tip of a row of `SELECT`."""
    fields = dict(zip(("id", *COLUMNS), row, strict=True))
    try:
        return Tip(**fields | {name: bool(fields[name]) for name in ("imported", "enabled")})
    except ValueError as error:
        raise MemoryStoreError(f"the memory is damaged (tip {row[0]}: {error}): {schema.REPAIR_HINT}") from error


def _placeholders(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _encode_vector(vector: Floats) -> bytes:
    return vector.astype("<f4").tobytes()

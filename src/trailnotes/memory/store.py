"""The rows of a memory file: tips, the results of their readers, attempts, and values under keys.

Every write is one transaction: a killed process loses at most the write in flight. `tips.py` decides on duplicates,
capacity and order; this module only stores rows.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from trailnotes.memory import schema
from trailnotes.memory.index import BM25Index, ExactIndex
from trailnotes.memory.retrieval import Floats
from trailnotes.memory.schema import Closeable, EmbedderIdentity, MemoryFile, translate_errors
from trailnotes.memory.scope import ALL_TIPS, TaskTable, TipFilter, make_tip_filter
from trailnotes.memory.tip_stats import Doubles, ReaderStats, TipExposure
from trailnotes.types import StrPath, Tip, replace_surrogates

T = TypeVar("T")
CACHE_SIZE = 256  # sizes and pages of tips
COLUMNS = (
    *("namespace", "text", "key", "score", "max_score", "action", "support", "step"),
    *("model", "version", "run", "created", "imported", "enabled"),
)
SELECT_TIP = f"SELECT id, {', '.join(COLUMNS)} FROM tips"  # noqa: S608 (constants)
SELECT_ITEM = "SELECT namespace, key, value, tip, created, updated FROM items"
SCORE_SHARE = "score / CASE WHEN max_score > 0 THEN max_score ELSE 1 END"  # games differ in their highest score
ORDERS = {"score": f"{SCORE_SHARE} DESC", "support": "support DESC", "recency": "age DESC"}
OLDEST = {"oldest": "age ASC"}  # an order that has no column of its own
# The worth is `mean_gain`.
LIST_ORDERS = {"recency": "age", "score": SCORE_SHARE, "shown": "shown", "worth": "gained / (1.0 + compared)"}
READER_COLUMNS = ReaderStats._fields  # columns that `update` keeps: results of the tip, not the tip
DISTILLED: Final = "distilled"  # beside the rules of `memory.retire`
EVICTION_ORDERS: Final = {"oldest": "age", "least_used": "shown, age", "least_worth": f"{schema.WORTH_SQL}, age"}
RETIREMENT_COLUMNS: Final = ("retired", "retired_at", "retired_on", "retired_by")  # of a `Retirement`
CLEAR_RETIREMENT: Final = "retired = '', retired_at = 0, retired_on = '', retired_by = '', merged_into = 0"


@dataclass(slots=True)
class TipPage:
    """The searchable enabled tips of a namespace or filter. Row numbers of `index` are positions in `ids`."""

    ids: tuple[int, ...]  # best first, in the order of the page
    columns: dict[str, Doubles]  # "score", "support", "recency" and those of `READER_COLUMNS`: float64 (n,)
    index: ExactIndex
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


class Retirement(NamedTuple):
    """The reason why a tip is no longer searched."""

    rule: str  # of `memory.retire`, or `DISTILLED`
    write: int  # number of the write that retired it
    on: str  # ISO 8601, UTC; information only
    by: str  # the setting or the measure that decided


class OwnerChange(NamedTuple):
    """One manual change of the owner to a tip."""

    tip_id: int
    fields: dict[str, Any] | None  # those set; None: deleted

    @property
    def is_addition(self) -> bool:
        return self.fields is not None and self.fields.keys() >= set(COLUMNS)


class TipStore(MemoryFile):
    """The rows of one memory file; `tasks` knows who may read which tips."""

    def __init__(self, path: StrPath | None, identity: EmbedderIdentity | None = None) -> None:
        super().__init__(path, identity)
        self._cache: OrderedDict[Any, Any] = OrderedDict()  # sizes and pages
        self._cache_state = (-1, -1)  # of the file, that they belong to
        self._on_rollback()

    def load_tips(self, namespace: str | None = None, *, after: int = 0) -> list[Tip]:
        """Return the tips, oldest first: of all namespaces or one, and only those written since `after`."""
        where, values = ("AND namespace = ?", (namespace,)) if namespace is not None else ("", ())
        rows = self.query(f"{SELECT_TIP} WHERE age > ? {where} ORDER BY age", (after, *values))
        return [parse_tip_row(row) for row in rows]

    def list_sorted(self, namespace: str | None, by: str, limit: int = 0, *, retired: bool | None = None) -> list[Tip]:
        """List all tips, or those (not) retired, by a key of `LIST_ORDERS`, then the newest; `limit` 0 gives all."""
        kept = {None: "TRUE", True: "retired_at > 0", False: "retired_at = 0"}[retired]
        where, values = ("AND namespace = ?", [namespace]) if namespace is not None else ("", [])
        sql = f"{SELECT_TIP} WHERE {kept} {where} ORDER BY {LIST_ORDERS[by]} DESC, age DESC LIMIT ?"
        return [parse_tip_row(row) for row in self.query(sql, [*values, min(limit, 2**31) or -1])]

    def get_tip(self, tip_id: int) -> Tip | None:
        return next(map(parse_tip_row, self.query(f"{SELECT_TIP} WHERE id = ?", (tip_id,))), None)

    def get_best_score(self, namespace: str) -> tuple[float, float]:
        """Return score and highest possible score of the best tip of a namespace: 1 of 1 where there is none.

        Where these differ, a tip of the owner was there before the first of a run, which knows the highest.
        """
        sql = "SELECT score, max_score FROM tips WHERE namespace = ? ORDER BY max_score DESC, score DESC LIMIT 1"
        return next(iter(self.query(sql, (namespace,))), (1.0, 1.0))

    def load_reader_stats(self, tip_id: int | None = None) -> dict[int, ReaderStats]:
        where, values = ("WHERE id = ?", (tip_id,)) if tip_id is not None else ("", ())
        rows = self.query(f"SELECT id, {', '.join(READER_COLUMNS)} FROM tips {where} ORDER BY id", values)  # noqa: S608 (constants)
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
        return dict(self.query(sql, (*place.values, *place.values)))

    def load_retirements(self, tip_id: int | None = None) -> dict[int, Retirement]:
        where, values = ("id = ?", (tip_id,)) if tip_id is not None else ("retired_at > 0", ())
        sql = f"SELECT id, {', '.join(RETIREMENT_COLUMNS)} FROM tips WHERE {where}"  # noqa: S608 (constants)
        return {tip: Retirement(*mark) for tip, *mark in self.query(f"{sql} AND retired <> '' ORDER BY id", values)}

    def select_victims(self, pool: TipFilter, rule: str, count: int, *, spared: int = 0) -> list[int]:
        """Return ids of `count` enabled tips by a rule of `EVICTION_ORDERS`, without the `spared` newest."""
        enabled = f"{pool.condition} AND enabled"
        where, values = enabled, list[str | float](pool.values)
        if spared:
            newest = f"SELECT age FROM tips WHERE {enabled} ORDER BY age DESC LIMIT ?"  # noqa: S608 (constants)
            where = f"{where} AND +age < (SELECT MIN(age) FROM ({newest}))"  # noqa: S608 (constants)
            values += [*pool.values, spared]
        sql = f"SELECT id FROM tips WHERE {where} ORDER BY {EVICTION_ORDERS[rule]} LIMIT ?"  # noqa: S608 (constants)
        return [tip for (tip,) in self.query(sql, [*values, count])]

    def size(self, place: str | TipFilter) -> int:
        """Return the number of enabled tips of a namespace or filter, without counting them."""
        place = make_tip_filter(place)
        sql = f"SELECT COALESCE(SUM(enabled), 0) FROM sizes WHERE {place.condition}"  # noqa: S608 (constants)
        return self._get_cached(place, lambda: int(self.query(sql, place.values)[0][0]))

    def sizes(self) -> dict[str, int]:
        """Return the number of enabled tips of each namespace that has any, sorted by name, without counting."""
        return dict(self.query("SELECT namespace, enabled FROM sizes WHERE enabled > 0 ORDER BY namespace"))

    def load_owner_changes(self, *, after: int) -> list[OwnerChange]:
        """Return the owner's changes since the change of that number, the oldest first."""
        rows = self.query("SELECT tip, fields FROM owner_changes WHERE number > ? ORDER BY number", (after,))
        return [OwnerChange(tip, fields and json.loads(fields)) for tip, fields in rows]

    def find_duplicate(self, tip: Tip, *, same: Sequence[str] = (), among_own: bool = False) -> int | None:
        """Return the row with the same text in the same namespace, imported or own as `tip` is, or `among_own` rows.

        `same` are further columns in which it must equal `tip`.
        """
        whose = "(imported = ? OR retired = '')" if among_own else "imported = ?"
        sql = f"SELECT id FROM tips WHERE namespace = ? AND text = ? AND {whose}"  # noqa: S608 (constants)
        values: tuple[Any, ...] = (tip.namespace, tip.text, tip.imported)
        for column in same:
            sql, values = f"{sql} AND {column} = ?", (*values, getattr(tip, column))
        rows = self.query(f"{sql} ORDER BY id LIMIT 1", values)
        return int(rows[0][0]) if rows else None

    def load_page(self, namespace: str | TipFilter, order: Sequence[str]) -> TipPage:
        """Return the enabled tips by `order` (keys of `ORDERS`), then the newest; cached until any process writes."""
        place = make_tip_filter(namespace)
        columns = ", ".join(("id", "vector", SCORE_SHARE, "support", "age", *READER_COLUMNS))
        by = ", ".join([*((ORDERS | OLDEST)[name] for name in order), "age DESC"])
        sql = f"SELECT {columns} FROM tips WHERE {place.condition} AND enabled ORDER BY {by}"  # noqa: S608 (constants)
        return self._get_cached((place, *order), lambda: self._build_page(self.query(sql, place.values)))

    def fetch(self, page: TipPage, positions: Sequence[int]) -> list[Tip]:
        """Return the tips at `positions` of a page, without those deleted a moment ago."""
        ids = [page.ids[position] for position in positions]
        rows = self.query(f"{SELECT_TIP} WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(ids),))  # noqa: S608
        tips = {row[0]: parse_tip_row(row) for row in rows}
        return [tips[tip_id] for tip_id in ids if tip_id in tips]

    def score_words(self, page: TipPage, query: str) -> Doubles:
        if page.words is None:
            sql = "SELECT id, key FROM tips WHERE id IN (SELECT value FROM json_each(?))"
            keys = dict(self.query(sql, (json.dumps(page.ids),)))
            page.words = BM25Index([keys.get(tip_id, "") for tip_id in page.ids])
        return page.words.score(query)

    def stats(self) -> dict[str, float]:
        """Return counts, of which `support` is of writes with repeats; retired tips count as such alone."""
        ((total, *counts),) = self.query(
            "SELECT COUNT(*), COUNT(NULLIF(retired_at = 0, 0)), COALESCE(SUM(enabled), 0), "
            "COALESCE(SUM(imported AND retired_at = 0), 0), "
            "COUNT(DISTINCT CASE WHEN retired_at = 0 THEN namespace END), "
            "COALESCE(SUM(support * (retired_at = 0)), 0) FROM tips"
        )
        pages = self.query("PRAGMA page_count")[0][0] - self.query("PRAGMA freelist_count")[0][0]
        size = pages * self.query("PRAGMA page_size")[0][0]
        names = ("tips", "enabled", "imported", "namespaces", "support", "retired", "bytes")
        return dict(zip(names, map(float, (*counts, total - counts[0], size)), strict=True))

    def enable_all(self, *, enabled: bool) -> int:
        """Enable or disable all tips that are not retired, as a change of their owner; return how many changed."""
        where, fields = "WHERE enabled <> ? AND retired_at = 0", json.dumps({"enabled": enabled})
        with self.transaction():
            self.write(f"INSERT INTO owner_changes (tip, fields) SELECT id, ? FROM tips {where}", (fields, enabled))  # noqa: S608
            return self.write(f"UPDATE tips SET enabled = 1 - enabled {where}", (enabled,)).rowcount  # noqa: S608

    # writing, inside `with store.transaction():`

    def insert(self, tip: Tip, vector: Floats, tip_id: int | None = None) -> int:
        values = [getattr(tip, name) for name in COLUMNS]
        columns = ("id", *COLUMNS, "vector", "age")
        sql = f"INSERT INTO tips ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
        cursor = self.write(sql, (tip_id, *values, _encode_vector(vector), self._advance_sequence()))
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
        self.write(f"UPDATE tips SET {assignments} WHERE id = ?", (*values, tip.id))  # noqa: S608

    def retire(self, ids: Iterable[int], rule: str, by: str, *, on: str = "") -> int:
        """Stop searching these enabled tips, and mark them, as a numbered write; return their number."""
        sql = (
            "UPDATE tips SET enabled = 0, retired = ?, retired_at = ?, retired_on = ?, retired_by = ? "
            "WHERE id = ? AND enabled"
        )
        mark = (rule, self.sequence + 1, on, by)
        retired = sum(self.write(sql, (*mark, tip_id)).rowcount for tip_id in ids)
        if retired:
            self._advance_sequence()
        return retired

    def record_exposures(self, readings: Iterable[TipExposure]) -> None:
        """Count readers of the tips that still exist, as a numbered write, which a run that rewinds notices."""
        sql = (
            "UPDATE tips SET shown = shown + 1, earned = earned + ?, compared = compared + ?, gained = gained + ?, "
            "used = ? WHERE id = ?"
        )
        number = self.sequence + 1
        rows = [(earned, gained is not None, gained or 0.0, number, tip) for tip, earned, gained in readings]
        if sum(self.write(sql, row).rowcount for row in rows):
            self._advance_sequence()

    def insert_attempt(self, name: str, namespace: str, tips: Sequence[int], kept: int) -> None:
        """Insert an attempt that reads `tips`, and delete those before the `kept` newest."""
        values = (name, replace_surrogates(namespace), json.dumps(list(tips)))
        with self._keep_cache():
            number = self.write("INSERT INTO attempts (id, namespace, tips) VALUES (?, ?, ?)", values).lastrowid or 0
            self.write("DELETE FROM attempts WHERE number <= ?", (number - kept,))

    def finish_attempt(self, name: str, earned: float, task: str | None = None) -> tuple[str, list[int]] | None:
        """Record what an attempt earned, 0 to 1; return its task and tips, None if none such (at `task`) is open."""
        sql = "UPDATE attempts SET earned = ? WHERE id = ? AND earned IS NULL AND namespace = IFNULL(?, namespace)"
        with self._keep_cache():
            rows = self.query(f"{sql} RETURNING namespace, tips", (earned, name, task))
        return next(((namespace, json.loads(tips)) for namespace, tips in rows), None)

    def load_attempts(self, namespace: str, limit: int, *, without: str = "") -> list[tuple[set[int], float]]:
        """Return the tips and earnings of the newest finished attempts at a task, but for one."""
        sql = (
            "SELECT tips, earned FROM attempts WHERE namespace = ? AND earned IS NOT NULL AND id <> ? "
            "ORDER BY number DESC LIMIT ?"
        )
        return [(set(json.loads(tips)), earned) for tips, earned in self.query(sql, (namespace, without, limit))]

    def count_events(self) -> int:
        """Count writes and attempts: a number that changes from one search to the next, wherever they are reported."""
        ((attempts,),) = self.query("SELECT COALESCE(MAX(number), 0) FROM attempts")
        return self.sequence + int(attempts)

    def load_items(self, namespace: str | None = None, key: str = "") -> list[ItemRow]:
        where, values = ("WHERE namespace = ? AND key = ?", (namespace, key)) if namespace is not None else ("", ())
        return [ItemRow(*row) for row in self.query(f"{SELECT_ITEM} {where} ORDER BY rowid", values)]

    def put_item(self, namespace: str, key: str, value: str | None, tip: int | None) -> None:
        """Insert an item, or replace its value and tip; delete it where the value is None."""
        if value is None:
            self.write("DELETE FROM items WHERE namespace = ? AND key = ?", (namespace, key))
            return
        sql = (
            "INSERT INTO items VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value, "
            "tip = excluded.tip, updated = excluded.updated"
        )
        self.write(sql, (namespace, key, value, tip, time.time(), time.time()))

    def record_effects(self, leads: Iterable[tuple[int, float]], window: int) -> None:
        """Record by how many nats tips made actions likelier: a mean of `window` readers, then a moving average."""
        sql = "UPDATE tips SET measured = measured + 1, lead = lead + (? - lead) / MIN(measured + 1, ?) WHERE id = ?"
        if sum(self.write(sql, (lead, window, tip)).rowcount for tip, lead in leads):
            self._advance_sequence()

    def delete(self, ids: Iterable[int]) -> int:
        return sum(self.write("DELETE FROM tips WHERE id = ?", (tip_id,)).rowcount for tip_id in ids)

    def record_owner_change(self, change: OwnerChange) -> None:
        """Record a change of the owner, for a run that rewinds to an earlier snapshot."""
        fields = None if change.fields is None else json.dumps(change.fields, ensure_ascii=False)
        self.write("INSERT INTO owner_changes (tip, fields) VALUES (?, ?)", (change.tip_id, fields))

    def set_vectors(self, identity: EmbedderIdentity, tips: Sequence[Tip], vectors: Floats) -> None:
        for tip, vector in zip(tips, vectors, strict=True):
            self.write("UPDATE tips SET vector = ? WHERE id = ?", (_encode_vector(vector), tip.id))
        schema.write_identity(self.connection, identity)
        self.write(schema.NEW_ERA)

    def restore(self, path: StrPath) -> None:
        """Replace the content by that of a snapshot, in one transaction, or raise `MemoryStoreError`."""
        with self.lock, schema.open_snapshot(Path(path)) as source:
            schema.require_identity(schema.read_identity(source), self.identity, Path(path))
            with translate_errors(self.path):
                source.backup(self.connection)
                schema.migrate(self.connection)
                self.connection.execute(schema.NEW_ERA)
            self._cache.clear()

    def _on_rollback(self) -> None:
        """Begin without anything read so far: it may be of undone writes, whose numbers the next ones get."""
        self.tasks = TaskTable(self)
        self._cache.clear()

    def _get_cached(self, slot: Hashable, compute: Callable[[], T]) -> T:
        """Return what `compute` returned for this slot, or returns now if any process has written since."""
        with self.lock:
            state = (self.query("PRAGMA data_version")[0][0], self.connection.total_changes)
            if state != self._cache_state:
                self._cache_state = state
                self._cache.clear()
            if slot not in self._cache:
                self._cache[slot] = compute()
            self._cache.move_to_end(slot)
            while len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
            return cast("T", self._cache[slot])

    @contextmanager
    def _keep_cache(self) -> Iterator[None]:
        """Keep what is cached over writes that change no tip, such as the attempts of every session."""
        version, changes = self._cache_state
        is_current = changes == self.connection.total_changes
        yield
        if is_current:
            self._cache_state = (version, self.connection.total_changes)

    def _build_page(self, rows: Sequence[Sequence[Any]]) -> TipPage:
        names = (*ORDERS, *READER_COLUMNS)
        ids, vectors, *numbers = zip(*rows, strict=True) if rows else ((), (), *((),) * len(names))
        columns = {name: np.array(column, float) for name, column in zip(names, numbers, strict=True)}
        return TipPage(tuple(ids), columns, ExactIndex(_decode_vectors(vectors, self.identity.dim)))


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


def parse_tip_row(row: Sequence[Any]) -> Tip:
    fields = dict(zip(("id", *COLUMNS), row, strict=True))
    return Tip(**fields | {name: bool(fields[name]) for name in ("imported", "enabled")})


def _encode_vector(vector: Floats) -> bytes:
    return vector.astype("<f4").tobytes()


def _decode_vectors(blobs: Sequence[bytes], dim: int) -> Floats:
    return np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), dim).astype(np.float32, copy=False)

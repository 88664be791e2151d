"""The memory file with its index: which tips are near, by what SQLite says is there now.

The index catches up with the file whenever it is asked: rows written since, by anybody, and those that their owner
switched on. What it finds counts only if the file still has it, enabled.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trailnotes.errors import MemoryStoreError
from trailnotes.memory import schema
from trailnotes.memory.index import IndexStamp, TipIndex, sample_size
from trailnotes.memory.openfile import MemoryFile
from trailnotes.memory.schema import EmbedderIdentity, translate_errors
from trailnotes.memory.scope import TipFilter, make_tip_filter

if TYPE_CHECKING:
    from trailnotes.memory.retrieval import Floats
    from trailnotes.types import StrPath

CHUNK_ROWS = 4096  # rows read at once
MAX_UNSAVED = 4096  # rows that the next opening may have to read again
ID_CONDITION = "id IN (SELECT value FROM json_each(?))"
SELECT_REMOVED = """
    SELECT id FROM tips WHERE retired_at > ? AND retired_at > 0
    UNION SELECT tip FROM owner_changes WHERE number > ? AND fields IS NULL
"""
SWITCHED_CONDITION = "id IN (SELECT tip FROM owner_changes WHERE number > ?)"


class IndexedFile(MemoryFile):
    """Rows of a memory file, and the index that finds those near a vector. It is made once somebody asks for it."""

    def __init__(self, path: StrPath | None, identity: EmbedderIdentity | None = None) -> None:
        super().__init__(path, identity)
        self._index: TipIndex | None = None
        self._sizes: dict[TipFilter, int] = {}
        self._sizes_of = (-1, -1)  # the state of the file that these are of

    def size(self, place: str | TipFilter) -> int:
        """Number of enabled tips of a namespace or place, told without counting them."""
        place = make_tip_filter(place)
        with self._lock:
            state = (self._query("PRAGMA data_version")[0][0], self._connection.total_changes)
            if state != self._sizes_of:  # somebody has written, another or this one
                self._sizes_of = state
                self._sizes.clear()
            if place not in self._sizes:
                self._sizes[place] = self._sum_enabled(place.condition, place.values)
            return self._sizes[place]

    def sizes(self) -> dict[str, int]:
        """Number of enabled tips of each namespace that has any, in the order of the names, told without counting."""
        return dict(self._query("SELECT namespace, enabled FROM sizes WHERE enabled > 0 ORDER BY namespace"))

    def find_nearest(self, place: TipFilter, vector: Floats, count: int, select: str) -> list[Any]:
        """Rows of about the `count` enabled tips of a place whose vectors are nearest to `vector` (dim,).

        `select` is a query of tips whose condition is `named(place)`. Fewer are found only where there are fewer.
        """
        with self._lock:
            if not (size := self.size(place)):
                return []
            index, everywhere = self._update_index(), False
            asked = ceil(count * len(index) / size)
            while True:
                found = index.search(vector, asked, everywhere=everywhere)
                rows = self._query(select, (json.dumps(found), *place.values))
                if len(rows) >= min(count, size) or (everywhere and asked >= len(index)):
                    return rows
                if len(found) < asked:
                    everywhere = True
                else:
                    asked *= 4

    def close(self) -> None:
        """Close the file, and save the index if it has learnt much. Twice is fine."""
        index, self._index = self._index, None
        if index is not None and self.path is not None and index.unsaved >= MAX_UNSAVED:
            index.save(_get_index_path(self.path))
        super().close()

    def _on_rollback(self) -> None:
        """What is undone gives its numbers to what comes next: an index that has seen it is of no use."""
        super()._on_rollback()
        self._sizes.clear()
        if self._index is not None and self._index.stamp.written > schema.read_sequence(self._connection):
            self._index = None

    def _on_transaction_end(self) -> None:
        """Who writes puts it into the index, too, so that the next search need not; one to build anew waits for it."""
        index = self._index
        if (
            index is not None
            and self._is_before(index.stamp, now := self._read_stamp())
            and index.is_suitable_for(self._num_enabled())
        ):
            self._apply_changes(index, now)

    def _update_index(self) -> TipIndex:
        """The index, with all that was written up to now."""
        now, index = self._read_stamp(), self._index
        if index is not None and index.stamp == now:
            return index
        if index is None and self.path is not None:
            index = TipIndex.load(_get_index_path(self.path), now)
        size = self._num_enabled()
        if index is None or not self._is_before(index.stamp, now) or not index.is_suitable_for(size):
            index = TipIndex.create(now._replace(written=0, changed=0), self._sample_vectors(sample_size(size)), size)
        is_new = not len(index)
        self._apply_changes(index, now)
        self._index = index
        if is_new:
            index.tune(self._sample_vectors(CHUNK_ROWS))
        if index.unsaved >= max(MAX_UNSAVED, len(index) // 8) and self.path and not self._connection.in_transaction:
            index.save(_get_index_path(self.path))
        return index

    def _apply_changes(self, index: TipIndex, now: IndexStamp) -> None:
        """Take out of an index what has gone since, and put what it lacks."""
        index.mark_removed([tip for (tip,) in self._query(SELECT_REMOVED, (index.stamp.written, index.stamp.changed))])
        for ids, vectors in self._iter_written_since(index.stamp):
            index.insert(ids, vectors)
        index.stamp = now

    def _num_enabled(self) -> int:
        """Number of enabled tips."""
        return self._sum_enabled("TRUE", ())

    def _sum_enabled(self, condition: str, values: Sequence[Any]) -> int:
        """Number of enabled tips of a condition. A large file is not counted when it is opened: see `schema._check`."""
        sql = f"""
            SELECT COALESCE(SUM(enabled), 0) AS enabled, COALESCE((SELECT MAX(id) FROM tips), 0) AS last
            FROM sizes WHERE {condition}
        """  # noqa: S608 (constants)
        ((enabled, last),) = self._query(sql, values)
        if not 0 <= enabled <= last:
            raise MemoryStoreError(f"the memory is damaged (malformed sizes): {schema.REPAIR_HINT}")
        return int(enabled)

    def _read_stamp(self) -> IndexStamp:
        with translate_errors(self.path):
            at = schema.read_sequence(self._connection), schema.read_last_change(self._connection)
            return IndexStamp(
                *schema.read_identity(self._connection), schema.read_lineage(self._connection),
                schema.read_era(self._connection), *at, schema.read_session(self._connection, *at),
            )  # fmt: skip

    def _is_before(self, stamp: IndexStamp, now: IndexStamp) -> bool:
        """Whether the file was once as `stamp` says, so that what was written since is all that an index lacks."""
        with translate_errors(self.path):
            session = schema.read_session(self._connection, stamp.written, stamp.changed)
        return stamp.is_ancestor_of(now) and stamp.session == session

    def _iter_written_since(self, seen: IndexStamp) -> Iterator[tuple[list[int], Floats]]:
        """Enabled tips that an index of the stamp `seen` lacks, in pieces. One may come twice."""
        yield from self._iter_vectors("age > ?", seen.written)
        yield from self._iter_vectors(f"age <= ? AND {SWITCHED_CONDITION}", seen.written, seen.changed)

    def _sample_vectors(self, count: int) -> Floats:
        """Vectors (n, dim) of some `count` enabled tips drawn at random, the same each time."""
        last = self._query("SELECT MAX(id) FROM tips")[0][0]
        drawn = random.Random(0).sample(range(1, last + 1), min(last, ceil(1.2 * count * last / self._num_enabled())))
        return np.concatenate([vectors for _, vectors in self._iter_vectors(ID_CONDITION, json.dumps(drawn))])

    def _iter_vectors(self, condition: str, *values: object) -> Iterator[tuple[list[int], Floats]]:
        """Ids and vectors (n, dim) of the enabled tips of a condition, in pieces of `CHUNK`."""
        with translate_errors(self.path):
            sql = f"SELECT id, vector FROM tips WHERE enabled AND {condition}"  # noqa: S608 (constants of this module)
            dim = schema.read_identity(self._connection).dim
            cursor = self._connection.execute(sql, values)
            while rows := cursor.fetchmany(CHUNK_ROWS):
                schema.check_rows(cursor, rows)
                yield [row[0] for row in rows], decode_vectors([row[1] for row in rows], dim)


def build_id_condition(place: TipFilter) -> str:
    """The condition of those enabled tips of a place whose ids are named."""
    return (
        f"{ID_CONDITION} AND +{place.condition} AND enabled"  # the plus keeps SQLite from going through the whole place
    )


def decode_vectors(blobs: Sequence[bytes], dim: int) -> Floats:
    """Vectors as the file holds them, as float32 (len(blobs), dim).

    Raises:
        MemoryStoreError: one has another length, or a number that is not finite.
    """
    if {len(blob) for blob in blobs} <= {4 * dim}:
        vectors = np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), dim).astype(np.float32, copy=False)
        if np.isfinite(vectors).all():
            return vectors
    raise MemoryStoreError(f"the memory is damaged (malformed vector): {schema.REPAIR_HINT}")


def _get_index_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-index")

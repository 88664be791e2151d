"""The index beside a large memory file: approximate nearest neighbours, in milliseconds among a million tips.

An inverted file with product quantisation (faiss) stores each vector, at two bits a number, in the list of its nearest
centroid; a query visits the nearest lists, and the caller compares the full vectors of the results. The index file is a
cache: one that is cut short, damaged, or of other rows is rebuilt, and so is one that another user made, since faiss
also reads indexes that name a file to write to. Each is signed with a key of this user, and its signature is checked
before faiss reads it. SQLite remains the truth: the index catches up with the file at every query, and a result counts
only if the file still has it, enabled. docs/results/memory-scale.md has the measurements behind this choice.
"""

from __future__ import annotations

import functools
import hmac
import importlib.util
import json
import logging
import random
from collections.abc import Iterator, Sequence
from itertools import chain, takewhile
from math import ceil, log2
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from trailnotes.errors import MemoryStoreError
from trailnotes.memory import schema
from trailnotes.memory.retrieval import Floats
from trailnotes.memory.schema import EmbedderIdentity, MemoryFile, translate_errors
from trailnotes.memory.scope import TipFilter, make_tip_filter
from trailnotes.storage.files import load_user_key, parse_json, write_bytes_atomic
from trailnotes.types import StrPath

logger = logging.getLogger(__name__)

MAGIC = b"trailnotes index 2\n"
SIGNATURE_BYTES = 32  # bytes
FAISS_FOURCC = b"IwPf"  # the library's mark of the only kind of index that `TipIndex.create` makes
SAMPLE_PER_LIST = 40  # vectors that place a centroid
MIN_CENTROID_SAMPLE = 64  # the fewest that the library accepts for any centroids
MAX_GROWTH = 4  # times the planned tips: from there on the index is rebuilt
TUNING_QUERIES = 100  # queries that tune the number of visited lists
TUNING_NEIGHBORS = 10  # neighbours of each of these queries
REMOVAL_DIVISOR = 32  # removals are flushed when one in so many rows is gone
MIN_SCANNED_VECTORS = 25_000  # that a search always compares: a millisecond with cold caches
TARGET_RECALL = 0.99  # share of the neighbours found, each query's own vector included
CHUNK_ROWS = 4096  # rows read at once
MAX_UNSAVED = 4096  # rows that the next opening may have to read again
ID_CONDITION = "id IN (SELECT value FROM json_each(?))"
SELECT_REMOVED = """
    SELECT id FROM tips WHERE retired_at > ? AND retired_at > 0
    UNION SELECT tip FROM owner_changes WHERE number > ? AND fields IS NULL
"""
SWITCHED_CONDITION = "id IN (SELECT tip FROM owner_changes WHERE number > ?)"


class IndexStamp(NamedTuple):
    """The state of the memory file that an index covers."""

    embedder: str
    dim: int
    lineage: str
    era: str  # changes when rows are exchanged for others
    written: int = 0  # number of the last write that it has seen
    changed: int = 0  # number of the owner's last change that it has seen
    session: str = ""  # random name of the session that wrote these: see `schema.read_session`

    def is_ancestor_of(self, later: IndexStamp) -> bool:
        """Return whether an index of this stamp lacks only what was written since."""
        return self[:4] == later[:4] and self.written <= later.written and self.changed <= later.changed


class TipIndex:
    """An approximate index (faiss's `lists`) of tip ids by their vectors, made for `planned` tips.

    Removals are batched, since each pass goes through all lists; the old vector of an id that comes again stays. The
    caller knows which ids exist, and rebuilds the index once it is much larger than that.
    """

    def __init__(self, stamp: IndexStamp, lists: Any, planned: int) -> None:
        self.stamp = stamp
        self.planned = planned
        self.unsaved = 0  # vectors inserted since it was loaded or saved
        self._lists = lists
        self._gone: set[int] = set()  # removed ids that are still in the lists

    @classmethod
    def create(cls, stamp: IndexStamp, sample: Floats, planned: int) -> Self:
        """Make an index for about `planned` tips, trained on `sample` (n, dim), n about `SAMPLE_PER_LIST` a list."""
        faiss = _load_faiss()
        codes = stamp.dim // 2 if stamp.dim % 2 == 0 else stamp.dim  # of four bits each: of two numbers, or one
        layout = f"IVF{_num_lists(planned)},PQ{codes}x4fs"
        lists = faiss.index_factory(stamp.dim, layout, faiss.METRIC_INNER_PRODUCT)
        lists.cp.spherical, lists.cp.niter, lists.cp.max_points_per_centroid = True, 5, SAMPLE_PER_LIST
        lists.cp.min_points_per_centroid = lists.pq.cp.min_points_per_centroid = 1  # or it prints of small samples
        least = (max(MIN_CENTROID_SAMPLE, len(sample)), stamp.dim)
        lists.train(np.resize(sample, least))  # repeated where they are too few
        return cls(stamp, lists, planned)

    @classmethod
    def load(cls, path: Path, now: IndexStamp) -> Self | None:
        """Load the index of a file; None where it is damaged or does not lead to the state `now`."""
        try:
            with path.open("rb") as file:
                if file.readline(len(MAGIC)) != MAGIC:
                    raise ValueError("not an index")  # noqa: TRY301 (all faults are one case)
                line = file.readline()
                header = parse_json(line)
                stamp, planned = IndexStamp(*header["stamp"]), int(header["planned"])
                if not stamp.is_ancestor_of(now):
                    return None
                signature = file.read(SIGNATURE_BYTES)
                payload = np.fromfile(file, np.uint8)
            if not hmac.compare_digest(signature, _sign(line, payload)) or payload[:4].tobytes() != FAISS_FOURCC:
                raise ValueError("cut short, changed, or made by another user")  # noqa: TRY301
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s is damaged (%s): it is built again", path, error)
            return None
        return cls(stamp, _load_faiss().deserialize_index(payload), planned)

    def save(self, path: Path) -> None:
        """Write the file atomically; a full disk costs only time later."""
        self._flush_removals()
        payload = _load_faiss().serialize_index(self._lists)
        line = json.dumps({"stamp": self.stamp, "planned": self.planned}).encode() + b"\n"
        try:
            write_bytes_atomic(path, b"".join((MAGIC, line, _sign(line, payload), payload.data)))
        except OSError as error:
            logger.warning("%s was not written (%s): it is built again when it is needed", path, error.strerror)
        self.unsaved = 0

    def __len__(self) -> int:
        return int(self._lists.ntotal)

    def is_suitable_for(self, size: int) -> bool:
        """Return whether it fits `size` tips: neither outgrown nor full of removed ones."""
        return size <= MAX_GROWTH * self.planned and len(self) <= 1.25 * size + SAMPLE_PER_LIST * self._lists.nlist

    def insert(self, ids: Sequence[int], vectors: Floats) -> None:
        """Insert tips with their vectors (len(ids), dim)."""
        _load_faiss()
        if not self._gone.isdisjoint(ids):
            self._flush_removals()  # or what comes again would go with what it was
        self._lists.add_with_ids(vectors, np.array(ids, np.int64))
        self.unsaved += len(ids)

    def mark_removed(self, ids: Sequence[int]) -> None:
        """Mark tips as removed; unknown ids are fine."""
        self._gone.update(ids)
        if len(self._gone) > max(MIN_CENTROID_SAMPLE, len(self) // REMOVAL_DIVISOR):
            self._flush_removals()

    def _flush_removals(self) -> None:
        if self._gone:
            faiss = _load_faiss()
            self._lists.remove_ids(faiss.IDSelectorBatch(np.array(sorted(self._gone), np.int64)))
            _clear_block_tails(faiss, self._lists)
            self._gone.clear()

    def search(self, vector: Floats, count: int, *, everywhere: bool = False) -> list[int]:
        """Return ids of the `count` vectors nearest to `vector` (dim,), approximately, the nearest first.

        There may be fewer, where the visited lists hold fewer, and an id may come twice. `everywhere` visits all lists.
        """
        faiss = _load_faiss()
        options = faiss.SearchParametersIVF(nprobe=self._lists.nlist if everywhere else self._lists.nprobe)
        _, ids = self._lists.search(vector[None], min(count, len(self)), params=options)
        return [tip_id for tip_id in ids[0].tolist() if tip_id >= 0]

    def tune(self, sample: Floats) -> None:
        """Visit as few lists as find `TARGET_RECALL` of what all of them would, measured on some vectors (n, dim).

        But visit lists of at least `MIN_SCANNED_VECTORS`: a query that is no tip lies further from its neighbours, and
        finds fewer of them than these tips do.
        """
        least = self._lists.nlist * MIN_SCANNED_VECTORS / max(1, len(self))
        queries = sample[:: max(1, len(sample) // TUNING_QUERIES)][:TUNING_QUERIES]
        whole = [set(self.search(query, TUNING_NEIGHBORS, everywhere=True)) for query in queries]
        steps = (round(2 ** (power / 2)) for power in range(4, 40))
        for probes in takewhile(lambda number: number < self._lists.nlist, (step for step in steps if step >= least)):
            self._lists.nprobe = probes
            nearest = [set(self.search(query, TUNING_NEIGHBORS)) for query in queries]
            found = sum(len(near & all_near) for near, all_near in zip(nearest, whole, strict=True))
            if found >= TARGET_RECALL * sum(map(len, whole)):
                return
        self._lists.nprobe = self._lists.nlist


def _sign(line: bytes, payload: Any) -> bytes:
    signing = hmac.new(load_user_key(), MAGIC + line, "sha256")
    signing.update(payload.data)
    return signing.digest()


def _clear_block_tails(faiss: Any, lists: Any) -> None:
    """Blank the unused slots of each list's last block.

    faiss 1.15 leaves removed codes there, and ORs later ones into them.
    """
    inverted = faiss.downcast_InvertedLists(lists.invlists)
    packer = inverted.packer
    blank = np.zeros(packer.code_size, np.uint8)
    for number in range(inverted.nlist):
        whole, used = divmod(inverted.list_size(number), packer.nvec)
        if used:
            codes = faiss.rev_swig_ptr(inverted.get_codes(number), (whole + 1) * packer.block_size)
            for place in range(used, packer.nvec):
                packer.pack_1(blank, place, codes[None, whole * packer.block_size :])


@functools.cache
def is_faiss_installed() -> bool:
    """Return whether the library behind the index is installed."""
    return importlib.util.find_spec("faiss") is not None


def _num_lists(planned: int) -> int:
    """Choose two to four times the root, at which a search among a million was fastest."""
    return int(2 ** (1 + ceil(log2(max(1, planned)) / 2)))


def _load_faiss() -> Any:
    import faiss

    faiss.omp_set_num_threads(1)  # of the calling thread: a search is too short to share among cores
    return faiss


class IndexedFile(MemoryFile):
    """The rows of a memory file with the index that finds those near a vector, made at the first query."""

    def __init__(self, path: StrPath | None, identity: EmbedderIdentity | None = None) -> None:
        super().__init__(path, identity)
        self._index: TipIndex | None = None
        self._sizes: dict[TipFilter, int] = {}
        self._sizes_of = (-1, -1)  # the state of the file that these belong to

    def size(self, place: str | TipFilter) -> int:
        """Return the number of enabled tips of a namespace or filter, without counting them."""
        place = make_tip_filter(place)
        with self._lock:
            state = (self._query("PRAGMA data_version")[0][0], self._connection.total_changes)
            if state != self._sizes_of:  # any process has written
                self._sizes_of = state
                self._sizes.clear()
            if place not in self._sizes:
                self._sizes[place] = self._sum_enabled(place.condition, place.values)
            return self._sizes[place]

    def sizes(self) -> dict[str, int]:
        """Return the number of enabled tips of each namespace that has any, sorted by name, without counting."""
        return dict(self._query("SELECT namespace, enabled FROM sizes WHERE enabled > 0 ORDER BY namespace"))

    def find_nearest(self, place: TipFilter, vector: Floats, count: int, select: str) -> list[Any]:
        """Return rows of about the `count` enabled tips in `place` whose vectors are nearest to `vector` (dim,).

        `select` is a query of tips with the condition `build_id_condition(place)`. Fewer rows mean that there are no
        more.
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
        """Close the file, and save the index if it has many new rows. Twice is fine."""
        index, self._index = self._index, None
        if index is not None and self.path is not None and index.unsaved >= MAX_UNSAVED:
            index.save(_get_index_path(self.path))
        super().close()

    def _on_rollback(self) -> None:
        """Drop an index that has seen the undone writes, whose numbers the next ones get."""
        super()._on_rollback()
        self._sizes.clear()
        if self._index is not None and self._index.stamp.written > schema.read_sequence(self._connection):
            self._index = None

    def _on_transaction_end(self) -> None:
        """Update the index, unless it must be rebuilt, to spare the next search."""
        if (index := self._index) is not None:
            now = self._read_stamp()
            if self._is_before(index.stamp, now) and index.is_suitable_for(self._sum_enabled()):
                self._apply_changes(index, now)

    def _update_index(self) -> TipIndex:
        now, index = self._read_stamp(), self._index
        if index is not None and index.stamp == now:
            return index
        if index is None and self.path is not None:
            index = TipIndex.load(_get_index_path(self.path), now)
        size = self._sum_enabled()
        if index is None or not self._is_before(index.stamp, now) or not index.is_suitable_for(size):
            index = TipIndex.create(
                now._replace(written=0, changed=0), self._sample_vectors(SAMPLE_PER_LIST * _num_lists(size)), size
            )
        is_new = not len(index)
        self._apply_changes(index, now)
        self._index = index
        if is_new:
            index.tune(self._sample_vectors(CHUNK_ROWS))
        if index.unsaved >= max(MAX_UNSAVED, len(index) // 8) and self.path and not self._connection.in_transaction:
            index.save(_get_index_path(self.path))
        return index

    def _apply_changes(self, index: TipIndex, now: IndexStamp) -> None:
        seen = index.stamp
        index.mark_removed([tip for (tip,) in self._query(SELECT_REMOVED, (seen.written, seen.changed))])
        missing = (  # one may come twice
            self._iter_vectors("age > ?", seen.written),
            self._iter_vectors(f"age <= ? AND {SWITCHED_CONDITION}", seen.written, seen.changed),
        )
        for ids, vectors in chain(*missing):
            index.insert(ids, vectors)
        index.stamp = now

    def _sum_enabled(self, condition: str = "TRUE", values: Sequence[Any] = ()) -> int:
        sql = f"""
            SELECT COALESCE(SUM(enabled), 0) AS enabled, COALESCE((SELECT MAX(id) FROM tips), 0) AS last
            FROM sizes WHERE {condition}
        """  # noqa: S608 (constants)
        ((enabled, last),) = self._query(sql, values)
        if not 0 <= enabled <= last:  # `schema._check_database` does not recount a large file
            raise MemoryStoreError(f"the memory is damaged (malformed sizes): {schema.REPAIR_HINT}")
        return int(enabled)

    def _read_stamp(self) -> IndexStamp:
        with translate_errors(self.path):
            connection = self._connection
            at = schema.read_sequence(connection), schema.read_last_change(connection)
            facts = schema.read_meta(connection, "lineage"), schema.read_meta(connection, "era")
            return IndexStamp(*schema.read_identity(connection), *facts, *at, schema.read_session(connection, *at))

    def _is_before(self, stamp: IndexStamp, now: IndexStamp) -> bool:
        with translate_errors(self.path):
            session = schema.read_session(self._connection, stamp.written, stamp.changed)
        return stamp.is_ancestor_of(now) and stamp.session == session

    def _sample_vectors(self, count: int) -> Floats:
        """Sample vectors (n, dim) of about `count` random enabled tips, the same each time."""
        last = self._query("SELECT MAX(id) FROM tips")[0][0]
        drawn = random.Random(0).sample(range(1, last + 1), min(last, ceil(1.2 * count * last / self._sum_enabled())))
        return np.concatenate([vectors for _, vectors in self._iter_vectors(ID_CONDITION, json.dumps(drawn))])

    def _iter_vectors(self, condition: str, *values: object) -> Iterator[tuple[list[int], Floats]]:
        with translate_errors(self.path):
            sql = f"SELECT id, vector FROM tips WHERE enabled AND {condition}"  # noqa: S608 (constants of this module)
            dim = schema.read_identity(self._connection).dim
            cursor = self._connection.execute(sql, values)
            while rows := cursor.fetchmany(CHUNK_ROWS):
                schema.check_rows(cursor, rows)
                yield [row[0] for row in rows], decode_vectors([row[1] for row in rows], dim)


def build_id_condition(place: TipFilter) -> str:
    """Return the SQL condition of the enabled tips in `place` whose ids are listed."""
    # the plus keeps SQLite from going through the whole place
    return f"{ID_CONDITION} AND +{place.condition} AND enabled"


def decode_vectors(blobs: Sequence[bytes], dim: int) -> Floats:
    """Decode stored vectors as float32 (len(blobs), dim).

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

"""Search: exact by vectors, by words (BM25), and by an approximate index beside a large memory file.

The approximate index is an inverted file with product quantisation (faiss): it stores each vector, at two bits a
number, in the list of its nearest centroid; a query visits the nearest lists, and the caller compares the full vectors
of the results. SQLite remains the truth: the index catches up with the file at every query, and a result counts only if
the file still has it, enabled. Its stamp, a row of the memory file, says which rows it covers; an index without a stamp
that fits is rebuilt. docs/results/memory-scale.md has the measurements behind this choice.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import random
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import ceil, log2
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from trailnotes.errors import MemoryStoreError
from trailnotes.memory import schema
from trailnotes.memory.retrieval import DECIMALS, Floats, split_words
from trailnotes.memory.schema import MemoryFile, translate_errors
from trailnotes.memory.scope import ALL_TIPS, TipFilter
from trailnotes.memory.tip_stats import Doubles
from trailnotes.storage.files import write_bytes_atomic

logger = logging.getLogger(__name__)
Ints = npt.NDArray[np.intp]

K1, B = 1.2, 0.75  # saturation of repeated words, and weight of a text's length, as Lucene has them
RANK_OFFSET = 60  # reciprocal ranks: how little the very first places count more than the next
SAMPLE_PER_LIST = 40  # vectors that place a centroid
MIN_CENTROID_SAMPLE = 64  # the fewest that the library accepts for any centroids
MAX_GROWTH = 4  # times the planned tips: from there on the index is rebuilt
TUNING_QUERIES = 100  # queries that tune the number of visited lists
TUNING_NEIGHBORS = 10  # neighbours of each of these queries
MIN_SCANNED_VECTORS = 25_000  # that a search always compares: a millisecond with cold caches
TARGET_RECALL = 0.99  # share of the true neighbours, each query's own vector included
CHUNK_ROWS = 4096  # rows read at once
MAX_UNSAVED = 4096  # rows that the next opening may have to read again
ID_CONDITION = "id IN (SELECT value FROM json_each(?))"
SELECT_STAMP = """
    SELECT (SELECT value FROM meta WHERE name = 'era'), (SELECT value FROM meta WHERE name = 'sequence'),
        (SELECT COALESCE(MAX(number), 0) FROM owner_changes)
"""


class ExactIndex:
    """An exact index of unit vectors (rows, dim), fast for some ten thousand rows."""

    def __init__(self, vectors: Floats) -> None:
        self.vectors = vectors

    def find_within(self, query: Floats, threshold: float) -> tuple[Ints, Floats]:
        """Return rows (n,) with a cosine of at least `threshold` to `query` (dim,), ascending, and these (n,)."""
        similarities = np.round(self.vectors @ query, DECIMALS)
        rows = np.flatnonzero(similarities >= np.float32(threshold))
        return rows, similarities[rows]


class BM25Index:
    """BM25 over texts.

    score(t) = sum over the query's distinct words w of idf(w) * f / (f + K1 * (1 - B + B * |t| / mean |t|)), f the
    count of w in t, idf(w) = ln(1 + (N - n + 1/2) / (n + 1/2)), n of the N texts hold w (Robertson and Zaragoza 2009,
    doi 10.1561/1500000019, in Lucene's form).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(split_words(text)) for text in texts]
        self._lengths = np.array([words.total() for words in counts], float)
        self._holders: dict[str, list[tuple[int, int]]] = {}  # word -> (row of a text, count)
        for row, words in enumerate(counts):
            for word, count in words.items():
                self._holders.setdefault(word, []).append((row, count))

    def score(self, query: str) -> Doubles:
        """Score all texts: (n,), 0 where no word is shared."""
        scores = np.zeros(len(self._lengths))
        mean = self._lengths.sum() / max(1, len(scores)) or 1.0
        for word in sorted(set(split_words(query)) & self._holders.keys()):
            rows, counts = np.array(self._holders[word]).T
            damping = K1 * (1 - B + B * self._lengths[rows] / mean)
            idf = np.log1p((len(scores) - len(rows) + 0.5) / (len(rows) + 0.5))
            scores[rows] += idf * counts / (counts + damping)
        return scores


def fuse_reciprocal_ranks(num_rows: int, *lists: tuple[Ints, npt.NDArray[Any]]) -> Doubles:
    """Fuse rankings, each rows (n,) and scores (n,), by reciprocal rank: the sum of 1 / (60 + rank) over them.

    Equal scores share a rank; the result is (num_rows,), 0 where no list holds the row. Source: Cormack et al. 2009,
    doi 10.1145/1571941.1572114.
    """
    fused = np.zeros(num_rows)
    for rows, scores in lists:
        better = np.searchsorted(np.sort(-scores), -scores, side="left")
        fused[rows] += 1.0 / (RANK_OFFSET + 1 + better)
    return fused


class IndexStamp(NamedTuple):
    """The rows of a memory file that an index covers."""

    era: str  # changes when rows are exchanged for others
    written: int = 0  # number of the last write that it has seen
    changed: int = 0  # number of the owner's last change that it has seen

    def is_ancestor_of(self, later: IndexStamp) -> bool:
        return self.era == later.era and self.written <= later.written and self.changed <= later.changed


@dataclass
class TipIndex:
    """An approximate index of tip ids by their vectors.

    Nothing is removed from it: the caller knows which ids exist, and rebuilds it once it is much larger than planned.
    """

    stamp: IndexStamp
    lists: Any  # faiss's
    planned: int  # tips that it was made for
    unsaved: int = 0  # vectors inserted since it was loaded or saved

    @classmethod
    def create(cls, stamp: IndexStamp, sample: Floats, planned: int) -> Self:
        """Make an index for about `planned` tips, trained on `sample` (n, dim), n about `SAMPLE_PER_LIST` a list."""
        faiss, dim = _load_faiss(), sample.shape[1]
        codes = dim // 2 if dim % 2 == 0 else dim  # of four bits each: of two numbers, or one
        lists = faiss.index_factory(dim, f"IVF{_num_lists(planned)},PQ{codes}x4fs", faiss.METRIC_INNER_PRODUCT)
        lists.cp.spherical, lists.cp.niter, lists.cp.max_points_per_centroid = True, 5, SAMPLE_PER_LIST
        lists.cp.min_points_per_centroid = lists.pq.cp.min_points_per_centroid = 1  # or it prints of small samples
        lists.train(np.resize(sample, (max(MIN_CENTROID_SAMPLE, len(sample)), dim)))  # repeated where they are too few
        return cls(stamp, lists, planned)

    def __len__(self) -> int:
        return int(self.lists.ntotal)

    def is_suitable_for(self, size: int) -> bool:
        return size <= MAX_GROWTH * self.planned and len(self) <= 1.25 * size + SAMPLE_PER_LIST * self.lists.nlist

    def insert(self, ids: Sequence[int], vectors: Floats) -> None:
        _load_faiss()
        self.lists.add_with_ids(vectors, np.array(ids, np.int64))
        self.unsaved += len(ids)

    def search(self, vector: Floats, count: int, *, everywhere: bool = False) -> list[int]:
        """Return ids of about the `count` vectors nearest to `vector` (dim,), the nearest first; one may come twice."""
        faiss = _load_faiss()
        options = faiss.SearchParametersIVF(nprobe=self.lists.nlist if everywhere else self.lists.nprobe)
        _, ids = self.lists.search(vector[None], min(count, len(self)), params=options)
        return [tip_id for tip_id in ids[0].tolist() if tip_id >= 0]

    def tune(self, sample: Floats) -> None:
        """Visit as few lists as find `TARGET_RECALL` of what all lists would, measured on vectors (n, dim) of tips.

        But visit lists of at least `MIN_SCANNED_VECTORS`, since other queries lie further from their neighbours.
        """
        least = self.lists.nlist * MIN_SCANNED_VECTORS / max(1, len(self))
        queries = sample[:: max(1, len(sample) // TUNING_QUERIES)][:TUNING_QUERIES]
        whole = [set(self.search(query, TUNING_NEIGHBORS, everywhere=True)) for query in queries]
        steps = (round(2 ** (power / 2)) for power in range(4, 40))
        for probes in takewhile(lambda number: number < self.lists.nlist, (step for step in steps if step >= least)):
            self.lists.nprobe = probes
            nearest = [set(self.search(query, TUNING_NEIGHBORS)) for query in queries]
            hits = sum(len(near & all_near) for near, all_near in zip(nearest, whole, strict=True))
            if hits >= TARGET_RECALL * sum(map(len, whole)):
                return
        self.lists.nprobe = self.lists.nlist


@functools.cache
def is_faiss_installed() -> bool:
    return importlib.util.find_spec("faiss") is not None


def _num_lists(planned: int) -> int:
    """Choose two to four times the root, at which a search among a million was fastest."""
    return int(2 ** (1 + ceil(log2(max(1, planned)) / 2)))


def _load_faiss() -> Any:
    import faiss

    faiss.omp_set_num_threads(1)  # of the calling thread: a search is too short to share among cores
    return faiss


class FileIndex:
    """The index of the vectors in a memory file, made at the first query, and kept beside the file."""

    def __init__(self, file: MemoryFile) -> None:
        self._file = file
        self.lists: TipIndex | None = None

    def find_nearest(self, place: TipFilter, size: int, vector: Floats, count: int, select: str) -> list[Any]:
        """Return rows of about the `count` tips nearest to `vector` (dim,), of the `size` enabled ones in `place`.

        `select` is a query of tips with `ID_CONDITION` and that of `place`. Fewer rows mean that there are no more.
        """
        with self._file.lock:
            if not size:
                return []
            index, everywhere = self._update(), False
            wanted = ceil(count * len(index) / size)
            while True:
                ids = index.search(vector, wanted, everywhere=everywhere)
                rows = self._file.query(select, (json.dumps(ids), *place.values))
                if len(rows) >= min(count, size) or (everywhere and wanted >= len(index)):
                    return rows
                if len(ids) < wanted:
                    everywhere = True
                else:
                    wanted *= 4

    def close(self) -> None:
        """Save what the next opening would take long to read again."""
        lists, self.lists = self.lists, None
        if lists is not None and lists.unsaved >= MAX_UNSAVED:
            self._save(lists)

    def catch_up(self) -> None:
        """Insert what was written, to spare the next search, unless the index must be rebuilt."""
        if (index := self.lists) is not None:
            now = self._read_stamp()
            if index.stamp.is_ancestor_of(now) and index.is_suitable_for(count_enabled(self._file)):
                self._insert_missing(index, now)

    def _update(self) -> TipIndex:
        now, index = self._read_stamp(), self.lists
        if index is not None and index.stamp == now:
            return index
        if index is None:
            index = self._load(now)
        size = count_enabled(self._file)
        if index is None or not index.stamp.is_ancestor_of(now) or not index.is_suitable_for(size):
            sample = self._sample_vectors(SAMPLE_PER_LIST * _num_lists(size))
            index = TipIndex.create(IndexStamp(now.era), sample, size)
        is_new = not len(index)
        self._insert_missing(index, now)
        self.lists = index
        if is_new:
            index.tune(self._sample_vectors(CHUNK_ROWS))
        if index.unsaved >= max(MAX_UNSAVED, len(index) // 8) and not self._file.connection.in_transaction:
            self._save(index)
        return index

    def _insert_missing(self, index: TipIndex, now: IndexStamp) -> None:
        switched = "id IN (SELECT tip FROM owner_changes WHERE number > ?)"
        for ids, vectors in self._iter_vectors(f"(age > ? OR {switched})", index.stamp.written, index.stamp.changed):
            index.insert(ids, vectors)
        index.stamp = now

    def _load(self, now: IndexStamp) -> TipIndex | None:
        """Load the index file; None where it does not load, or its stamp, with its checksum, does not fit `now`."""
        stamp = schema.read_meta(self._file.connection, "index")
        if self._file.path is None or not stamp:
            return None
        era, written, changed, planned, checksum = json.loads(stamp)
        if not IndexStamp(era, written, changed).is_ancestor_of(now):
            return None
        path = self._file.path.with_name(f"{self._file.path.name}-index")
        try:
            content = np.fromfile(path, np.uint8)
            if zlib.crc32(content.data) == checksum:  # else it is not the file that was saved last
                return TipIndex(IndexStamp(era, written, changed), _load_faiss().deserialize_index(content), planned)
        except (OSError, RuntimeError) as error:
            logger.info("%s is built again (%s)", path, error)
        return None

    def _save(self, index: TipIndex) -> None:
        """Write the index file and its stamp; a full disk costs only time later."""
        if self._file.path is None:
            return
        index.unsaved, path = 0, self._file.path.with_name(f"{self._file.path.name}-index")
        content = _load_faiss().serialize_index(index.lists)
        stamp = json.dumps([*index.stamp, index.planned, zlib.crc32(content.data)])
        warning = "%s was not written (%s): it is built again when it is needed"
        try:
            with self._file.transaction():  # of several processes that save at once, file and stamp are of the same one
                try:
                    write_bytes_atomic(path, content.data)
                except OSError as error:  # caught here, since a transaction that is undone forgets the index
                    logger.warning(warning, path, error)
                    return
                self._file.write("INSERT OR REPLACE INTO meta VALUES ('index', ?)", (stamp,))
        except MemoryStoreError as error:
            logger.warning(warning, path, error)

    def _read_stamp(self) -> IndexStamp:
        return IndexStamp(*self._file.query(SELECT_STAMP)[0])

    def _sample_vectors(self, count: int) -> Floats:
        """Sample vectors (n, dim) of about `count` random enabled tips, the same each time."""
        last = self._file.query("SELECT MAX(id) FROM tips")[0][0]
        wanted = min(last, ceil(1.2 * count * last / count_enabled(self._file)))  # some ids are free, or disabled
        drawn = random.Random(0).sample(range(1, last + 1), wanted)
        return np.concatenate([vectors for _, vectors in self._iter_vectors(ID_CONDITION, json.dumps(drawn))])

    def _iter_vectors(self, condition: str, *values: object) -> Iterator[tuple[list[int], Floats]]:
        with translate_errors(self._file.path):
            sql = f"SELECT id, vector FROM tips WHERE enabled AND {condition}"  # noqa: S608 (constants of this module)
            dim = schema.read_identity(self._file.connection).dim
            cursor = self._file.connection.execute(sql, values)
            while rows := cursor.fetchmany(CHUNK_ROWS):
                yield [row[0] for row in rows], decode_vectors([row[1] for row in rows], dim)


def count_enabled(file: MemoryFile, place: TipFilter = ALL_TIPS) -> int:
    """Return the number of enabled tips in `place`, which the file keeps for each namespace."""
    sql = f"SELECT COALESCE(SUM(enabled), 0) FROM sizes WHERE {place.condition}"  # noqa: S608 (constants)
    return int(file.query(sql, place.values)[0][0])


def decode_vectors(blobs: Sequence[bytes], dim: int) -> Floats:
    return np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), dim).astype(np.float32, copy=False)

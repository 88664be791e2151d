"""The index beside a large memory file: which tips may be near a query, in milliseconds among a million.

An inverted file with product quantisation (faiss): each vector lies, as two bits a number, in the list of the centroid
nearest to it, and a query is held against the lists nearest to the query. Whoever asks compares the full vectors of
what is found. The file is a cache: one that is cut short, damaged, or not of exactly these rows is as good as none. So
is one that another user made: the library reads indexes of all kinds, also such as name a file that it writes to. Each
is signed with a key that this user alone has, and read by it after its signature has been checked.
docs/results/memory-scale.md has the measurements behind this choice.
"""

from __future__ import annotations

import functools
import hmac
import importlib.util
import json
import logging
from collections.abc import Sequence
from itertools import takewhile
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from trailnotes.storage.files import load_user_key, write_bytes_atomic
from trailnotes.storage.parsing import parse_json

if TYPE_CHECKING:
    from trailnotes.memory.retrieval import Floats

logger = logging.getLogger(__name__)

MAGIC = b"trailnotes index 2\n"
SIGNATURE_BYTES = 32  # bytes
FAISS_FOURCC = b"IwPf"  # how the library marks the only kind of index that `TipIndex.empty` makes
SAMPLE_PER_LIST = 40  # vectors that place a centroid
MIN_CENTROID_SAMPLE = 64  # that the library takes for centroids of any kind
MAX_GROWTH = 4  # times as many tips as there were when the centroids were placed: they are placed again
TUNING_QUERIES = 100  # queries that tell how many lists are enough
TUNING_NEIGHBORS = 10  # of which so many are to be found
REMOVAL_DIVISOR = 32  # one in so many that are gone: they are taken out
MIN_SCANNED_VECTORS = 25_000  # vectors that a search always looks at: a millisecond, with nothing of them in the caches
TARGET_RECALL = 0.99  # share of them; that each query, a tip's own vector, finds itself is in it


class IndexStamp(NamedTuple):
    """Which rows of which memory file an index holds."""

    embedder: str
    dim: int
    lineage: str
    era: str  # changes when rows are exchanged for others
    written: int = 0  # number of the last write that it has seen
    changed: int = 0  # number of the owner's last change that it has seen
    session: str = ""  # random name of the one that wrote these: see `schema.read_session`

    def is_ancestor_of(self, later: IndexStamp) -> bool:
        """Whether what was written since is all that an index of this stamp lacks."""
        return self[:4] == later[:4] and self.written <= later.written and self.changed <= later.changed


class TipIndex:
    """Ids of tips by their vectors, approximately.

    What is forgotten is taken out some at a time, since that goes through all lists; the old vector of an id that comes
    again stays. Whoever asks knows which ids there are, and builds the index anew once it is much larger than that.

    Args:
        stamp: which rows it holds.
        lists: faiss's index.
        planned: tips that it was made for.
    """

    def __init__(self, stamp: IndexStamp, lists: Any, planned: int) -> None:
        self.stamp = stamp
        self.planned = planned
        self.unsaved = 0  # vectors put since it was read or saved
        self._lists = lists
        self._gone: set[int] = set()  # forgotten, and still in the lists

    @classmethod
    def create(cls, stamp: IndexStamp, sample: Floats, planned: int) -> Self:
        """An index for some `planned` tips, of which `sample` (n, dim), `sample_size(planned)` or so, is typical."""
        faiss = _load_faiss()
        codes = stamp.dim // 2 if stamp.dim % 2 == 0 else stamp.dim  # of four bits each: of two numbers, or one
        layout = f"IVF{_num_lists(planned)},PQ{codes}x4fs"
        lists = faiss.index_factory(stamp.dim, layout, faiss.METRIC_INNER_PRODUCT)
        lists.cp.spherical, lists.cp.niter, lists.cp.max_points_per_centroid = True, 5, SAMPLE_PER_LIST
        lists.cp.min_points_per_centroid = lists.pq.cp.min_points_per_centroid = 1  # or it prints of small samples
        lists.train(
            np.resize(sample, (max(MIN_CENTROID_SAMPLE, len(sample)), stamp.dim))
        )  # repeated where they are too few
        return cls(stamp, lists, planned)

    @classmethod
    def load(cls, path: Path, now: IndexStamp) -> Self | None:
        """The index in a file, or None where it does not lead to `now`, or is not whole."""
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
        """Write the file, whole; a disk without room for it costs only time, later."""
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
        """Whether it is right for `size` tips: neither grown far beyond its lists, nor full of what is gone."""
        return size <= MAX_GROWTH * self.planned and len(self) <= 1.25 * size + SAMPLE_PER_LIST * self._lists.nlist

    def insert(self, ids: Sequence[int], vectors: Floats) -> None:
        """Take in tips and their vectors (len(ids), dim)."""
        _load_faiss()
        if not self._gone.isdisjoint(ids):
            self._flush_removals()  # or what comes again would go with what it was
        self._lists.add_with_ids(vectors, np.array(ids, np.int64))
        self.unsaved += len(ids)

    def mark_removed(self, ids: Sequence[int]) -> None:
        """What is gone takes no place any more. Ids that it never held are fine."""
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
        """Ids of the `count` vectors nearest to `vector` (dim,), or about these, the nearest first.

        It may be fewer, where the lists that are looked into hold fewer, and an id may come twice. `everywhere` looks
        into all lists.
        """
        faiss = _load_faiss()
        options = faiss.SearchParametersIVF(nprobe=self._lists.nlist if everywhere else self._lists.nprobe)
        _, ids = self._lists.search(vector[None], min(count, len(self)), params=options)
        return [tip_id for tip_id in ids[0].tolist() if tip_id >= 0]

    def tune(self, sample: Floats) -> None:
        """Look into as few lists as find `FOUND` of what all of them would, asked for some vectors (n, dim).

        But into as many as hold `MIN_SCANNED_VECTORS`: a text that is not among the tips lies further from its nearest ones, and finds
        less than they do.
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
    """What only this user can say of a header and the bytes of an index."""
    signing = hmac.new(load_user_key(), MAGIC + line, "sha256")
    signing.update(payload.data)
    return signing.digest()


def _clear_block_tails(faiss: Any, lists: Any) -> None:
    """Blank the free places of each list's last block.

    faiss 1.15 leaves there what it has removed, and what is added later is laid over it, bit by bit.
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


def sample_size(planned: int) -> int:
    """How many vectors place the centroids of an index for `planned` tips."""
    return SAMPLE_PER_LIST * _num_lists(planned)


@functools.cache
def is_faiss_installed() -> bool:
    """Whether there is the library that keeps the index."""
    return importlib.util.find_spec("faiss") is not None


def _num_lists(planned: int) -> int:
    """Two to four times the root, at which a search among a million was fastest."""
    return int(2 ** (1 + ceil(log2(max(1, planned)) / 2)))


def _load_faiss() -> Any:
    """The library, which is to take one core: a search is too short to be shared, and others have work to do."""
    import faiss

    faiss.omp_set_num_threads(1)  # of the thread that calls
    return faiss

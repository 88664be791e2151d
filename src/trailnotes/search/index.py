"""An index on disk, searched where it lies."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from trailnotes.search import bm25
from trailnotes.search.analyzer import analyze
from trailnotes.search.building import KIND, VERSION
from trailnotes.search.mapped import MappedFolder

MAX_TERMS = 1024  # different terms of a query that count, the first ones: Lucene refuses a query of more

_BLOCK = 1024  # documents whose best score is looked at together


class _Term(NamedTuple):
    """A term of a query: its postings, and how much it weighs."""

    start: int
    stop: int
    weight: np.float32


class Index:
    """Finds the documents that share terms with a query, best first, as Lucene's BM25 ranks them.

    Open one with `Index.open`; build one with `trailnotes.search.building.IndexBuilder`. Any number of threads and
    processes may search it.
    """

    def __init__(self, files: MappedFolder) -> None:
        self._files = files
        self._ids: NDArray[np.bytes_] = files.array("ids.npy")
        self._docs: NDArray[np.int32] = files.array("docs.npy")
        self._codes: NDArray[np.uint16] = files.array("codes.npy")
        self._frequent: NDArray[np.int64] = files.array("frequent.npy")
        self._terms = files.array("terms.npy").data
        self._term_offsets = files.array("term_offsets.npy").data
        self._starts = files.array("posting_offsets.npy").data
        self._filled: int = files.meta["filled"]
        mean_length = files.meta["tokens"] / self._filled if self._filled else 1.0
        self._inverse = bm25.inverse_norms(mean_length)
        self._saturation = bm25.saturation(self._inverse)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map the index of `folder`; nothing is read but its directory.

        Raises:
            ConfigError: it is no index, damaged, or of another version.
        """
        return cls(MappedFolder(folder, KIND, VERSION))

    def __len__(self) -> int:
        return len(self._ids)

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def search(self, query: str, limit: int = 50) -> list[tuple[str, float]]:
        """The best documents of a bag of words: (name, score), equal scores by name.

        Raises:
            ConfigError: a file of the index was changed meanwhile.
        """
        self._files.check()
        counts = islice(Counter(analyze(query)).items(), MAX_TERMS)
        terms = [term for text, count in counts if (term := self._term(text.encode(), count))]
        if not terms or limit < 1:
            return []
        totals = np.zeros(len(self._ids))
        for term in terms:  # a float32 each, as in Lucene, and their sum double
            np.add.at(totals, self._docs[term.start : term.stop].astype(np.intp), self._added(term))
        best, scores = _best(totals.astype(np.float32), self._ids, limit)
        names: list[bytes] = self._ids[best].tolist()
        return [(name.decode(), score) for name, score in zip(names, scores.tolist(), strict=True)]

    def holding(self, term: str) -> list[str]:
        """The names of all documents with this very term, in the order in which they were added."""
        self._files.check()
        place = self._term(term.encode(errors="surrogatepass"))
        if place is None:
            return []
        found: list[bytes] = self._ids[self._docs[place.start : place.stop]].tolist()
        return [name.decode() for name in found]

    def _term(self, text: bytes, count: int = 1) -> _Term | None:
        """A term of the sorted vocabulary that stands `count` times in the query."""
        offsets, low, high = self._term_offsets, 0, len(self._term_offsets) - 1
        while low < high:
            middle = (low + high) // 2
            if bytes(self._terms[offsets[middle] : offsets[middle + 1]]) < text:
                low = middle + 1
            else:
                high = middle
        if low >= len(offsets) - 1 or bytes(self._terms[offsets[low] : offsets[low + 1]]) != text:
            return None
        start, stop = self._starts[low], self._starts[low + 1]
        return _Term(start, stop, np.float32(count) * bm25.idf(self._filled, stop - start))

    def _added(self, term: _Term) -> NDArray[np.float64]:
        """What a term adds to each of its documents; codes repeat, so each of them is computed once."""
        codes = self._codes[term.start : term.stop]
        table = _saturated(term, self._saturation[: int(codes.max()) + 1])
        scores = table.astype(np.float64).take(codes, mode="clip")  # several times as fast as [codes]
        postings, added = self._often(term)
        scores[postings] = added
        return scores

    def _often(self, term: _Term) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The postings of a term whose frequency does not fit in a code, and what each adds."""
        first, last = np.searchsorted(self._frequent[:, 0], (term.start, term.stop))
        postings = self._frequent[first:last, 0]
        frequencies = self._frequent[first:last, 1].astype(np.float32)
        inverse = self._inverse[self._codes[postings] & 0xFF]
        return postings - term.start, _saturated(term, np.float32(1) + frequencies * inverse)


def _saturated(term: _Term, saturation: NDArray[np.float32]) -> NDArray[np.float32]:
    """Lucene's ``weight - weight / (1 + frequency * inverse norm)``."""
    return np.asarray(term.weight - term.weight / saturation)


def _best(
    scores: NDArray[np.float32], ids: NDArray[np.bytes_], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The numbers and scores of the `limit` best documents of all. Only those that reach a floor are sorted."""
    floor = _floor(scores, limit)
    documents = np.flatnonzero(scores >= floor if floor > 0 else scores)
    best = documents[np.lexsort((ids[documents], -scores[documents]))[:limit]]
    return best, scores[best]


def _floor(scores: NDArray[np.float32], limit: int) -> float:
    """A score that at least `limit` documents reach: the limit-th best of the best of each block; 0 of too few."""
    blocks = np.maximum.reduceat(scores, np.arange(0, len(scores), _BLOCK))
    return float(np.partition(blocks, -limit)[-limit]) if len(blocks) >= limit else 0.0

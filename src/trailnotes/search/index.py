"""An index on disk, searched where it lies."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trailnotes.search import bm25
from trailnotes.search.analyzer import analyze
from trailnotes.search.building import KIND, VERSION
from trailnotes.search.mapped import MappedFolder

MAX_TERMS = 1024  # different terms of a query that count, the first ones: Lucene refuses a query of more

_BLOCK = 1024  # documents whose best score is looked at together


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
        best, scores = self.rank(query, limit)
        return [(self._ids[document].decode(), score) for document, score in zip(best, scores, strict=True)]

    def rank(self, query: str, limit: int = 50) -> tuple[list[int], list[float]]:
        """As `search`, with the numbers of the documents in the order in which they were added."""
        self._files.check()
        terms = islice(Counter(analyze(query)).items(), MAX_TERMS)
        found = [(count, place) for term, count in terms if (place := self._place(term.encode())) is not None]
        if not found or limit < 1:
            return [], []
        totals = np.zeros(len(self._ids))
        for count, place in found:
            self._add(totals, place, count)
        return self._best(totals.astype(np.float32), limit)

    def holding(self, term: str) -> list[str]:
        """The names of all documents with this very term, in the order in which they were added."""
        self._files.check()
        place = self._place(term.encode(errors="surrogatepass"))
        if place is None:
            return []
        found: list[bytes] = self._ids[self._docs[self._starts[place] : self._starts[place + 1]]].tolist()
        return [name.decode() for name in found]

    def _place(self, term: bytes) -> int | None:
        """Where a term stands in the sorted vocabulary."""
        offsets, low, high = self._term_offsets, 0, len(self._term_offsets) - 1
        while low < high:
            middle = (low + high) // 2
            if bytes(self._terms[offsets[middle] : offsets[middle + 1]]) < term:
                low = middle + 1
            else:
                high = middle
        is_there = low < len(offsets) - 1 and bytes(self._terms[offsets[low] : offsets[low + 1]]) == term
        return low if is_there else None

    def _add(self, totals: NDArray[np.float64], place: int, count: int) -> None:
        """Add the scores of one term, which stands `count` times in the query, to those of its documents.

        Each is a float32, as in Lucene, and their sum is double.
        """
        start, stop = self._starts[place], self._starts[place + 1]
        weight = np.float32(count) * bm25.idf(self._filled, stop - start)
        codes = self._codes[start:stop]
        table = self._saturation[: int(codes.max()) + 1]
        scores = (weight - weight / table)[codes]
        for posting, frequency in self._often(start, stop):
            inverse = self._inverse[codes[posting] & 0xFF]
            scores[posting] = weight - weight / (np.float32(1) + np.float32(frequency) * inverse)
        totals[self._docs[start:stop]] += scores

    def _often(self, start: int, stop: int) -> list[tuple[int, int]]:
        """(posting within the term, frequency) of what does not fit in a code."""
        if not len(self._frequent):
            return []
        first, last = np.searchsorted(self._frequent[:, 0], (start, stop))
        return [(int(posting) - start, int(frequency)) for posting, frequency in self._frequent[first:last]]

    def _best(self, scores: NDArray[np.float32], limit: int) -> tuple[list[int], list[float]]:
        """The `limit` best documents of all.

        The limit-th best of the blocks' best scores is reached by `limit` documents at least, so what is below it needs
        no sorting.
        """
        blocks = np.maximum.reduceat(scores, np.arange(0, len(scores), _BLOCK))
        floor = np.partition(blocks, -limit)[-limit] if len(blocks) >= limit else np.float32(0)
        candidates = np.flatnonzero(scores >= floor if floor > 0 else scores)
        order = np.lexsort((self._ids[candidates], -scores[candidates]))[:limit]
        best = candidates[order]
        return best.tolist(), scores[best].tolist()

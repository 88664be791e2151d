"""Search in an index on disk, without loading it."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from trailnotes_worlds.search import bm25
from trailnotes_worlds.search.building import KIND, VERSION
from trailnotes_worlds.search.mapped import MappedFolder
from trailnotes_worlds.search.terms import analyze

MAX_TERMS = 1024  # different terms of a query that count, the first ones: Lucene refuses a query of more

_BLOCK_SIZE = 1024  # documents whose best score is looked at together
_MAX_FULL_READ = 100_000  # postings of a query that are all read; of more, those that can decide
_RARE_TERM_RATIO = 8  # documents to each posting of a term that is read sooner than all documents are looked through
_LOOKUP_COST_RATIO = 12  # postings that are read while one document is looked up
_SLACK = 1e-4  # of a score: more than a sum of `MAX_TERMS` in single precision may be wrong by

Documents = NDArray[np.int64]  # their numbers, ascending


class _Term(NamedTuple):
    """Term of a query with its postings and its weight."""

    start: int
    stop: int
    weight: np.float32

    @property
    def size(self) -> int:
        return self.stop - self.start


class SearchIndex:
    """Index on disk that finds documents by shared terms, ranked by Lucene's BM25.

    Open one with `SearchIndex.open`; build one with `building.IndexBuilder`. Any number of threads and processes may
    search it.
    """

    def __init__(self, files: MappedFolder) -> None:
        self._ids: NDArray[np.bytes_] = files.map_array("ids.npy")
        self._docs: NDArray[np.int32] = files.map_array("docs.npy")
        self._codes: NDArray[np.uint16] = files.map_array("codes.npy")
        self._frequent: NDArray[np.int64] = files.map_array("frequent.npy")
        self._terms = files.map_array("terms.npy").data
        self._term_offsets = files.map_array("term_offsets.npy").data
        self._starts = files.map_array("posting_offsets.npy").data
        self._filled: int = files.meta["filled"]
        mean_length = files.meta["tokens"] / self._filled if self._filled else 1.0
        self._inverse = bm25.compute_inverse_norms(mean_length)
        self._saturation = bm25.compute_saturation(self._inverse)

    @classmethod
    def open(cls, folder: Path) -> Self:
        return cls(MappedFolder(folder, KIND, VERSION, {"filled": int, "tokens": int}))

    def search(self, query: str, limit: int = 50) -> list[tuple[str, float]]:
        """Rank the documents of a bag of words.

        Returns:
            (name, score) of the `limit` best, equal scores by name.
        """
        counts = islice(Counter(analyze(query)).items(), MAX_TERMS)
        terms = [term for text, count in counts if (term := self._find_term(text.encode(), count))]
        if not terms or limit < 1:
            return []
        # Terms add a float32 each, as in Lucene, and their sum is double, in the order of the query.
        if sum(term.size for term in terms) <= _MAX_FULL_READ or limit * _BLOCK_SIZE > len(self._ids):
            ids, totals = self._ids, np.zeros(len(self._ids))
            for term in terms:
                self._add_scores(totals, term)
        else:
            documents = self._select_candidates(terms, limit)
            ids, totals = self._ids[documents], np.zeros(len(documents))
            for term in terms:
                totals += self._look_up_scores(term, documents)
        scores = totals.astype(np.float32)
        floor = _compute_score_floor(scores, limit)
        documents = np.flatnonzero(scores >= floor if floor > 0 else scores)  # the only ones that are sorted
        best = documents[np.lexsort((ids[documents], -scores[documents]))[:limit]]
        names: list[bytes] = ids[best].tolist()
        return [(name.decode(), score) for name, score in zip(names, scores[best].tolist(), strict=True)]

    def find_by_term(self, term: str) -> list[str]:
        """List the names of all documents with this very term, in the order in which they were added."""
        place = self._find_term(term.encode(errors="surrogatepass"))
        if place is None:
            return []
        names: list[bytes] = self._ids[self._docs[place.start : place.stop]].tolist()
        return [name.decode() for name in names]

    def _find_term(self, text: bytes, count: int = 1) -> _Term | None:
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

    def _select_candidates(self, terms: list[_Term], limit: int) -> Documents:
        """Select some documents, the `limit` best among them.

        A term adds less than its weight (as in Turtle and Flood's MaxScore, doi 10.1016/0306-4573(95)00020-H). Rare
        terms come first, which weigh most: once `limit` documents have more than all that are left could add, only some
        documents can still get there, and the frequent terms are looked up for these instead of read.
        """
        totals, left = np.zeros(len(self._ids), np.float32), sorted(terms, key=lambda term: term.size)
        documents = None
        while documents is None:
            self._add_scores(totals, left.pop(0))
            if not left or left[0].size > len(totals) // _RARE_TERM_RATIO:
                documents = _find_candidates(totals, left, limit)
        sums = totals[documents].astype(np.float64)
        while left:
            sums += self._look_up_scores(left.pop(0), documents)
            kept = sums >= _compute_min_score(np.partition(sums, -limit)[-limit], left)
            documents, sums = documents[kept], sums[kept]
        return documents

    def _add_scores(self, totals: NDArray[Any], term: _Term) -> None:
        """Add a term's scores to those of its documents. Codes repeat: the score of each is computed once."""
        codes = self._codes[term.start : term.stop]
        table = _apply_saturation(term, self._saturation[: int(codes.max()) + 1])
        scores = table.astype(totals.dtype).take(codes, mode="clip")  # several times as fast as [codes]
        postings, added = self._find_frequent_postings(term)
        scores[postings] = added
        np.add.at(totals, self._docs[term.start : term.stop].astype(np.intp), scores)

    def _look_up_scores(self, term: _Term, documents: Documents) -> NDArray[np.float32]:
        docs = self._docs[term.start : term.stop]
        places = np.minimum(np.searchsorted(docs, documents.astype(np.int32)), len(docs) - 1)
        scores = _apply_saturation(term, self._saturation[self._codes[term.start : term.stop][places]])
        postings, added = self._find_frequent_postings(term)
        if len(postings):
            which = np.minimum(np.searchsorted(postings, places), len(postings) - 1)
            scores = np.where(postings[which] == places, added[which], scores)
        return np.where(docs[places] == documents, scores, np.float32(0))

    def _find_frequent_postings(self, term: _Term) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Find a term's postings whose frequency does not fit in a code, and the score of each."""
        first, last = np.searchsorted(self._frequent[:, 0], (term.start, term.stop))
        postings = self._frequent[first:last, 0]
        frequencies = self._frequent[first:last, 1].astype(np.float32)
        inverse = self._inverse[self._codes[postings] & 0xFF]
        return postings - term.start, _apply_saturation(term, np.float32(1) + frequencies * inverse)


def _apply_saturation(term: _Term, saturation: NDArray[np.float32]) -> NDArray[np.float32]:
    """Lucene's ``weight - weight / (1 + frequency * inverse norm)``."""
    return np.asarray(term.weight - term.weight / saturation)


def _find_candidates(totals: NDArray[np.float32], left: list[_Term], limit: int) -> Documents | None:
    """Find the documents that may be among the best after the terms that are `left`; None if they are many."""
    least = _compute_min_score(_compute_score_floor(totals, limit), left)
    if left and least <= 0:
        return None
    documents = np.flatnonzero(totals >= least if least > 0 else totals)
    few = len(documents) * len(left) * _LOOKUP_COST_RATIO <= sum(term.size for term in left)
    return documents if not left or few else None


def _compute_min_score(floor: float, left: list[_Term]) -> float:
    """Compute the score with which a document can still reach `floor` by the terms that are left."""
    return (1 - _SLACK) * floor - sum(float(term.weight) for term in left)


def _compute_score_floor(scores: NDArray[Any], limit: int) -> float:
    """Compute a score that `limit` documents reach: the limit-th best of the best of each block; 0 of too few."""
    blocks = np.maximum.reduceat(scores, np.arange(0, len(scores), _BLOCK_SIZE))
    return float(np.partition(blocks, -limit)[-limit]) if len(blocks) >= limit else 0.0

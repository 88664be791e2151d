"""Index construction: documents stream in, memory holds the vocabulary and one run of postings.

A run is a few million tokens, sorted by term and document and saved on disk. After the last document, the builder
merges the runs into the final arrays, each posting at the place that its term's count reserves.
"""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trailnotes_worlds.search.bm25 import MAX_FREQUENCY, encode_lengths
from trailnotes_worlds.search.mapped import allocate, write_meta
from trailnotes_worlds.search.terms import split_words, to_term

KIND, VERSION = "search index", 1
FILES = ["ids.npy", "terms.npy", "term_offsets.npy", "posting_offsets.npy", "docs.npy", "codes.npy", "frequent.npy"]

_RUN_TOKENS = 4_000_000  # tokens
_CACHE_SIZE = 1 << 20  # words


class _TermNumbers(dict[str, int]):
    """Word -> number of its term, -1 for a stopword; `terms` keeps the numbers when the words are forgotten."""

    def __init__(self) -> None:
        self.terms: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        if len(self) >= _CACHE_SIZE:
            self.clear()
        term = to_term(word)
        self[word] = number = self.assign_number(term) if term else -1
        return number

    def assign_number(self, term: str) -> int:
        return self.terms.setdefault(term, len(self.terms))


class IndexBuilder:
    """Context manager that builds an index in a folder without one; a failure leaves no ``meta.json``.

    ::

        with IndexBuilder(folder) as builder:
            for name, text in documents:
                builder.add(name, text)
            builder.finish()
    """

    def __init__(self, folder: Path, *, run: int = _RUN_TOKENS) -> None:
        self._folder, self._run = folder, run
        self._spool = folder / "runs"
        self._spool.mkdir(parents=True, exist_ok=True)
        self._numbers = _TermNumbers()
        self._ids: list[bytes] = []
        self._tokens, self._lengths = array("i"), array("q")  # of the run: term numbers; words in each document
        self._first, self._runs = 0, 0  # first document of the run; runs on disk
        self._total, self._filled = 0, 0  # tokens; documents that have any
        self._frequent: list[tuple[int, int, int]] = []  # (term, document, frequency) above `MAX_FREQUENCY` - 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._spool, ignore_errors=True)

    def add(self, name: str, text: str) -> None:
        self._append(name, list(map(self._numbers.__getitem__, split_words(text))))

    def add_terms(self, name: str, terms: Iterable[str]) -> None:
        """Add one document by its terms, which `SearchIndex.find_by_term` finds as they are."""
        self._append(name, list(map(self._numbers.assign_number, terms)))

    def _append(self, name: str, numbers: list[int]) -> None:
        self._ids.append(name.encode())
        self._tokens.extend(numbers)
        self._lengths.append(len(numbers))
        if len(self._tokens) >= self._run:
            self._flush_run()

    def finish(self) -> None:
        self._flush_run()
        order = sorted(self._numbers.terms, key=str.encode)
        rank = np.empty(len(order), np.int64)  # number -> place in the sorted vocabulary
        rank[[self._numbers.terms[term] for term in order]] = np.arange(len(order))
        encoded = [term.encode() for term in order]
        sizes = np.zeros(len(rank), np.int64)  # postings of each term
        for run in range(self._runs):
            sizes += np.bincount(rank[self._load_run_array(run, "terms")], minlength=len(rank))
        starts = _compute_offsets(sizes)
        np.save(self._folder / "ids.npy", np.array(self._ids, dtype=bytes))
        np.save(self._folder / "terms.npy", np.frombuffer(b"".join(encoded), np.uint8))
        np.save(self._folder / "term_offsets.npy", _compute_offsets(np.array([*map(len, encoded)], np.int64)))
        np.save(self._folder / "posting_offsets.npy", starts)
        self._merge(rank, starts)
        facts = {"documents": len(self._ids), "filled": self._filled, "tokens": self._total}
        write_meta(self._folder, KIND, VERSION, FILES, facts)

    def _flush_run(self) -> None:
        lengths = np.array(self._lengths, np.int64)
        tokens = np.array(self._tokens, np.int64)
        documents = np.repeat(np.arange(len(lengths)), lengths)[tokens >= 0]
        keys, counts = np.unique((tokens[tokens >= 0] << 32) | documents, return_counts=True)
        terms, documents = keys >> 32, keys & 0xFFFFFFFF
        kept = np.bincount(documents, weights=counts, minlength=len(lengths)).astype(np.int64)  # without stopwords
        codes = np.minimum(counts, MAX_FREQUENCY) << 8 | encode_lengths(kept)[documents]
        documents += self._first
        often = counts >= MAX_FREQUENCY
        self._frequent += zip(terms[often].tolist(), documents[often].tolist(), counts[often].tolist(), strict=True)
        np.save(self._spool / f"{self._runs}.terms.npy", terms.astype(np.int32))
        np.save(self._spool / f"{self._runs}.docs.npy", documents.astype(np.int32))
        np.save(self._spool / f"{self._runs}.codes.npy", codes.astype(np.uint16))
        self._runs += 1
        self._first += len(lengths)
        self._total += int(kept.sum())
        self._filled += int(np.count_nonzero(kept))
        self._tokens, self._lengths = array("i"), array("q")

    def _merge(self, rank: NDArray[np.int64], starts: NDArray[np.int64]) -> None:
        docs = allocate(self._folder / "docs.npy", np.int32, int(starts[-1]))
        codes = allocate(self._folder / "codes.npy", np.uint16, int(starts[-1]))
        cursor = starts[:-1].copy()
        for run in range(self._runs):
            terms = rank[self._load_run_array(run, "terms")]
            begins = np.flatnonzero(np.diff(terms, prepend=-1))  # of the groups of one term
            sizes = np.diff(begins, append=len(terms))
            places = np.repeat(cursor[terms[begins]] - begins, sizes) + np.arange(len(terms))
            docs[places] = self._load_run_array(run, "docs")
            codes[places] = self._load_run_array(run, "codes")
            cursor[terms[begins]] += sizes
        docs.flush()
        codes.flush()
        frequent = np.zeros((len(self._frequent), 2), np.int64)  # (posting, frequency), by posting
        for row, (number, document, frequency) in enumerate(self._frequent):
            start, stop = starts[rank[number]], starts[rank[number] + 1]
            frequent[row] = start + np.searchsorted(docs[start:stop], document), frequency
        np.save(self._folder / "frequent.npy", frequent[np.argsort(frequent[:, 0])])

    def _load_run_array(self, run: int, name: str) -> NDArray[np.int32]:
        part: NDArray[np.int32] = np.load(self._spool / f"{run}.{name}.npy", allow_pickle=False)
        return part


def _compute_offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

"""Search in memory: exact by vectors, by words (BM25), and by both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trailnotes.memory.retrieval import DECIMALS, Floats, split_words
from trailnotes.memory.tip_stats import Doubles

Ints = npt.NDArray[np.intp]

K1, B = 1.2, 0.75  # saturation of repeated words, and weight of a text's length, as Lucene has them
RANK_OFFSET = 60  # reciprocal ranks: how little the very first places count more than the next


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

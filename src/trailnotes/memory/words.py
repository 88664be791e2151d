"""Sparse retrieval: which texts share rare words with a query, and how that is joined with similarity of vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trailnotes.memory.retrieval import Ints, split_words

Doubles = npt.NDArray[np.float64]

K1, B = 1.2, 0.75  # saturation of repeated words, and weight of a text's length, as Lucene has them
RANK_OFFSET = 60  # reciprocal ranks: how little the very first places count more than the next


class BM25Index:
    """BM25 over some thousand texts, made whole whenever they change.

    score(t) = sum over the query's distinct words w of idf(w) * f / (f + K1 * (1 - B + B * |t| / mean |t|)), f the
    count of w in t, idf(w) = ln(1 + (N - n + 1/2) / (n + 1/2)), n of the N texts hold w (Robertson and Zaragoza 2009,
    doi 10.1561/1500000019, in Lucene's form).

    Args:
        texts: N of them, in the order of the rows that `scores` speaks of.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        counted = [Counter(split_words(text)) for text in texts]
        lengths = np.array([count.total() for count in counted], float)
        self._damping = K1 * (1 - B + B * lengths / (lengths.mean() or 1.0)) if texts else lengths
        found: dict[str, list[tuple[int, int]]] = {}
        for row, count in enumerate(counted):
            for word, number in count.items():
                found.setdefault(word, []).append((row, number))
        self._holders = {word: np.array(places) for word, places in found.items()}

    def score(self, query: str) -> Doubles:
        """Float64 (N,); 0 where no word is shared."""
        total = np.zeros(len(self._damping))
        for word in sorted(set(split_words(query)) & self._holders.keys()):
            rows, counts = self._holders[word].T
            idf = np.log1p((len(total) - len(rows) + 0.5) / (len(rows) + 0.5))
            total[rows] += idf * counts / (counts + self._damping[rows])
        return total


def fuse_reciprocal_ranks(num_rows: int, *lists: tuple[Ints, npt.NDArray[Any]]) -> Doubles:
    """Reciprocal rank fusion: sum of 1 / (60 + rank) over the lists that hold a row; equal scores share a rank.

    Source: Cormack et al. 2009, doi 10.1145/1571941.1572114.

    Args:
        num_rows: rows that there are.
        lists: of each the rows (n,) that it holds, and their scores (n,).

    Returns:
        (num_rows,); 0 where no list holds the row.
    """
    fused = np.zeros(num_rows)
    for rows, scores in lists:
        better = np.searchsorted(np.sort(-scores), -scores, side="left")
        fused[rows] += 1.0 / (RANK_OFFSET + 1 + better)
    return fused

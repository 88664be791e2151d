"""Nearest vectors of one namespace: the seam behind which an approximate index may come later."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]

DECIMALS = 6  # equal vectors must tie, whatever the matrix product does to the last bits


class Index(Protocol):
    """Finds rows by cosine similarity."""

    def within(self, query: Floats, threshold: float) -> tuple[Ints, Floats]:
        """Row numbers (n,), ascending, whose similarity is at least `threshold`, and these similarities (n,)."""
        ...


class ExactIndex:
    """One matrix-vector product over all rows: exact, and fast enough for some ten thousand of them.

    Args:
        vectors: float32 (rows, dim) of unit length.
    """

    def __init__(self, vectors: Floats) -> None:
        self.vectors = vectors

    def within(self, query: Floats, threshold: float) -> tuple[Ints, Floats]:
        """See `Index.within`. `query` is a unit vector (dim,)."""
        similarities = np.round(self.vectors @ query, DECIMALS)
        rows = np.flatnonzero(similarities >= np.float32(threshold))
        return rows, similarities[rows]

"""Vectors for tests of the index."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory.retrieval import Floats

DIM = 8
NEAREST = MemoryConfig(threshold=-1, order=("similarity",), capacity=10**6).model_copy(update={"exact_below": 1})
EXACT = NEAREST.model_copy(update={"exact_below": 10**9})


class Directions:
    """An embedder: every text has a direction of its own."""

    name = "directions"
    dim = DIM

    def embed(self, texts: Sequence[str]) -> Floats:
        """As `Embedder.embed`."""
        drawn = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIM) for text in texts]
        return np.array([vector / np.linalg.norm(vector) for vector in drawn], np.float32).reshape(-1, DIM)

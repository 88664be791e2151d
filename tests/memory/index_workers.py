"""Vectors for tests of the index, and what another process does with it; imports little, so that it starts fast."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import index, open_memory
from trailnotes.memory.retrieval import Floats
from trailnotes.types import Tip

BATCH = 3
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


def write_and_search_forever(path: Path, writer: str, confirm: Connection) -> None:
    """Add batches and find each of them through the index, which is saved often, until killed; confirm each."""
    index.MAX_UNSAVED = 8
    memory = open_memory(path, NEAREST, embedder=Directions())
    for number in range(10**6):
        names = [f"{writer} {number} {k}" for k in range(BATCH)]
        memory.add([Tip("task", name, name, 0.0) for name in names])
        assert [memory.search("task", name, 1)[0].text for name in names] == names
        confirm.send_bytes(b".")

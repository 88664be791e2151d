"""BM25 as Lucene 9 computes it: in single precision, with lengths of one byte.

Sources: Lucene's `BM25Similarity` (idf, the cache of 256 norms, ``weight - weight / (1 + freq * norm)``) and
`SmallFloat` (`intToByte4`, `byte4ToInt`). A ranking is only the original's if the roundings are, too: documents whose
true scores differ may tie, and be ordered by their names.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

K1, B = 0.9, 0.4  # those of Anserini, which WebShop searches with
MAX_FREQUENCY = 255  # above, a posting's frequency is looked up apart

_EXACT = 24  # lengths below are stored as they are


def _decode_length(byte: int) -> int:
    if byte < _EXACT:
        return byte
    rest = byte - _EXACT
    shift = (rest >> 3) - 1
    return _EXACT + (rest & 7 if shift < 0 else (rest & 7 | 8) << shift)


LENGTHS: NDArray[np.int64] = np.array([_decode_length(byte) for byte in range(256)], dtype=np.int64)


def encode_lengths(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    return (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.uint8)


def idf(documents: int, frequency: int) -> np.float32:
    return np.float32(math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5)))


def compute_inverse_norms(mean_length: float) -> NDArray[np.float32]:
    """Compute ``1 / (k1 (1 - b + b length / mean_length))`` for each length byte, shape [256]."""
    one, k1, b = np.float32(1), np.float32(K1), np.float32(B)
    return np.asarray(one / (k1 * ((one - b) + b * LENGTHS.astype(np.float32) / np.float32(mean_length))))


def compute_saturation(inverse: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute ``1 + frequency * inverse`` at index ``frequency * 256 + length byte``, shape [256 * 256]."""
    frequencies = np.arange(MAX_FREQUENCY + 1, dtype=np.float32)
    return np.asarray(np.float32(1) + frequencies[:, None] * inverse[None, :]).reshape(-1)

"""How alike two situations are: a task part and an observation part, to all kept situations at once.

``S = lambda f_task + (1 - lambda) f_observation`` (REMEMBERER, arXiv 2306.07929, section 3.2). A part is a choice of
`rememberer.task_similarity` or `rememberer.observation_similarity`; each is symmetric, and 1 for equal texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trailnotes.config.methods_schema import RemembererConfig
from trailnotes.memory.retrieval import DECIMALS, WORD, Floats


class TextSimilarity(Protocol):
    """One text of each kept situation, in rows 0, 1, ..., and a measure."""

    def put(self, row: int, text: str, vector: Floats) -> None:
        """Keep `text` in `row`, in place of what was there; `vector` is its embedding."""
        ...

    def compare_to_all(self, text: str, vector: Floats, rows: int) -> Floats:
        """Similarity of `text` to the texts of the first `rows` rows: float32 (rows,)."""
        ...


class SituationSimilarity:
    """Situations in rows, compared to all of them at once.

    Args:
        config: weights and kinds of the two parts.
        dim: of the vectors given.

    Attributes:
        needs: whether the vector of the task, and that of the observation, is looked at in `compare_to_all`.
    """

    def __init__(self, config: RemembererConfig, dim: int) -> None:
        weights = (config.task_weight, 1 - config.task_weight)
        kinds = (config.task_similarity, config.observation_similarity)
        self._parts = [(weight, _make_text_similarity(kind, dim)) for weight, kind in zip(weights, kinds, strict=True)]
        self.needs = tuple(bool(weight) and kind == "embedding" for weight, kind in zip(weights, kinds, strict=True))
        self.rows = 0

    def put(self, row: int, texts: tuple[str, str], vectors: Floats) -> None:
        """Keep a situation in `row`, at most one past the last; `vectors` is (2, dim): task, observation."""
        assert 0 <= row <= self.rows, "rows stand without gaps"
        self.rows = max(self.rows, row + 1)
        for (_, part), text, vector in zip(self._parts, texts, vectors, strict=True):
            part.put(row, text, vector)

    def compare_to_all(self, texts: tuple[str, str], vectors: Floats) -> Floats:
        """Similarity to every row: float32 (rows,), rounded, so that equal situations tie."""
        total = np.zeros(self.rows, np.float32)
        for (weight, part), text, vector in zip(self._parts, texts, vectors, strict=True):
            if weight:
                total += np.float32(weight) * part.compare_to_all(text, vector, self.rows)
        return np.round(total, DECIMALS)


class EmbeddingSimilarity:
    """Cosine of the embeddings."""

    def __init__(self, dim: int) -> None:
        self._vectors = np.zeros((0, dim), np.float32)

    def put(self, row: int, text: str, vector: Floats) -> None:  # noqa: ARG002
        """See `Part.put`."""
        self._vectors = _grow_array(self._vectors, (row + 1, len(vector)), 0)
        self._vectors[row] = vector

    def compare_to_all(self, text: str, vector: Floats, rows: int) -> Floats:  # noqa: ARG002
        """See `TextSimilarity.compare_to_all`."""
        return self._vectors[:rows] @ vector


class ExactMatchSimilarity:
    """1 for the same text, else 0."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def put(self, row: int, text: str, vector: Floats) -> None:  # noqa: ARG002
        """See `Part.put`."""
        self._texts[row : row + 1] = [text]

    def compare_to_all(self, text: str, vector: Floats, rows: int) -> Floats:  # noqa: ARG002
        """See `TextSimilarity.compare_to_all`."""
        return np.fromiter((text == kept for kept in self._texts[:rows]), np.float32, rows)


class JaccardSimilarity:
    """Shared words among all words of both (Jaccard), whatever their order, case and number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # word -> its row in `_holds`
        self._holds = np.zeros((0, 0), np.uint8)  # (words, rows): a word lies in one piece, so that few are summed fast
        self._sizes = np.zeros(0, np.int32)  # (rows,)

    def put(self, row: int, text: str, vector: Floats) -> None:  # noqa: ARG002
        """See `Part.put`."""
        numbers = [self._numbers.setdefault(word, len(self._numbers)) for word in _split_words(text)]
        self._holds = _grow_array(self._holds, (len(self._numbers), row + 1), 0)
        self._sizes = _grow_array(self._sizes, (row + 1,), 0)
        self._holds[:, row] = 0
        self._holds[numbers, row] = 1
        self._sizes[row] = len(numbers)

    def compare_to_all(self, text: str, vector: Floats, rows: int) -> Floats:  # noqa: ARG002
        """See `TextSimilarity.compare_to_all`. Two texts without words are equal."""
        words = _split_words(text)
        known = [self._numbers[word] for word in words if word in self._numbers]
        shared = self._holds[known, :rows].sum(axis=0, dtype=np.int32)
        union = self._sizes[:rows] + len(words) - shared
        return np.where(union == 0, 1.0, shared / np.maximum(union, 1)).astype(np.float32)


class LcsSimilarity:
    """Longest common subsequence of their lines, over the number of lines of the longer one; blank lines do not count.

    The release compares the tags of web pages so (WikiHow).
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._lines = np.full((0, 0), -1, np.int32)  # (rows, longest), -1 behind the last line
        self._sizes = np.zeros(0, np.int32)

    def put(self, row: int, text: str, vector: Floats) -> None:  # noqa: ARG002
        """See `Part.put`."""
        numbers = [self._numbers.setdefault(line, len(self._numbers)) for line in _split_lines(text)]
        self._lines = _grow_array(self._lines, (row + 1, len(numbers)), -1)
        self._sizes = _grow_array(self._sizes, (row + 1,), 0)
        self._lines[row] = -1
        self._lines[row, : len(numbers)] = numbers
        self._sizes[row] = len(numbers)

    def compare_to_all(self, text: str, vector: Floats, rows: int) -> Floats:  # noqa: ARG002
        """See `TextSimilarity.compare_to_all`. The table of the usual algorithm, one of its rows at a time, for all texts together."""
        kept, lines = self._lines[:rows], _split_lines(text)
        longest = np.zeros((rows, kept.shape[1] + 1), np.int32)  # [r, j]: with the first j lines of row r
        for line in lines:
            same = kept == self._numbers.get(line, -2)
            longest[:, 1:] = np.maximum(longest[:, 1:], longest[:, :-1] + same)
            np.maximum.accumulate(longest, axis=1, out=longest)
        longer = np.maximum(self._sizes[:rows], len(lines))
        return np.where(longer == 0, 1.0, longest[:, -1] / np.maximum(longer, 1)).astype(np.float32)


def _make_text_similarity(kind: str, dim: int) -> TextSimilarity:
    if kind == "embedding":
        return EmbeddingSimilarity(dim)
    parts: dict[str, Callable[[], TextSimilarity]] = {
        "equal": ExactMatchSimilarity,
        "words": JaccardSimilarity,
        "lines": LcsSimilarity,
    }
    return parts[kind]()


def _split_words(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))


def _split_lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def _grow_array(array: npt.NDArray[Any], shape: tuple[int, ...], fill: int) -> npt.NDArray[Any]:
    """`array` with room for `shape` at least; what has to grow doubles."""
    if all(have >= need for have, need in zip(array.shape, shape, strict=True)):
        return array
    sizes = [have if have >= need else max(need, 2 * have) for have, need in zip(array.shape, shape, strict=True)]
    grown = np.full(sizes, fill, array.dtype)
    grown[tuple(map(slice, array.shape))] = array
    return grown

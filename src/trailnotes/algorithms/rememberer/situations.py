"""The records of the experience table as they are searched: by situation, by similarity, and within a capacity."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trailnotes.algorithms.rememberer.similarity import Similarity
from trailnotes.algorithms.rememberer.values import Record
from trailnotes.config.methods_schema import RemembererConfig
from trailnotes.memory.retrieval import Floats

Situation = tuple[str, str]  # task, observation


class Situations:
    """Records in rows 0, 1, ..., each with the vectors (2, dim) of its task and observation.

    Args:
        config: similarity and capacity.
        dim: of the vectors.
    """

    def __init__(self, config: RemembererConfig, dim: int) -> None:
        self.records: list[Record] = []
        self.age = 0  # the highest of all records
        self.similarity = Similarity(config, dim)
        self._capacity = config.record_capacity
        self._vectors: list[Floats] = []
        self._rows: dict[Situation, int] = {}
        self._pairs: Floats | None = None  # (records, records), once the table is full

    def find(self, situation: Situation) -> Record | None:
        """The record of exactly this situation."""
        row = self._rows.get(situation)
        return None if row is None else self.records[row]

    def nearest(self, situation: Situation, vectors: Floats) -> Iterator[Record]:
        """All records, the most similar first, of equally similar ones the most visited, then the latest updated."""
        if not self.records:
            return
        similar = self.similarity.to_all(situation, vectors)
        samples, ages = np.array([(record.samples, record.age) for record in self.records]).T
        for row in np.lexsort((-ages, -samples, -similar)):
            yield self.records[row]

    def put(self, row: int, record: Record, vectors: Floats) -> None:
        """Keep `record` in `row`, in place of what was there."""
        if row < len(self.records):
            del self._rows[_situation(self.records[row])]
        self.records[row : row + 1] = [record]
        self.age = max(self.age, record.age)
        self._vectors[row : row + 1] = [vectors]
        self._rows[_situation(record)] = row
        self.similarity.put(row, _situation(record), vectors)
        if self._pairs is not None:
            self._pairs[row] = self._pairs[:, row] = self.similarity.to_all(_situation(record), vectors)
            self._pairs[row, row] = -np.inf

    def update(self, record: Record) -> None:
        """Put a newer state of a record in its row."""
        self.records[self._rows[_situation(record)]] = record
        self.age = max(self.age, record.age)

    def row_for(self, situation: Situation, vectors: Floats) -> int | None:
        """Where a new record goes; None if it is more like some record than any two records are like each other.

        In a full table one record of the most similar pair makes room: the one with more updates; of several such, the
        one that was updated longest ago. A tie with the newcomer is no reason to refuse it: where all situations are
        equally similar, the table would freeze.
        """
        if len(self.records) < self._capacity:
            return len(self.records)
        pairs = self._pairwise()
        if len(pairs) > 1 and self.similarity.to_all(situation, vectors).max() > pairs.max():
            return None
        first, second = np.nonzero(pairs == pairs.max())
        samples = np.array([record.samples for record in self.records])
        candidates = np.unique(np.where(samples[first] >= samples[second], first, second))
        return int(min(candidates, key=lambda row: self.records[row].age))

    def _pairwise(self) -> Floats:
        """Similarities of all pairs, float32 (records, records), -inf on the diagonal."""
        if self._pairs is None:
            rows = zip(self.records, self._vectors, strict=True)
            self._pairs = np.stack([self.similarity.to_all(_situation(record), vectors) for record, vectors in rows])
            np.fill_diagonal(self._pairs, -np.inf)
        return self._pairs


def _situation(record: Record) -> Situation:
    return record.task, record.observation

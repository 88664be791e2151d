"""The records of the experience table as they are searched: by situation, by similarity, and within a capacity."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trailnotes.algorithms.rememberer.similarity import SituationSimilarity
from trailnotes.algorithms.rememberer.values import ExperienceRecord
from trailnotes.config.methods_schema import RemembererConfig
from trailnotes.memory.retrieval import Floats

SituationKey = tuple[str, str]  # task, observation


class SituationIndex:
    """Records in rows 0, 1, ..., each with the vectors (2, dim) of its task and observation.

    Args:
        config: similarity and capacity.
        dim: of the vectors.
    """

    def __init__(self, config: RemembererConfig, dim: int) -> None:
        self.records: list[ExperienceRecord] = []
        self.age = 0  # the highest of all records
        self.similarity = SituationSimilarity(config, dim)
        self._capacity = config.record_capacity
        self._vectors: list[Floats] = []
        self._rows: dict[SituationKey, int] = {}
        self._pairs: Floats | None = None  # (records, records), once the table is full

    def find(self, situation: SituationKey) -> ExperienceRecord | None:
        """The record of exactly this situation."""
        row = self._rows.get(situation)
        return None if row is None else self.records[row]

    def iter_nearest(self, situation: SituationKey, vectors: Floats) -> Iterator[ExperienceRecord]:
        """All records, the most similar first, of equally similar ones the most visited, then the latest updated."""
        if not self.records:
            return
        similar = self.similarity.compare_to_all(situation, vectors)
        samples, ages = np.array([(record.samples, record.age) for record in self.records]).T
        for row in np.lexsort((-ages, -samples, -similar)):
            yield self.records[row]

    def put(self, row: int, record: ExperienceRecord, vectors: Floats) -> None:
        """Keep `record` in `row`, in place of what was there."""
        if row < len(self.records):
            del self._rows[_get_key(self.records[row])]
        self.records[row : row + 1] = [record]
        self.age = max(self.age, record.age)
        self._vectors[row : row + 1] = [vectors]
        self._rows[_get_key(record)] = row
        self.similarity.put(row, _get_key(record), vectors)
        if self._pairs is not None:
            self._pairs[row] = self._pairs[:, row] = self.similarity.compare_to_all(_get_key(record), vectors)
            self._pairs[row, row] = -np.inf

    def update(self, record: ExperienceRecord) -> None:
        """Put a newer state of a record in its row."""
        self.records[self._rows[_get_key(record)]] = record
        self.age = max(self.age, record.age)

    def choose_row(self, situation: SituationKey, vectors: Floats) -> int | None:
        """Where a new record goes; None if it is more like some record than any two records are like each other.

        In a full table one record of the most similar pair makes room: the one with more updates; of several such, the
        one that was updated longest ago. A tie with the newcomer is no reason to refuse it: where all situations are
        equally similar, the table would freeze.
        """
        if len(self.records) < self._capacity:
            return len(self.records)
        pairs = self._get_pairwise()
        if len(pairs) > 1 and self.similarity.compare_to_all(situation, vectors).max() > pairs.max():
            return None
        first, second = np.nonzero(pairs == pairs.max())
        samples = np.array([record.samples for record in self.records])
        candidates = np.unique(np.where(samples[first] >= samples[second], first, second))
        return int(min(candidates, key=lambda row: self.records[row].age))

    def _get_pairwise(self) -> Floats:
        """Similarities of all pairs, float32 (records, records), -inf on the diagonal."""
        if self._pairs is None:
            rows = zip(self.records, self._vectors, strict=True)
            self._pairs = np.stack(
                [self.similarity.compare_to_all(_get_key(record), vectors) for record, vectors in rows]
            )
            np.fill_diagonal(self._pairs, -np.inf)
        return self._pairs


def _get_key(record: ExperienceRecord) -> SituationKey:
    return record.task, record.observation

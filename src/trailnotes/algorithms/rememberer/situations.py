"""The searchable records of the experience table: by situation, by similarity, and within a capacity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trailnotes.algorithms.rememberer import RemembererConfig
from trailnotes.memory.retrieval import DECIMALS, WORD, Floats


@dataclass(frozen=True, slots=True)
class Experience:
    """One readable decision: situation, action, and reward. Rewards are in the environment's own unit."""

    task: str  # the goal in words, not the id: tasks with the same goal share the record
    observation: str  # o_t, whole
    action: str  # a_t, the text alone
    reward: float  # r_t, until the next readable decision
    history: tuple[str, ...] = ()  # readable actions before, oldest first
    admissible: tuple[str, ...] = ()  # offered at o_t
    last_reward: float = 0.0  # that came with o_t
    total_reward: float = 0.0  # of the episode until o_t


@dataclass(frozen=True, slots=True)
class ActionValue:
    """The estimated value of one action in one situation."""

    action: str
    reward: float  # running mean of the immediate reward
    value: float = 0.0  # Q
    number: int = 0  # of the updates that made it


@dataclass(frozen=True, slots=True)
class ExperienceRecord:
    """A situation (task, observation) with the context needed to print it again, and its actions."""

    id: int
    task: str
    observation: str
    history: tuple[str, ...] = ()  # the shortest that led here
    admissible: tuple[str, ...] = ()  # at the latest visit that offered any
    last_reward: float = 0.0  # running means over the visits
    total_reward: float = 0.0
    visits: int = 0
    age: int = 0  # of the latest update, counted in updates of the whole table
    values: Mapping[str, ActionValue] = field(default_factory=dict)  # by action

    @property
    def samples(self) -> int:
        """Return the number of updates of all actions."""
        return sum(value.number for value in self.values.values())

    def max_value(self) -> float | None:
        """Return the highest Q; None without any."""
        return max((value.value for value in self.values.values()), default=None)


def update_mean(old: float, new: float, number: int) -> float:
    """Return the mean of `number` values of mean `old`, and a new one."""
    return old + 1 / (number + 1) * (new - old)


def n_step_target(rewards: Sequence[float], gamma: float, bootstrap: float) -> float:
    """Compute ``sum_i gamma^i r_{t+i} + gamma^n max_a Q(g, o_{t+n}, a)``, with n the number of rewards."""
    discounted = math.fsum(gamma**i * reward for i, reward in enumerate(rewards))
    return discounted + gamma ** len(rewards) * bootstrap


def update_record(record: ExperienceRecord, experience: Experience, target: float) -> ExperienceRecord:
    """Update a record by one more visit: the value of the action moves towards `target`."""
    old = record.values.get(experience.action, ActionValue(experience.action, 0.0))
    reward = update_mean(old.reward, experience.reward, old.number)
    value = ActionValue(old.action, reward, update_mean(old.value, target, old.number), old.number + 1)
    shorter = not record.visits or len(experience.history) <= len(record.history)
    return replace(
        record, history=experience.history if shorter else record.history,
        admissible=experience.admissible or record.admissible,
        last_reward=update_mean(record.last_reward, experience.last_reward, record.visits),
        total_reward=update_mean(record.total_reward, experience.total_reward, record.visits),
        visits=record.visits + 1, values={**record.values, value.action: value},
    )  # fmt: skip


def drop_worst_actions(values: Mapping[str, ActionValue], capacity: int) -> dict[str, ActionValue]:
    """Keep at most `capacity` actions: those of the smallest Q are dropped, of equal ones the least updated first."""
    ranked = sorted(values.values(), key=lambda value: (-value.value, -value.number, value.action))
    kept = {value.action for value in ranked[:capacity]}
    return {action: value for action, value in values.items() if action in kept}


SituationKey = tuple[str, str]  # task, observation


class SituationIndex:
    """The records in rows 0, 1, ..., each with the vectors (2, dim) of its task and observation."""

    def __init__(self, config: RemembererConfig, dim: int) -> None:
        self.records: list[ExperienceRecord] = []
        self.age = 0  # the highest of all records
        self.similarity = SituationSimilarity(config, dim)
        self._capacity = config.record_capacity
        self._vectors: list[Floats] = []
        self._rows: dict[SituationKey, int] = {}
        self._pairs: Floats | None = None  # (records, records), once the table is full

    def find(self, situation: SituationKey) -> ExperienceRecord | None:
        """Return the record of exactly this situation."""
        row = self._rows.get(situation)
        return None if row is None else self.records[row]

    def iter_nearest(self, situation: SituationKey, vectors: Floats) -> Iterator[ExperienceRecord]:
        """Yield all records, the most similar first, of equals the most visited, then the latest updated."""
        if not self.records:
            return
        similar = self.similarity.compare_to_all(situation, vectors)
        samples, ages = np.array([(record.samples, record.age) for record in self.records]).T
        for row in np.lexsort((-ages, -samples, -similar)):
            yield self.records[row]

    def put(self, row: int, record: ExperienceRecord, vectors: Floats) -> None:
        """Store `record` in `row`, in place of its earlier record."""
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
        """Store a newer state of a record in its row."""
        self.records[self._rows[_get_key(record)]] = record
        self.age = max(self.age, record.age)

    def choose_row(self, situation: SituationKey, vectors: Floats) -> int | None:
        """Choose the row of a new record; None if it is more like some record than any two records are like each other.

        A full table evicts a record of the most similar pair: the one with more updates; of several such, the one that
        was updated longest ago. A tie with the newcomer does not refuse it: where all situations are equally similar,
        the table would freeze.
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
            compare, rows = self.similarity.compare_to_all, zip(self.records, self._vectors, strict=True)
            self._pairs = np.stack([compare(_get_key(record), vectors) for record, vectors in rows])
            np.fill_diagonal(self._pairs, -np.inf)
        return self._pairs


def _get_key(record: ExperienceRecord) -> SituationKey:
    return record.task, record.observation


class TextSimilarity(Protocol):
    """A similarity measure between a text and those of all kept situations, in rows 0, 1, ..."""

    def put(self, row: int, text: str, vector: Floats) -> None:
        """Store `text`, whose embedding is `vector`, in `row`, in place of its earlier text."""
        ...

    def compare_to_all(self, text: str, vector: Floats, rows: int) -> Floats:
        """Compare `text` to the texts of the first `rows` rows: float32 (rows,)."""
        ...


class SituationSimilarity:
    """The weighted similarity of a situation to all kept ones: one measure for tasks, one for observations.

    ``S = lambda f_task + (1 - lambda) f_observation`` (REMEMBERER, arXiv 2306.07929, section 3.2). The measures are
    `rememberer.task_similarity` and `rememberer.observation_similarity`; each is symmetric, and 1 for equal texts.
    `needs` says whether `compare_to_all` reads the vector of the task, and that of the observation.
    """

    def __init__(self, config: RemembererConfig, dim: int) -> None:
        make: dict[str, Callable[[], TextSimilarity]] = {
            "embedding": lambda: EmbeddingSimilarity(dim), "equal": ExactMatchSimilarity,
            "words": JaccardSimilarity, "lines": LcsSimilarity,
        }  # fmt: skip
        weights = (config.task_weight, 1 - config.task_weight)
        kinds = (config.task_similarity, config.observation_similarity)
        self._parts = [(weight, make[kind]()) for weight, kind in zip(weights, kinds, strict=True)]
        self.needs = tuple(bool(weight) and kind == "embedding" for weight, kind in zip(weights, kinds, strict=True))
        self.rows = 0

    def put(self, row: int, texts: tuple[str, str], vectors: Floats) -> None:
        """Store a situation in `row`, at most one past the last; `vectors` is (2, dim): task, observation."""
        assert 0 <= row <= self.rows, "rows have no gaps"
        self.rows = max(self.rows, row + 1)
        for (_, part), text, vector in zip(self._parts, texts, vectors, strict=True):
            part.put(row, text, vector)

    def compare_to_all(self, texts: tuple[str, str], vectors: Floats) -> Floats:
        """Compare a situation to every row: float32 (rows,), rounded, so that equal situations tie."""
        total = np.zeros(self.rows, np.float32)
        for (weight, part), text, vector in zip(self._parts, texts, vectors, strict=True):
            if weight:
                total += np.float32(weight) * part.compare_to_all(text, vector, self.rows)
        return np.round(total, DECIMALS)


class EmbeddingSimilarity:
    """The cosine similarity of the embeddings."""

    def __init__(self, dim: int) -> None:
        self._vectors = np.zeros((0, dim), np.float32)

    def put(self, row: int, text: str, vector: Floats) -> None:  # noqa: ARG002
        """Store the embedding of a text; see `TextSimilarity.put`."""
        self._vectors = _grow_array(self._vectors, (row + 1, len(vector)), 0)
        self._vectors[row] = vector

    def compare_to_all(self, text: str, vector: Floats, rows: int) -> Floats:  # noqa: ARG002
        """Compare embeddings; see `TextSimilarity.compare_to_all`."""
        return self._vectors[:rows] @ vector


class ExactMatchSimilarity:
    """The equality of texts: 1 for the same text, else 0."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def put(self, row: int, text: str, vector: Floats) -> None:  # noqa: ARG002
        """Store a text; see `TextSimilarity.put`."""
        self._texts[row : row + 1] = [text]

    def compare_to_all(self, text: str, vector: Floats, rows: int) -> Floats:  # noqa: ARG002
        """Compare whole texts; see `TextSimilarity.compare_to_all`."""
        return np.fromiter((text == kept for kept in self._texts[:rows]), np.float32, rows)


class JaccardSimilarity:
    """The shared words among all words of both texts (Jaccard), whatever their order, case and number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # word -> its row in `_holds`
        self._holds = np.zeros((0, 0), np.uint8)  # (words, rows): a word lies in one piece, so that few are summed fast
        self._sizes = np.zeros(0, np.int32)  # (rows,)

    def put(self, row: int, text: str, vector: Floats) -> None:  # noqa: ARG002
        """Store the words of a text; see `TextSimilarity.put`."""
        numbers = [self._numbers.setdefault(word, len(self._numbers)) for word in _split_words(text)]
        self._holds = _grow_array(self._holds, (len(self._numbers), row + 1), 0)
        self._sizes = _grow_array(self._sizes, (row + 1,), 0)
        self._holds[:, row] = 0
        self._holds[numbers, row] = 1
        self._sizes[row] = len(numbers)

    def compare_to_all(self, text: str, vector: Floats, rows: int) -> Floats:  # noqa: ARG002
        """Compare sets of words; two texts without words are equal."""
        words = _split_words(text)
        known = [self._numbers[word] for word in words if word in self._numbers]
        shared = self._holds[known, :rows].sum(axis=0, dtype=np.int32)
        union = self._sizes[:rows] + len(words) - shared
        return np.where(union == 0, 1.0, shared / np.maximum(union, 1)).astype(np.float32)


class LcsSimilarity:
    """The longest common subsequence of lines over the lines of the longer text; blank lines do not count.

    The release compares the tags of web pages so (WikiHow).
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._lines = np.full((0, 0), -1, np.int32)  # (rows, longest), -1 behind the last line
        self._sizes = np.zeros(0, np.int32)

    def put(self, row: int, text: str, vector: Floats) -> None:  # noqa: ARG002
        """Store the lines of a text; see `TextSimilarity.put`."""
        numbers = [self._numbers.setdefault(line, len(self._numbers)) for line in _split_lines(text)]
        self._lines = _grow_array(self._lines, (row + 1, len(numbers)), -1)
        self._sizes = _grow_array(self._sizes, (row + 1,), 0)
        self._lines[row] = -1
        self._lines[row, : len(numbers)] = numbers
        self._sizes[row] = len(numbers)

    def compare_to_all(self, text: str, vector: Floats, rows: int) -> Floats:  # noqa: ARG002
        """Compare lines by the usual dynamic programme, one of its rows at a time for all texts."""
        kept, lines = self._lines[:rows], _split_lines(text)
        longest = np.zeros((rows, kept.shape[1] + 1), np.int32)  # [r, j]: with the first j lines of row r
        for line in lines:
            same = kept == self._numbers.get(line, -2)
            longest[:, 1:] = np.maximum(longest[:, 1:], longest[:, :-1] + same)
            np.maximum.accumulate(longest, axis=1, out=longest)
        longer = np.maximum(self._sizes[:rows], len(lines))
        return np.where(longer == 0, 1.0, longest[:, -1] / np.maximum(longer, 1)).astype(np.float32)


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

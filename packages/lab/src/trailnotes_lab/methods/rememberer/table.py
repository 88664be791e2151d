"""REMEMBERER's memory: a table (goal, observation, action) -> Q in a memory file (arXiv 2306.07929, section 3).

The rows are read once and kept; every change goes to the file in the same transaction. They are read again after
another process has written, or a transaction was undone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from trailnotes.config.section import Section, key
from trailnotes.errors import MemoryStoreError
from trailnotes.memory.retrieval import DECIMALS, WORD, Embedder, Floats, embed_async
from trailnotes.memory.schema import EmbedderIdentity, MemoryFile, require_identity, translate_errors
from trailnotes.memory.tips import MAX_KEY_CHARS
from trailnotes.rollout.advice import MAX_ADVICE_TOKENS, NUM_LAST_ACTIONS
from trailnotes.storage.files import parse_json
from trailnotes.types import replace_surrogates

COLUMNS = ("task", "observation", "history", "admissible", "last_reward", "total_reward", "visits", "age")


class RemembererConfig(Section):
    """REMEMBERER: a table of (task, observation, action) and its value, shown as examples with advice."""

    # Of the release (552cb62)
    task_weight: ClassVar[float] = 0.5  # lambda, weight of the task in the similarity
    record_capacity: ClassVar[int] = 500  # records (task, observation)
    action_capacity: ClassVar[int] = 20  # actions of a record
    examples: ClassVar[int] = 2  # records in a prompt
    history: ClassVar[int] = NUM_LAST_ACTIONS  # last actions in a prompt

    epochs: int = key(3, "passes over the training tasks that fill the table", "Rememberer release 552cb62", ge=0)
    num_tasks: int = key(0, "training tasks, evenly spaced in train.split; 0 = all (release: 10)", ge=0)
    group_size: int = key(1, "episodes of each training task in an epoch", ge=1)
    task_similarity: Literal["embedding", "words", "equal"] = key("embedding", "how two tasks are compared")
    observation_similarity: Literal["embedding", "words", "lines"] = key(
        "words", "how two observations are compared: embeddings, shared words, or the longest common subsequence of "
        "lines")  # fmt: skip
    max_write_tokens: int = key(MAX_ADVICE_TOKENS, "decoding limit of an answer", "Rememberer release 552cb62", ge=1)
    temperature: float = key(0.1, "sampling temperature", "Rememberer release 552cb62", ge=0)


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
    def situation(self) -> SituationKey:
        return self.task, self.observation

    @property
    def samples(self) -> int:
        return sum(value.number for value in self.values.values())

    def rank_values(self) -> list[ActionValue]:
        """Return the actions, the best first."""
        return sorted(self.values.values(), key=lambda value: (-value.value, -value.number, value.action))


def update_mean(old: float, new: float, number: int) -> float:
    return old + 1 / (number + 1) * (new - old)


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


SituationKey = tuple[str, str]  # task, observation


class SituationIndex:
    """The records in rows 0, 1, ..., and their similarity to a situation.

    ``S = lambda f_task + (1 - lambda) f_observation`` (REMEMBERER, arXiv 2306.07929, section 3.2). The measures f are
    `rememberer.task_similarity` and `rememberer.observation_similarity`. `needs` says which of them compare embeddings.
    """

    def __init__(self, config: RemembererConfig) -> None:
        self.records: list[ExperienceRecord] = []
        self.rows: dict[SituationKey, int] = {}
        self._capacity = config.record_capacity
        weights = (config.task_weight, 1 - config.task_weight)
        kinds = (config.task_similarity, config.observation_similarity)
        self._measures = tuple(zip(weights, kinds, strict=True))
        self.needs = tuple(kind == "embedding" for kind in kinds)
        self._features: list[list[Any]] = []  # of each record's task and observation, see `prepare_text`
        self._pairs: Floats | None = None  # (records, records), once the table is full; -inf on the diagonal

    def compare_to_all(self, situation: SituationKey, vectors: Floats) -> Floats:
        """Compare a situation, with the embeddings (2, dim) of its texts, to every record: float32 (records,)."""
        return self._compare(self._prepare(situation, vectors))

    def iter_nearest(self, situation: SituationKey, vectors: Floats) -> Iterator[ExperienceRecord]:
        """Yield all records, the most similar first, of equals the most visited, then the latest updated."""
        if not self.records:
            return
        similar = self.compare_to_all(situation, vectors)
        samples, ages = np.array([(record.samples, record.age) for record in self.records]).T
        for row in np.lexsort((-ages, -samples, -similar)):
            yield self.records[row]

    def put(self, row: int, record: ExperienceRecord, vectors: Floats) -> None:
        if row < len(self.records):
            del self.rows[self.records[row].situation]
        self.rows[record.situation] = row
        self.records[row : row + 1] = [record]
        self._features[row : row + 1] = [self._prepare(record.situation, vectors)]
        if self._pairs is not None:
            self._pairs[row] = self._pairs[:, row] = self._compare(self._features[row])
            self._pairs[row, row] = -np.inf

    def choose_row(self, situation: SituationKey, vectors: Floats) -> int | None:
        """Choose the row of a new record; None if it is more like some record than any two records are like each other.

        A full table evicts a record of the most similar pair: the one with more updates; of several such, the one that
        was updated longest ago. A tie with the newcomer does not refuse it: where all situations are equally similar,
        the table would freeze.
        """
        if len(self.records) < self._capacity:
            return len(self.records)
        if self._pairs is None:
            self._pairs = np.stack([self._compare(features) for features in self._features])
            np.fill_diagonal(self._pairs, -np.inf)
        pairs = self._pairs
        if len(pairs) > 1 and self.compare_to_all(situation, vectors).max() > pairs.max():
            return None
        first, second = np.nonzero(pairs == pairs.max())
        samples = np.array([record.samples for record in self.records])
        candidates = np.unique(np.where(samples[first] >= samples[second], first, second))
        return int(min(candidates, key=lambda row: self.records[row].age))

    def _prepare(self, situation: SituationKey, vectors: Floats) -> list[Any]:
        parts = zip(self._measures, situation, vectors, strict=True)
        return [prepare_text(kind, text, vector) for (_, kind), text, vector in parts]

    def _compare(self, features: Sequence[Any]) -> Floats:
        total = np.zeros(len(self.records), np.float32)
        for part, (weight, kind) in enumerate(self._measures):
            others = [of_record[part] for of_record in self._features]
            total += np.float32(weight) * compare_texts(kind, features[part], others)
        return np.round(total, DECIMALS)


def prepare_text(kind: str, text: str, vector: Floats) -> Any:
    """Prepare a text for `compare_texts`; `vector` is its embedding."""
    if kind == "words":
        return frozenset(WORD.findall(text.lower()))
    if kind == "lines":
        return tuple(" ".join(line.split()) for line in text.splitlines() if line.strip())
    return vector if kind == "embedding" else text


def compare_texts(kind: str, one: Any, others: Sequence[Any]) -> Floats:
    """Compare a prepared text to n others: float32 (n,), 1 for equal texts.

    "embedding": cosine similarity; "equal": 1 for the same text, else 0; "words": shared words among all words of both
    (Jaccard); "lines": longest common subsequence over the lines of the longer text, as the release compares the tags
    of web pages (WikiHow).
    """
    if kind == "embedding":
        cosines: Floats = np.array(others, np.float32) @ one
        return cosines
    if kind == "equal":
        shares = [float(one == other) for other in others]
    elif kind == "words":
        shared = [len(one & other) for other in others]
        either = [len(one) + len(other) - both for other, both in zip(others, shared, strict=True)]
        shares = [both / union if union else 1.0 for both, union in zip(shared, either, strict=True)]
    else:
        longer = [max(len(one), len(other)) for other in others]
        common = count_common_lines(one, others)
        shares = [both / most if most else 1.0 for both, most in zip(common, longer, strict=True)]
    return np.array(shares, np.float32)


def count_common_lines(one: Sequence[str], others: Sequence[Sequence[str]]) -> list[int]:
    """Compute the length of the longest common subsequence with each of `others`, all at the same time."""
    numbers = {line: number for number, line in enumerate(one)}
    kept = np.full((len(others), max(map(len, others))), -1)
    for row, lines in enumerate(others):
        kept[row, : len(lines)] = [numbers.get(line, -1) for line in lines]
    longest = np.zeros((len(others), kept.shape[1] + 1), np.int32)  # [r, j]: with the first j lines of row r
    for line in one:
        longest[:, 1:] = np.maximum(longest[:, 1:], longest[:, :-1] + (kept == numbers[line]))
        np.maximum.accumulate(longest, axis=1, out=longest)
    return longest[:, -1].tolist()  # type: ignore[no-any-return]


class ExperienceTable(MemoryFile):
    """Situations, the values of the actions taken there, and the most similar situations to a new one.

    Args:
        path: the file, made if it is missing; None keeps everything in memory.
        embedder: turns tasks and observations into unit vectors, once for each record.
        config: learning rule, similarity, capacities.
    """

    def __init__(self, path: Path | None, embedder: Embedder, config: RemembererConfig) -> None:
        super().__init__(path, identity := EmbedderIdentity(embedder.name, embedder.dim))
        self.embedder, self.config = embedder, config
        self._situations = SituationIndex(config)
        self._data_version = -1  # of the rows kept there; -1 has them read again
        try:
            require_identity(self.identity, identity, path)
        except MemoryStoreError:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._load_situations().records)

    def find(self, task: str, observation: str) -> ExperienceRecord | None:
        situations = self._load_situations()
        row = situations.rows.get(_make_situation(task, observation))
        return None if row is None else situations.records[row]

    def iter_nearest(self, task: str, observation: str) -> Iterator[ExperienceRecord]:
        situations, texts = self._load_situations(), _make_situation(task, observation)
        return situations.iter_nearest(texts, self._embed(texts, situations.needs))

    async def prefetch_embeddings(self, task: str, observation: str) -> None:
        texts = zip(_make_situation(task, observation), self._load_situations().needs, strict=True)
        await embed_async(self.embedder, [text[:MAX_KEY_CHARS] for text, need in texts if need])

    def stats(self) -> dict[str, float]:
        """Return counts and range: records, actions, updates, q_max, q_min (0 in an empty table)."""
        records = self._load_situations().records
        values = [value for record in records for value in record.values.values()]
        q = [value.value for value in values]
        return {
            "records": float(len(records)), "actions": float(len(values)),
            "updates": float(sum(value.number for value in values)),
            "q_max": max(q, default=0.0), "q_min": min(q, default=0.0),
        }  # fmt: skip

    def learn(self, episode: Sequence[Experience]) -> None:
        """Update the table by the decisions of one episode, in their order, inside ``with table.transaction():``.

        The target of a decision is the sum of the rewards until the end (Monte Carlo).
        """
        for position, experience in enumerate(episode):
            self._learn_step(experience, math.fsum(each.reward for each in episode[position:]))

    def _on_rollback(self) -> None:
        self._data_version = -1

    def _learn_step(self, experience: Experience, target: float) -> None:
        situations = self._load_situations()
        experience = replace(experience, action=replace_surrogates(experience.action))
        texts = _make_situation(experience.task, experience.observation)
        row = situations.rows.get(texts)
        old = ExperienceRecord(0, *texts) if row is None else situations.records[row]
        record = update_record(old, experience, target)
        kept = {value.action for value in record.rank_values()[: self.config.action_capacity]}
        values = {action: value for action, value in record.values.items() if action in kept}
        record = replace(record, values=values, age=1 + max((each.age for each in situations.records), default=0))
        if row is None:
            vectors = self._embed(texts)
            row = situations.choose_row(texts, vectors)
            if row is None:
                return
            for evicted in situations.records[row : row + 1]:
                self.write("DELETE FROM experience WHERE id = ?", (evicted.id,))
                self.write("DELETE FROM experience_values WHERE record = ?", (evicted.id,))
            marks = ", ".join("?" * (len(COLUMNS) + 1))
            sql = f"INSERT INTO experience ({', '.join(COLUMNS)}, vectors) VALUES ({marks})"  # noqa: S608
            cursor = self.write(sql, (*_encode_columns(record), vectors.astype("<f4").tobytes()))
            record = replace(record, id=int(cursor.lastrowid or 0))
            situations.put(row, record, vectors)
        else:
            situations.records[row] = record
            assignments = ", ".join(f"{name} = ?" for name in COLUMNS)
            self.write(f"UPDATE experience SET {assignments} WHERE id = ?", (*_encode_columns(record), record.id))  # noqa: S608
        for action in old.values.keys() - record.values.keys():
            self.write("DELETE FROM experience_values WHERE record = ? AND action = ?", (record.id, action))
        for value in record.values.values():
            self.write(
                "INSERT OR REPLACE INTO experience_values VALUES (?, ?, ?, ?, ?, 0.0, 0)",  # two unused columns
                (record.id, value.action, value.reward, value.value, value.number),
            )

    def _embed(self, texts: SituationKey, needs: Sequence[bool] = (True, True)) -> Floats:
        vectors = np.zeros((2, self.embedder.dim), np.float32)
        wanted = [index for index, need in enumerate(needs) if need]
        vectors[wanted] = self.embedder.embed([texts[index][:MAX_KEY_CHARS] for index in wanted])
        return vectors

    def _load_situations(self) -> SituationIndex:
        with self.lock, translate_errors(self.path):
            ((version,),) = self.query("PRAGMA data_version")  # another connection's writes
            if version != self._data_version:
                self._situations = SituationIndex(self.config)
                values: dict[int, dict[str, ActionValue]] = {}
                for record, action, reward, q, number, *_ in self.query("SELECT * FROM experience_values"):
                    values.setdefault(record, {})[action] = ActionValue(action, reward, q, number)
                rows = self.query(f"SELECT id, vectors, {', '.join(COLUMNS)} FROM experience ORDER BY id")  # noqa: S608
                for row, record in enumerate(rows):
                    number, blob, task, observation, history, admissible, last, total, visits, age = record
                    done, offered = (tuple(parse_json(texts)) for texts in (history, admissible))
                    vectors = np.frombuffer(blob, "<f4").reshape(2, -1).astype(np.float32, copy=False)
                    whole = ExperienceRecord(
                        number, task, observation, done, offered, last, total, visits, age, values.get(number, {})
                    )
                    self._situations.put(row, whole, vectors)
                self._data_version = version
            return self._situations


def _make_situation(task: str, observation: str) -> SituationKey:
    return replace_surrogates(task), replace_surrogates(observation)


def _encode_columns(record: ExperienceRecord) -> tuple[Any, ...]:
    values = (getattr(record, name) for name in COLUMNS)
    return tuple(json.dumps(value) if isinstance(value, tuple) else value for value in values)

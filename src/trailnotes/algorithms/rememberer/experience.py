"""REMEMBERER's memory: a table (goal, observation, action) -> Q in a memory file (arXiv 2306.07929, section 3).

The rows are read once and kept; every change goes to the file in the same transaction. They are read again after
another process has written, or a transaction was undone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trailnotes.algorithms.rememberer import RemembererConfig
from trailnotes.algorithms.rememberer import situations as arithmetic
from trailnotes.algorithms.rememberer.situations import Experience, ExperienceRecord, SituationIndex, SituationKey
from trailnotes.config.schema import Config
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import schema
from trailnotes.memory.index import decode_vectors
from trailnotes.memory.retrieval import Embedder, Floats, embed_async, embedder_of
from trailnotes.memory.schema import EmbedderIdentity, MemoryFile, translate_errors
from trailnotes.memory.tips import MAX_KEY_CHARS
from trailnotes.storage.files import parse_json
from trailnotes.types import replace_surrogates

COLUMNS = ("task", "observation", "history", "admissible", "last_reward", "total_reward", "visits", "age")


class ExperienceTable(MemoryFile):
    """Situations, the values of the actions taken there, and the most similar situations to a new one.

    Args:
        path: the file, made if it is missing; None keeps everything in memory.
        embedder: turns tasks and observations into unit vectors, once for each record.
        config: learning rule, similarity, capacities.

    Raises:
        MemoryStoreError: the file is damaged, of a newer version, of another embedder, or above the capacity.
    """

    def __init__(self, path: Path | None, embedder: Embedder, config: RemembererConfig) -> None:
        super().__init__(path, EmbedderIdentity(embedder.name, embedder.dim))
        self.embedder, self.config = embedder, config
        self._situations = SituationIndex(config, embedder.dim)
        self._data_version = -1  # of the rows kept there; -1 has them read again
        try:
            self._check_table(self._connection, path)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._load_situations().records)

    # reading

    def find(self, task: str, observation: str) -> ExperienceRecord | None:
        """Return the record of exactly this situation."""
        return self._load_situations().find(_make_situation(task, observation))

    def iter_nearest(self, task: str, observation: str) -> Iterator[ExperienceRecord]:
        """Yield all records, the most similar first, of equals the most visited, then the latest updated."""
        situations, texts = self._load_situations(), _make_situation(task, observation)
        return situations.iter_nearest(texts, self._embed(texts, situations.similarity.needs))

    async def prefetch_embeddings(self, task: str, observation: str) -> None:
        """Embed the texts that `iter_nearest` needs, off the event loop."""
        needs = self._load_situations().similarity.needs
        texts = zip(_make_situation(task, observation), needs, strict=True)
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

    # writing, inside `with table.transaction():`

    def learn(self, episode: Sequence[Experience]) -> None:
        """Update the table by the decisions of one episode, in their order.

        The target of a decision is the discounted sum of the next n rewards, and beyond them the best value of the
        situation then met: of its own record, else of the most similar other one (0 in an empty table). The last n
        decisions, or all with `n_step = 0` (Monte Carlo), have the rewards until the end and no bootstrap.
        """
        for position in range(len(episode)):
            self._update_from_step(episode, position)

    # whole files

    def restore(self, path: Path) -> None:
        """Replace the content by that of a snapshot, in one transaction.

        Raises:
            MemoryStoreError: it is missing, damaged, of another embedder, or above the capacity; nothing has changed.
        """
        with self._lock, schema.open_snapshot(path) as source:
            self._check_table(source, path)
            with translate_errors(self.path):
                source.backup(self._connection)
                schema.migrate(self._connection)
            self._data_version = -1

    # learning

    def _on_rollback(self) -> None:
        self._data_version = -1

    def _update_from_step(self, episode: Sequence[Experience], position: int) -> None:
        situations, config = self._load_situations(), self.config
        experience = replace(episode[position], action=replace_surrogates(episode[position].action))
        texts = _make_situation(experience.task, experience.observation)
        old = situations.find(texts) or ExperienceRecord(0, *texts)
        after = position + (config.n_step or len(episode))
        rewards = [each.reward for each in episode[position:after]]
        bootstrap = self._compute_bootstrap(episode[after], episode[position]) if after < len(episode) else 0.0
        target = arithmetic.n_step_target(rewards, config.gamma, bootstrap)
        record = arithmetic.update_record(old, experience, target)
        kept = arithmetic.drop_worst_actions(record.values, config.action_capacity)
        record = replace(record, values=kept, age=situations.age + 1)
        if not old.id:
            vectors = self._embed(texts)
            row = situations.choose_row(texts, vectors)
            if row is None:
                return
            for evicted in situations.records[row : row + 1]:
                self._write("DELETE FROM experience WHERE id = ?", (evicted.id,))
                self._write("DELETE FROM experience_values WHERE record = ?", (evicted.id,))
            marks = ", ".join("?" * (len(COLUMNS) + 1))
            sql = f"INSERT INTO experience ({', '.join(COLUMNS)}, vectors) VALUES ({marks})"  # noqa: S608
            cursor = self._write(sql, (*_encode_columns(record), vectors.astype("<f4").tobytes()))
            record = replace(record, id=int(cursor.lastrowid or 0))
            situations.put(row, record, vectors)
        situations.update(record)
        self._save(record, old.values.keys() - record.values.keys())

    def _compute_bootstrap(self, after: Experience, own: Experience) -> float:
        """The best value of the situation of `after`; where it is unknown, that of another record than `own`."""
        exact = self.find(after.task, after.observation)
        if exact is not None and (best := exact.max_value()) is not None:
            return best
        left_out = _make_situation(own.task, own.observation)
        for record in self.iter_nearest(after.task, after.observation):
            if (record.task, record.observation) != left_out and (best := record.max_value()) is not None:
                return best
        return 0.0

    def _embed(self, texts: SituationKey, needs: Sequence[bool] = (True, True)) -> Floats:
        """(2, dim); zeros for a text whose embedding is not needed."""
        vectors = np.zeros((2, self.embedder.dim), np.float32)
        wanted = [index for index, need in enumerate(needs) if need]
        vectors[wanted] = self.embedder.embed([texts[index][:MAX_KEY_CHARS] for index in wanted])
        return vectors

    # rows

    def _save(self, record: ExperienceRecord, dropped: Iterable[str]) -> None:
        assignments = ", ".join(f"{name} = ?" for name in COLUMNS)
        self._write(f"UPDATE experience SET {assignments} WHERE id = ?", (*_encode_columns(record), record.id))  # noqa: S608
        for action in dropped:
            self._write("DELETE FROM experience_values WHERE record = ? AND action = ?", (record.id, action))
        for value in record.values.values():
            self._write(
                "INSERT OR REPLACE INTO experience_values VALUES (?, ?, ?, ?, ?, 0.0, 0)",  # two unused columns
                (record.id, value.action, value.reward, value.value, value.number),
            )

    def _load_situations(self) -> SituationIndex:
        with self._lock, translate_errors(self.path):
            ((version,),) = self._query("PRAGMA data_version")  # another connection's writes
            if version != self._data_version:
                self._situations = SituationIndex(self.config, self.embedder.dim)
                for row, (record, vectors) in enumerate(_iter_records(self._connection, self.embedder.dim)):
                    self._situations.put(row, record, vectors)
                self._data_version = version
            return self._situations

    def _check_table(self, connection: Any, path: Path | None) -> None:
        wanted = EmbedderIdentity(self.embedder.name, self.embedder.dim)
        schema.require_identity(schema.read_identity(connection), wanted, path)
        (number,) = connection.execute("SELECT COUNT(*) FROM experience").fetchone()
        if number > self.config.record_capacity:
            raise MemoryStoreError(f"{path} holds {number} records, above the {self.config.record_capacity} of a table")


def open_experience(path: Path | None, config: Config) -> ExperienceTable:
    """Open the table in the file `path`, which is made if it is missing; None keeps it in this process only.

    Raises:
        MemoryStoreError: see `ExperienceTable`.
        MissingExtraError: the embedder needs a package that is not installed.
    """
    return ExperienceTable(path, embedder_of(config), config.section(RemembererConfig))


def _make_situation(task: str, observation: str) -> SituationKey:
    return replace_surrogates(task), replace_surrogates(observation)


def _encode_columns(record: ExperienceRecord) -> tuple[Any, ...]:
    values = (getattr(record, name) for name in COLUMNS)
    return tuple(json.dumps(value) if isinstance(value, tuple) else value for value in values)


def _iter_records(connection: Any, dim: int) -> Iterator[tuple[ExperienceRecord, Floats]]:
    """Every record with its vectors (2, dim), the oldest first."""
    values: dict[int, dict[str, arithmetic.ActionValue]] = {}
    for record, action, reward, q, number, *_ in connection.execute("SELECT * FROM experience_values"):
        values.setdefault(record, {})[action] = arithmetic.ActionValue(action, reward, q, number)
    rows = connection.execute(f"SELECT id, {', '.join(COLUMNS)}, vectors FROM experience ORDER BY id")  # noqa: S608
    for record_id, task, observation, history, admissible, *numbers, blob in rows:
        facts: dict[str, Any] = {"history": tuple(parse_json(history)), "admissible": tuple(parse_json(admissible))}
        facts |= zip(COLUMNS[4:], numbers, strict=True)
        vectors = decode_vectors([blob[: 4 * dim], blob[4 * dim :]], dim)
        yield ExperienceRecord(record_id, task, observation, **facts, values=values.get(record_id, {})), vectors

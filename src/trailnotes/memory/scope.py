"""Whose tips a search goes through: the tasks that a memory has met, and who of them may read whom.

A task reads what was written about games of its own split, and of the split that training learns from, which is open to
all. What was written about a game that stands in another split as well, under whatever id, is not among it: games are
told apart by what is played, as in `envs.tasks.shared`, and not by the names of their splits.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from trailnotes.memory.openfile import MemoryFile
from trailnotes.memory.schema import EmbedderIdentity, read_rows, replace_surrogates
from trailnotes.types import StrPath, Task

Scope = Literal["task", "family", "env", "all"]


class TipFilter(NamedTuple):
    """Tips of several tasks: those of the rows that `condition` takes. Equal places are one page."""

    condition: str  # on rows of `tips`
    values: tuple[str, ...]


ALL_TIPS = TipFilter("TRUE", ())
TaskRow = tuple[str, ...]  # of the table: namespace, split, env, family, game
UPSERT_TASK = "INSERT OR REPLACE INTO tasks (namespace, split, env, family, game) VALUES (?, ?, ?, ?, ?)"


def make_tip_filter(namespace: str | TipFilter) -> TipFilter:
    """The tips of one task as a place; a place is one already."""
    return namespace if isinstance(namespace, TipFilter) else TipFilter("namespace = ?", (namespace,))


class TaskInfo(NamedTuple):
    """What the memory knows of a task."""

    env: str
    family: str
    split: str


class TaskTable(MemoryFile):
    """The tasks that a memory has met."""

    def __init__(self, path: StrPath | None, identity: EmbedderIdentity | None = None) -> None:
        super().__init__(path, identity)
        self._tasks_of: list[tuple[str, Any]] = []  # state of the file that the next two are of
        self._readers: dict[tuple[str, str], dict[str, TaskInfo]] = {}
        self._places: dict[tuple[TaskInfo, Scope, str], TipFilter] = {}

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        """Keep where `tasks` belong; returns whether there was anything new."""
        rows = {_make_task_row(task) for task in tasks}
        known = {
            row
            for namespace in {namespace for namespace, *_ in rows}
            for row in self._query("SELECT * FROM tasks WHERE namespace = ?", (namespace,))
        }
        if rows <= known:
            return False
        with self.transaction():
            self._insert_tasks(rows - known)
        return True

    def import_tasks(self, rows: Iterable[TaskRow]) -> None:
        """Keep what other memories have met; where they contradict each other, the last by order counts."""
        with self.transaction():
            self._insert_tasks(set(rows))

    def _insert_tasks(self, rows: Collection[TaskRow]) -> None:
        """Within a transaction; whoever has worked out who reads what does so again."""
        self._connection.executemany(UPSERT_TASK, sorted(rows))
        self._connection.execute("INSERT INTO meta VALUES ('met', 1) ON CONFLICT DO UPDATE SET value = value + 1")

    def get_task_info(self, namespace: str) -> TaskInfo | None:
        """Where a task belongs; None if it was never met, or under two splits."""
        rows = self._query("SELECT env, family, split FROM tasks WHERE namespace = ?", (namespace,))
        return TaskInfo(*rows[0]) if len(rows) == 1 else None

    def list_families(self, place: TipFilter) -> list[tuple[str, str]]:
        """Environment and family of the tasks in `place` that have an enabled tip, each once."""
        with_tips = "namespace IN (SELECT namespace FROM tips WHERE enabled)"
        sql = f"SELECT DISTINCT env, family FROM tasks WHERE {place.condition} AND {with_tips}"  # noqa: S608 (constants)
        return self._query(sql, place.values)

    def get_search_filter(self, namespace: str, scope: Scope, open_split: str) -> TipFilter | None:
        """What a task searches in `scope`, its own tips among them.

        Args:
            namespace: id of the task.
            scope: family, env or all.
            open_split: whose tips the games of all splits may read.

        Returns:
            None where the task was never met, or its own tips are not readable: it searches these alone.
        """
        task = self.get_task_info(namespace)
        if task is None or namespace not in self._load_readable_tasks(task.split, open_split):
            return None
        return self.build_search_filter(task, scope, open_split)

    def build_search_filter(self, task: TaskInfo, scope: Scope, open_split: str) -> TipFilter:
        """The tips in `scope` that a game where `task` belongs may read."""
        readable = self._load_readable_tasks(task.split, open_split)  # and what is kept belongs to the tasks of now
        slot = (task, scope, open_split)
        if slot not in self._places:
            within = {"family": 2, "env": 1, "all": 0}[scope]
            names = sorted(name for name, other in readable.items() if other[:within] == task[:within])
            self._places[slot] = TipFilter("namespace IN (SELECT value FROM json_each(?))", (json.dumps(names),))
        return self._places[slot]

    def get_capacity_pool(self, namespace: str, scope: Scope) -> TipFilter:
        """The tips that share one capacity with those of a task: of `scope`, about games of its split that it may read.

        So what was written about games held back takes no place from what training reads.
        """
        task = self.get_task_info(namespace) if scope != "task" else None
        return (task and self.get_search_filter(namespace, scope, task.split)) or make_tip_filter(namespace)

    def _on_rollback(self) -> None:
        """Numbers that are given again."""
        self._tasks_of = []
        super()._on_rollback()

    def _load_readable_tasks(self, split: str, open_split: str) -> dict[str, TaskInfo]:
        """Where the tasks belong whose tips may be read in a split: every id of their game is of that split or open.

        What several tasks of one split have in common tells no games apart, and then the id is the game. Worked out
        when tasks have been met since, by anybody.
        """
        sql = "SELECT name, value FROM meta WHERE name IN ('era', 'met') ORDER BY name"
        with self._lock:
            if (state := self._query(sql)) != self._tasks_of:
                self._tasks_of = state
                self._readers.clear()
                self._places.clear()
            if (split, open_split) not in self._readers:
                rows = self._query("SELECT namespace, split, env, family, game FROM tasks")
                self._readers[split, open_split] = _select_readable_tasks(rows, {split, open_split})
            return self._readers[split, open_split]


def read_tasks(source: sqlite3.Connection) -> list[TaskRow]:
    """The tasks that a memory file has met; none where an earlier version wrote it."""
    if not source.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'tasks'").fetchone():
        return []
    return read_rows(source, "SELECT namespace, split, env, family, game FROM tasks")


def _select_readable_tasks(rows: Sequence[tuple[str, ...]], splits: set[str]) -> dict[str, TaskInfo]:
    """Of rows (namespace, split, env, family, game), see `TaskTable._load_readable_tasks`."""
    counts = Counter((game, split) for _, split, _, _, game in rows)
    common = {game for (game, _), count in counts.items() if count > 1}
    held_names = {name for name, split, *_ in rows if split not in splits}
    held_games = {game for _, split, _, _, game in rows if split not in splits} - common
    return {
        name: TaskInfo(env, family, split)
        for name, split, env, family, game in rows
        if split in splits and name not in held_names and game not in held_games
    }


def _make_task_row(task: Task) -> tuple[str, ...]:
    game = json.dumps([task.env, task.seed, dict(task.options)] if task.seed or task.options else task.id,
                      sort_keys=True, default=str)  # fmt: skip
    digest = hashlib.blake2b(game.encode(), digest_size=16).hexdigest()
    return *map(replace_surrogates, (task.id, task.split, task.env, task.family)), digest

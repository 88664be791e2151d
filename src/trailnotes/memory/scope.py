"""The tips that a search goes through: those of the tasks that a task may read, without those marked as retired.

A task reads tips about games of its own split, and of the shared split that training learns from. Tips about a game
that also belongs to another split, under whatever id, are left out: `envs.tasks.find_shared_tasks` and this module
identify games by what is played, not by the names of their splits.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from trailnotes.memory.schema import MemoryFile
from trailnotes.types import Task, replace_surrogates

Scope = Literal["task", "family", "env", "all"]
FILTER_FIELDS: Final = ("namespace", "score", "action", "step", "model", "version", "run", "imported")


class TipFilter(NamedTuple):
    """A condition that selects tips, perhaps of several tasks. Equal filters share one cached page."""

    condition: str  # on rows of `tips`
    values: tuple[str | float, ...]


ALL_TIPS = TipFilter("TRUE", ())


def make_tip_filter(namespace: str | TipFilter) -> TipFilter:
    return namespace if isinstance(namespace, TipFilter) else TipFilter("namespace = ?", (namespace,))


def add_filters(namespace: str | TipFilter, filters: Mapping[str, str | float]) -> TipFilter:
    """Narrow a filter to the tips whose fields have these values."""
    place, names = make_tip_filter(namespace), sorted(filters)
    if unknown := [name for name in names if name not in FILTER_FIELDS]:
        raise ValueError(f"filters may name {', '.join(FILTER_FIELDS)}, not {unknown[0]!r}")
    condition = " AND ".join([place.condition, *(f"{name} = ?" for name in names)])
    return TipFilter(condition, (*place.values, *(filters[name] for name in names)))


class TaskInfo(NamedTuple):
    """The place of a task."""

    env: str
    family: str
    split: str


class TaskTable:
    """The tasks that a memory file knows."""

    def __init__(self, file: MemoryFile) -> None:
        self._file = file
        self._state: list[Any] = []  # of the file, that the next two belong to
        self._readers: dict[tuple[str, str], dict[str, TaskInfo]] = {}
        self._places: dict[tuple[TaskInfo, Scope, str], TipFilter] = {}

    def register(self, tasks: Sequence[Task]) -> bool:
        rows = {_make_task_row(task) for task in tasks}
        sql = "SELECT * FROM tasks WHERE namespace = ?"
        known = {row for namespace in {row[0] for row in rows} for row in self._file.query(sql, (namespace,))}
        if rows <= known:
            return False
        with self._file.transaction():
            upsert = "INSERT OR REPLACE INTO tasks (namespace, split, env, family, game) VALUES (?, ?, ?, ?, ?)"
            self._file.connection.executemany(upsert, sorted(rows - known))
            # Raises the counter that makes every process recompute who may read whom.
            self._file.write("INSERT INTO meta VALUES ('met', 1) ON CONFLICT DO UPDATE SET value = value + 1")
        return True

    def get_info(self, namespace: str) -> TaskInfo | None:
        rows = self._file.query("SELECT env, family, split FROM tasks WHERE namespace = ?", (namespace,))
        return TaskInfo(*rows[0]) if len(rows) == 1 else None

    def list_families(self, place: TipFilter) -> list[tuple[str, str]]:
        """List environment and family of the tasks in `place` that have an enabled tip."""
        with_tips = "namespace IN (SELECT namespace FROM tips WHERE enabled)"
        sql = f"SELECT DISTINCT env, family FROM tasks WHERE {place.condition} AND {with_tips}"  # noqa: S608 (constants)
        return self._file.query(sql, place.values)

    def get_search_filter(self, namespace: str, scope: Scope, shared_split: str) -> TipFilter | None:
        """Return the filter of what a task searches in `scope`, its own tips included; None: these alone.

        All splits may read the tips of `shared_split`.
        """
        task = self.get_info(namespace) if scope != "task" else None
        if task is None or namespace not in self._load_readable_tasks(task.split, shared_split):
            return None
        return self.build_search_filter(task, scope, shared_split)

    def build_search_filter(self, task: TaskInfo, scope: Scope, shared_split: str) -> TipFilter:
        """Return the filter of the tips in `scope` that a game where `task` belongs may read."""
        readable = self._load_readable_tasks(task.split, shared_split)  # and what is kept belongs to the tasks of now
        slot = (task, scope, shared_split)
        if slot not in self._places:
            within = {"family": 2, "env": 1, "all": 0}[scope]
            names = sorted(name for name, other in readable.items() if other[:within] == task[:within])
            self._places[slot] = TipFilter("namespace IN (SELECT value FROM json_each(?))", (json.dumps(names),))
        return self._places[slot]

    def get_capacity_pool(self, namespace: str, scope: Scope) -> TipFilter:
        """Return the filter of the tips that share a capacity with a task's: in `scope`, of its split, readable."""
        task = self.get_info(namespace) if scope != "task" else None
        return (task and self.get_search_filter(namespace, scope, task.split)) or make_tip_filter(namespace)

    def _load_readable_tasks(self, split: str, shared_split: str) -> dict[str, TaskInfo]:
        """Load the tasks that a split may read: every id of their game is of that split or the shared one."""
        sql = "SELECT name, value FROM meta WHERE name IN ('era', 'met') ORDER BY name"
        with self._file.lock:
            if (state := self._file.query(sql)) != self._state:
                self._state = state
                self._readers.clear()
                self._places.clear()
            if (split, shared_split) not in self._readers:
                rows = self._file.query("SELECT namespace, split, env, family, game FROM tasks")
                counts = Counter((game, split) for _, split, _, _, game in rows)
                common = {game for (game, _), count in counts.items() if count > 1}  # these identify no task
                held_out = [row for row in rows if row[1] not in {split, shared_split}]
                held_names, held_games = {row[0] for row in held_out}, {row[4] for row in held_out} - common
                self._readers[split, shared_split] = {
                    name: TaskInfo(env, family, split)
                    for name, split, env, family, game in rows
                    if name not in held_names and game not in held_games
                }
            return self._readers[split, shared_split]


def _make_task_row(task: Task) -> tuple[str, ...]:
    """Return namespace, split, environment, family and game of a task."""
    game = [task.env, task.seed, dict(task.options)] if task.seed or task.options else task.id
    digest = hashlib.blake2b(json.dumps(game, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
    return *map(replace_surrogates, (task.id, task.split, task.env, task.family)), digest

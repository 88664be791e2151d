"""The tips that a search goes through: those of the tasks that a task may read, without those marked as retired.

A task reads tips about games of its own split, and of the shared split that training learns from. Tips about a game
that also belongs to another split, under whatever id, are left out: `envs.tasks.find_shared_tasks` and this module
identify games by what is played, not by the names of their splits.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from trailnotes.memory.schema import WORTH_SQL, EmbedderIdentity, MemoryFile
from trailnotes.types import StrPath, Task, replace_surrogates

Scope = Literal["task", "family", "env", "all"]
FILTER_FIELDS: Final = ("namespace", "score", "action", "step", "model", "version", "run", "imported")
DISTILLED: Final = "distilled"  # beside the rules of `memory.retire`
EVICTION_ORDERS: Final = {"oldest": "age", "least_used": "shown, age", "least_worth": f"{WORTH_SQL}, age"}
RETIREMENT_COLUMNS: Final = ("retired", "retired_at", "retired_on", "retired_by")  # of a `Retirement`
CLEAR_RETIREMENT: Final = "retired = '', retired_at = 0, retired_on = '', retired_by = '', merged_into = 0"


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


class TaskTable(MemoryFile):
    """The tasks that a memory knows."""

    def __init__(self, path: StrPath | None, identity: EmbedderIdentity | None = None) -> None:
        super().__init__(path, identity)
        self._tasks_of: list[tuple[str, Any]] = []  # state of the file that the next two belong to
        self._readers: dict[tuple[str, str], dict[str, TaskInfo]] = {}
        self._places: dict[tuple[TaskInfo, Scope, str], TipFilter] = {}

    def register_tasks(self, tasks: Sequence[Task]) -> bool:
        rows = {_make_task_row(task) for task in tasks}
        sql = "SELECT * FROM tasks WHERE namespace = ?"
        known = {row for namespace in {row[0] for row in rows} for row in self._query(sql, (namespace,))}
        if rows <= known:
            return False
        with self.transaction():
            upsert = "INSERT OR REPLACE INTO tasks (namespace, split, env, family, game) VALUES (?, ?, ?, ?, ?)"
            self._connection.executemany(upsert, sorted(rows - known))
            # Raises the counter that makes every process recompute who may read whom.
            self._connection.execute("INSERT INTO meta VALUES ('met', 1) ON CONFLICT DO UPDATE SET value = value + 1")
        return True

    def get_task_info(self, namespace: str) -> TaskInfo | None:
        rows = self._query("SELECT env, family, split FROM tasks WHERE namespace = ?", (namespace,))
        return TaskInfo(*rows[0]) if len(rows) == 1 else None

    def list_families(self, place: TipFilter) -> list[tuple[str, str]]:
        """List environment and family of the tasks in `place` that have an enabled tip."""
        with_tips = "namespace IN (SELECT namespace FROM tips WHERE enabled)"
        sql = f"SELECT DISTINCT env, family FROM tasks WHERE {place.condition} AND {with_tips}"  # noqa: S608 (constants)
        return self._query(sql, place.values)

    def get_search_filter(self, namespace: str, scope: Scope, shared_split: str) -> TipFilter | None:
        """Return the filter of what a task searches in `scope`, its own tips included; None: these alone.

        All splits may read the tips of `shared_split`.
        """
        task = self.get_task_info(namespace) if scope != "task" else None
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
        task = self.get_task_info(namespace) if scope != "task" else None
        return (task and self.get_search_filter(namespace, scope, task.split)) or make_tip_filter(namespace)

    def _on_rollback(self) -> None:
        self._tasks_of = []
        super()._on_rollback()

    def _load_readable_tasks(self, split: str, shared_split: str) -> dict[str, TaskInfo]:
        """Load the tasks that a split may read: every id of their game is of that split or the shared one."""
        sql = "SELECT name, value FROM meta WHERE name IN ('era', 'met') ORDER BY name"
        with self._lock:
            if (state := self._query(sql)) != self._tasks_of:
                self._tasks_of = state
                self._readers.clear()
                self._places.clear()
            if (split, shared_split) not in self._readers:
                rows = self._query("SELECT namespace, split, env, family, game FROM tasks")
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
    game = json.dumps([task.env, task.seed, dict(task.options)] if task.seed or task.options else task.id,
                      sort_keys=True, default=str)  # fmt: skip
    digest = hashlib.blake2b(game.encode(), digest_size=16).hexdigest()
    return *map(replace_surrogates, (task.id, task.split, task.env, task.family)), digest


class Retirement(NamedTuple):
    """The reason why a tip is no longer searched."""

    rule: str  # of `memory.retire`, or `DISTILLED`
    write: int  # number of the write that retired it
    on: str  # ISO 8601, UTC; information only
    by: str  # the setting or the measure that decided


class RetiredTips(MemoryFile):
    """The marks of retirement on rows of tips. Enabled tips have none, and nothing is deleted."""

    def load_retirements(self, tip_id: int | None = None) -> dict[int, Retirement]:
        where, values = ("id = ?", (tip_id,)) if tip_id is not None else ("retired_at > 0", ())
        sql = f"SELECT id, {', '.join(RETIREMENT_COLUMNS)} FROM tips WHERE {where}"  # noqa: S608 (constants)
        return {tip: Retirement(*mark) for tip, *mark in self._query(f"{sql} AND retired <> '' ORDER BY id", values)}

    def select_victims(self, pool: TipFilter, rule: str, count: int, *, spared: int = 0) -> list[int]:
        """Return ids of `count` enabled tips by a rule of `EVICTION_ORDERS`, without the `spared` newest."""
        enabled = f"{pool.condition} AND enabled"
        where, values = enabled, list[str | float](pool.values)
        if spared:
            newest = f"SELECT age FROM tips WHERE {enabled} ORDER BY age DESC LIMIT ?"  # noqa: S608 (constants)
            where = f"{where} AND +age < (SELECT MIN(age) FROM ({newest}))"  # noqa: S608 (constants)
            values += [*pool.values, spared]
        sql = f"SELECT id FROM tips WHERE {where} ORDER BY {EVICTION_ORDERS[rule]} LIMIT ?"  # noqa: S608 (constants)
        return [tip for (tip,) in self._query(sql, [*values, count])]

    # writing, inside `with store.transaction():`

    def retire(self, ids: Iterable[int], rule: str, by: str, *, on: str = "") -> int:
        """Stop searching these enabled tips, and mark them, as a numbered write; return their number."""
        sql = (
            "UPDATE tips SET enabled = 0, retired = ?, retired_at = ?, retired_on = ?, retired_by = ? "
            "WHERE id = ? AND enabled RETURNING namespace"
        )
        mark = (rule, self.sequence + 1, on, by)
        gone = [name for tip_id in ids for (name,) in self._query(sql, (*mark, tip_id))]
        if gone:
            self._advance_sequence()
        self._touched.update(gone)
        return len(gone)

    def set_all_enabled(self, *, enabled: bool) -> int:
        """Enable or disable all tips that are not retired, as a change of their owner; return how many changed."""
        where, fields = "WHERE enabled <> ? AND retired_at = 0", json.dumps({"enabled": enabled})
        self._query(f"INSERT INTO owner_changes (tip, fields) SELECT id, ? FROM tips {where}", (fields, enabled))  # noqa: S608
        changed = self._query(f"UPDATE tips SET enabled = 1 - enabled {where} RETURNING namespace", (enabled,))  # noqa: S608
        self._touched.update(name for (name,) in changed)
        return len(changed)

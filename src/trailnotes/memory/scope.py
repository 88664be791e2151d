"""Whose tips a search goes through: the tasks that a memory has met, and who of them may read whom.

A task reads what was written about games of its own split, and of the split that training learns from, which is open to
all. What was written about a game that stands in another split as well, under whatever id, is not among it: games are
told apart by what is played, as in `envs.tasks.shared`, and not by the names of their splits.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from trailnotes.memory.schema import OpenFile, encodable, named_errors
from trailnotes.types import Task

Scope = Literal["task", "family", "env", "all"]

# Tasks whose tips may be read in a split: every id of their game is of that split, or of the open one. What several
# tasks of one split have in common tells no games apart, and then the id is the game.
READABLE = """
    SELECT namespace FROM tasks AS own WHERE split IN (?, ?) AND NOT EXISTS (
        SELECT 1 FROM tasks AS held WHERE held.split NOT IN (?, ?) AND (
            held.namespace = own.namespace OR held.game = own.game
            AND own.game NOT IN (SELECT game FROM tasks GROUP BY game, split HAVING COUNT(*) > 1)))
"""
WITHIN = {"family": "AND own.env = ? AND own.family = ?", "env": "AND own.env = ?", "all": ""}


class Place(NamedTuple):
    """Tips of several tasks: those of the rows that `condition` takes. Equal places are one page."""

    condition: str  # on rows of `tips`
    values: tuple[str, ...]


EVERYWHERE = Place("TRUE", ())
Row = tuple[str, ...]  # of the table: namespace, split, env, family, game
KEEP = "INSERT OR REPLACE INTO tasks (namespace, split, env, family, game) VALUES (?, ?, ?, ?, ?)"


class Met(NamedTuple):
    """What the memory knows of a task."""

    env: str
    family: str
    split: str


class TaskTable(OpenFile):
    """The tasks that a memory has met."""

    def meet(self, tasks: Sequence[Task]) -> bool:
        """Keep where `tasks` belong; returns whether there was anything new."""
        rows = {_row(task) for task in tasks}
        with self._lock, named_errors(self.path):
            known = {
                row
                for namespace in {namespace for namespace, *_ in rows}
                for row in self._connection.execute("SELECT * FROM tasks WHERE namespace = ?", (namespace,))
            }
        if rows <= known:
            return False
        with self.transaction():
            self._connection.executemany(KEEP, sorted(rows - known))
        return True

    def take_tasks(self, rows: Iterable[Row]) -> None:
        """Keep what other memories have met; where they contradict each other, the last by order counts."""
        with self.transaction():
            self._connection.executemany(KEEP, sorted(set(rows)))

    def met(self, namespace: str) -> Met | None:
        """Where a task belongs; None if it was never met, or under two splits."""
        with self._lock, named_errors(self.path):
            sql = "SELECT env, family, split FROM tasks WHERE namespace = ?"
            rows = self._connection.execute(sql, (namespace,)).fetchall()
        return Met(*rows[0]) if len(rows) == 1 else None

    def families(self, place: Place) -> list[tuple[str, str]]:
        """Environment and family of the tasks in `place` that have an enabled tip, each once."""
        with_tips = "namespace IN (SELECT namespace FROM tips WHERE enabled)"
        sql = f"SELECT DISTINCT env, family FROM tasks WHERE {place.condition} AND {with_tips}"  # noqa: S608 (constants)
        with self._lock, named_errors(self.path):
            return self._connection.execute(sql, place.values).fetchall()

    def place(self, namespace: str, scope: Scope, open_split: str) -> Place | None:
        """What a task searches in `scope`, its own tips among them.

        Args:
            namespace: id of the task.
            scope: family, env or all.
            open_split: whose tips the games of all splits may read.

        Returns:
            None where the task was never met, or its own tips are not readable: it searches these alone.
        """
        task = self.met(namespace)
        if task is None:
            return None
        with self._lock, named_errors(self.path):
            values = (*_who_reads(task, open_split), namespace)
            if not self._connection.execute(f"{READABLE} AND own.namespace = ?", values).fetchone():
                return None
        return place_of(task, scope, open_split)


def place_of(task: Met, scope: Scope, open_split: str) -> Place:
    """The tips in `scope` that a game where `task` belongs may read."""
    values = {"family": (task.env, task.family), "env": (task.env,), "all": ()}[scope]
    return Place(f"namespace IN ({READABLE} {WITHIN[scope]})", (*_who_reads(task, open_split), *values))


def read_tasks(source: sqlite3.Connection) -> list[Row]:
    """The tasks that a memory file has met; none where an earlier version wrote it."""
    if not source.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'tasks'").fetchone():
        return []
    return source.execute("SELECT namespace, split, env, family, game FROM tasks").fetchall()


def _who_reads(task: Met, open_split: str) -> tuple[str, ...]:
    """The first parameters of `READABLE`."""
    return (task.split, open_split) * 2


def _row(task: Task) -> tuple[str, ...]:
    game = json.dumps([task.env, task.seed, dict(task.options)] if task.seed or task.options else task.id,
                      sort_keys=True, default=str)  # fmt: skip
    digest = hashlib.blake2b(game.encode(), digest_size=16).hexdigest()
    return *map(encodable, (task.id, task.split, task.env, task.family)), digest

"""Tips that are searched no more, by a rule and not by their owner: which those are, and why. None is deleted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from trailnotes.memory.migrations import WORTH_SQL
from trailnotes.memory.openfile import MemoryFile
from trailnotes.memory.scope import TipFilter

DISTILLED: Final = "distilled"  # beside the rules of `memory.retire`
EVICTION_ORDERS: Final = {
    "oldest": "age",
    "least_used": "shown, age",
    "least_worth": f"{WORTH_SQL}, age",
}  # who goes first
RETIREMENT_COLUMNS: Final = (
    "retired",
    "retired_at",
    "retired_on",
    "retired_by",
    "merged_into",
)  # columns of a `Retirement`
CLEAR_RETIREMENT: Final = "retired = '', retired_at = 0, retired_on = '', retired_by = '', merged_into = 0"


class Retirement(NamedTuple):
    """Why a tip is searched no more."""

    rule: str  # of `memory.retire`, or `DISTILLED`
    write: int  # number of the write that retired it
    on: str  # ISO 8601, UTC; information only
    by: str  # the setting, the tip or the measure that decided
    into: int  # id of the tip that it became one with; 0 = none


class MergeCandidate(NamedTuple):
    """What is compared of a tip that may become one with another."""

    id: int
    text: str
    vector: bytes
    worth: float  # `shrunk_gain`
    score: float
    support: int
    age: int


class RetiredTips(MemoryFile):
    """Marks of retirement, on rows of tips. An enabled tip has none, whoever enabled it."""

    def load_retirements(self, tip_id: int | None = None) -> dict[int, Retirement]:
        """All that are retired, or one if it is: by id."""
        where, values = ("id = ?", (tip_id,)) if tip_id is not None else ("retired_at > 0", ())
        sql = f"SELECT id, {', '.join(RETIREMENT_COLUMNS)} FROM tips WHERE {where}"  # noqa: S608 (constants)
        return {tip: Retirement(*mark) for tip, *mark in self._query(f"{sql} AND retired <> '' ORDER BY id", values)}

    def find_merged_tips(self, tip_id: int) -> list[int]:
        """The tips that became one with this, by id."""
        return [tip for (tip,) in self._query("SELECT id FROM tips WHERE merged_into = ? ORDER BY id", (tip_id,))]

    def find_merge_target(self, tip_id: int) -> int | None:
        """The tip that a retired one became one with, at the end of the way; None if there is none that is searched."""
        sql = """
            WITH RECURSIVE way (id) AS (
                SELECT merged_into FROM tips WHERE id = ? AND merged_into > 0
                UNION SELECT merged_into FROM tips JOIN way USING (id) WHERE merged_into > 0
            )
            SELECT id FROM tips JOIN way USING (id) WHERE merged_into = 0 AND retired = ''
        """
        return next((int(kept) for (kept,) in self._query(sql, (tip_id,))), None)

    def select_victims(self, pool: TipFilter, rule: str, count: int, *, spared: int = 0) -> list[int]:
        """Ids of `count` enabled tips, by a rule of `FIRST`; the `spared` newest are not among them."""
        enabled = f"{pool.condition} AND enabled"
        where, values = enabled, list[str | int](pool.values)
        if spared:
            newest = f"SELECT age FROM tips WHERE {enabled} ORDER BY age DESC LIMIT ?"  # noqa: S608 (constants)
            where = f"{where} AND +age < (SELECT MIN(age) FROM ({newest}))"  # noqa: S608 (constants)
            values += [*pool.values, spared]
        sql = f"SELECT id FROM tips WHERE {where} ORDER BY {EVICTION_ORDERS[rule]} LIMIT ?"  # noqa: S608 (constants)
        return [tip for (tip,) in self._query(sql, [*values, count])]

    def load_oldest(self, pool: TipFilter, count: int) -> list[MergeCandidate]:
        """The `count` oldest enabled tips, as they are compared with each other."""
        sql = f"SELECT id, text, vector, {WORTH_SQL}, score, support, age FROM tips"  # noqa: S608 (constants)
        where = f"WHERE {pool.condition} AND enabled ORDER BY age LIMIT ?"
        return [MergeCandidate(*row) for row in self._query(f"{sql} {where}", [*pool.values, count])]

    # writing, inside `with store.transaction():`

    def retire(self, ids: Iterable[int], rule: str, by: str, *, on: str = "", into: int = 0) -> int:
        """Search enabled tips no more, and mark them; returns how many.

        It is a write like any other, so that a run that goes back to a snapshot knows of it.
        """
        sql = (
            "UPDATE tips SET enabled = 0, retired = ?, retired_at = ?, retired_on = ?, retired_by = ?, merged_into = ? "
            "WHERE id = ? AND enabled RETURNING namespace"
        )
        number, gone = self._peek_sequence(), []
        for tip_id in ids:
            gone += [name for (name,) in self._query(sql, (rule, number, on, by, into, tip_id))]
        if gone:
            self._advance_sequence()
        self._touched.update(gone)
        return len(gone)

    def set_all_enabled(self, *, enabled: bool) -> int:
        """Let all tips that are not retired be searched, or not, as their owner's change; returns how many changed."""
        where, fields = "WHERE enabled <> ? AND retired_at = 0", json.dumps({"enabled": enabled})
        self._query(f"INSERT INTO owner_changes (tip, fields) SELECT id, ? FROM tips {where}", (fields, enabled))  # noqa: S608
        changed = self._query(f"UPDATE tips SET enabled = 1 - enabled {where} RETURNING namespace", (enabled,))  # noqa: S608
        self._touched.update(name for (name,) in changed)
        return len(changed)

    def merge_stats(self, kept: int, gone: int) -> None:
        """Add what is counted of `gone` to `kept`, whose words stay; the higher score is that of both.

        An episode that read both counts twice.
        """
        sql = """
            UPDATE tips AS kept SET
                score = MAX(kept.score, gone.score),
                max_score = CASE WHEN gone.score > kept.score THEN gone.max_score ELSE kept.max_score END,
                support = kept.support + gone.support,
                shown = kept.shown + gone.shown,
                earned = kept.earned + gone.earned,
                compared = kept.compared + gone.compared,
                gained = kept.gained + gone.gained,
                used = MAX(kept.used, gone.used),
                measured = kept.measured + gone.measured,
                lead = (kept.lead * kept.measured + gone.lead * gone.measured)
                    / MAX(1, kept.measured + gone.measured)
            FROM (SELECT * FROM tips WHERE id = ?) AS gone WHERE kept.id = ? RETURNING namespace
        """
        self._touched.update(name for (name,) in self._query(sql, (gone, kept)))

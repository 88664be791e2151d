"""Index the episodes of a trajectories.jsonl, so that a page reads the lines that it shows and no others.

The index is a SQLite file beside the episodes, made once and continued as the file grows; it may be deleted at any
time. A file that was cut or replaced shows by its size and by a fingerprint of the last bytes that were read; then the
index begins anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from trailnotes.errors import RunError
from trailnotes.memory.schema import enable_wal
from trailnotes.storage.files import parse_json, parse_record
from trailnotes.types import replace_surrogates

SCHEMA_VERSION: Final = 1  # of the tables; an index of another one is made anew
INDEX_SUFFIX: Final = ".index.db"
DAMAGED: Final = "damaged"  # outcome of a line that holds no episode
_MAX_INTEGER: Final = 2**63  # above all integers of SQLite
_FINGERPRINT_BYTES: Final = 4096  # bytes of the fingerprint
_BATCH: Final = 64  # lines between two looks at the clock
_TABLES: Final = (
    "CREATE TABLE state (name TEXT PRIMARY KEY, value)",
    """
    CREATE TABLE episodes (
        number INTEGER PRIMARY KEY, offset INTEGER, length INTEGER, iteration INTEGER, task TEXT, mode TEXT,
        member INTEGER, outcome TEXT, success INTEGER, score REAL, max_score REAL, earned REAL, steps INTEGER,
        tips INTEGER, returned INTEGER, last_action TEXT
    )
    """,
    "CREATE INDEX by_group ON episodes (task, iteration)",
    "CREATE INDEX by_iteration ON episodes (iteration)",
    "CREATE TABLE shown (tip INTEGER, number INTEGER, PRIMARY KEY (tip, number)) WITHOUT ROWID",
)
_INSERT: Final = f"INSERT INTO episodes VALUES ({', '.join('?' * 16)})"  # noqa: S608 (constants)


class IndexedEpisode(NamedTuple):
    """One line of the file, as lists show it; `number` counts lines from 1."""

    number: int
    offset: int
    length: int
    iteration: int
    task: str
    mode: str
    member: int
    outcome: str
    success: int
    score: float
    max_score: float
    earned: float  # sum of the rewards
    steps: int
    tips: int  # shown in all
    returned: int  # whether it began at a kept state (rollout/archive.py)
    last_action: str


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Conditions on episodes; an empty field narrows nothing."""

    task: str = ""  # part of its id
    mode: str = ""
    success: str = ""  # yes | no
    iteration: int | None = None
    tip: int | None = None  # shown this one

    def build_where(self) -> tuple[str, list[Any]]:
        """Build the SQL condition, and its values."""
        conditions: dict[str, Any] = {
            "instr(task, ?)": self.task or None,
            "mode = ?": self.mode or None,
            "success = ?": int(self.success == "yes") if self.success else None,
            "iteration = ?": self.iteration,
            "number IN (SELECT number FROM shown WHERE tip = ?)": self.tip,
        }
        asked = {condition: value for condition, value in conditions.items() if value is not None}
        return (f"WHERE {' AND '.join(asked)}" if asked else ""), list(asked.values())


class TipIterationStats(NamedTuple):
    """Mean returns in one iteration of the readers of a tip, and of the others of their groups."""

    iteration: int
    readers: int
    earned: float
    others: int
    others_earned: float | None  # None: all members read it


class EpisodeIndex:
    """The index of one file, which need not exist yet, for any thread; methods raise `RunError` if it is unreadable."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.RLock()
        self._connection = self._open()

    def close(self) -> None:
        """Close the index file."""
        with self._lock:
            self._connection.close()

    def catch_up(self, seconds: float = float("inf")) -> float:
        """Read on for about so many seconds; returns the share of the file that is known, 1 at its end."""
        end = time.monotonic() + seconds
        with self._lock, _translate_errors(self.file):
            if not self.file.is_file():
                self._clear()
                return 1.0
            self._reset_if_replaced()
            size, known = self.file.stat().st_size, self._get_state("end", 0)
            with self.file.open("rb") as file:
                more = True
                while more:
                    known, more = self._read_batch(file, known)
                    if time.monotonic() >= end:
                        break
        return known / size if more and size else 1.0

    def count(self, wanted: EpisodeFilter | None = None) -> int:
        """Count the episodes that a filter lets through, as far as the file is known."""
        where, values = (wanted or EpisodeFilter()).build_where()
        return int(self._query(f"SELECT COUNT(*) FROM episodes {where}", values)[0][0])  # noqa: S608 (constants)

    def list_episodes(
        self, wanted: EpisodeFilter, first: int, count: int, *, newest: bool = True
    ) -> list[IndexedEpisode]:
        """List `count` episodes that a filter lets through from the `first` on, counted from 0."""
        where, values = wanted.build_where()
        order = "DESC" if newest else "ASC"
        sql = f"SELECT * FROM episodes {where} ORDER BY number {order} LIMIT ? OFFSET ?"  # noqa: S608 (constants)
        return [IndexedEpisode(*row) for row in self._query(sql, [*values, count, first])]

    def get_episode(self, number: int) -> IndexedEpisode | None:
        """Get the episode of one line, None where there is none."""
        rows = self._query("SELECT * FROM episodes WHERE number = ?", [number])
        return IndexedEpisode(*rows[0]) if rows else None

    def get_group(self, task: str, iteration: int) -> list[IndexedEpisode]:
        """List the episodes of a task in an iteration."""
        sql = "SELECT * FROM episodes WHERE task = ? AND iteration = ? ORDER BY number"
        return [IndexedEpisode(*row) for row in self._query(sql, [task, iteration])]

    def read_record(self, episode: IndexedEpisode) -> dict[str, Any]:
        """Read the line itself; raises `RunError` if it is not the one that was indexed."""
        with _translate_errors(self.file), self.file.open("rb") as file:
            file.seek(0, os.SEEK_END)  # a stranger may have made the index
            span = (episode.offset, episode.length)
            inside = all(isinstance(n, int) and n >= 0 for n in span) and sum(span) <= file.tell()
            file.seek(episode.offset if inside else 0)
            line = file.read(episode.length if inside else 0)
        record = parse_record(line)
        if record is None:
            raise RunError(f"{self.file}: line {episode.number} is damaged, or has just been replaced")
        return record

    def worth(self, tip: int) -> list[TipIterationStats]:
        """Compare the readers of a tip with the others, iteration by iteration; failed episodes are left out."""
        sql = """
            SELECT e.iteration, COUNT(s.tip), AVG(CASE WHEN s.tip IS NOT NULL THEN earned END),
                   COUNT(*) - COUNT(s.tip), AVG(CASE WHEN s.tip IS NULL THEN earned END)
            FROM (SELECT DISTINCT task, iteration FROM episodes JOIN shown USING (number) WHERE tip = ?) AS groups
            JOIN episodes AS e ON e.task = groups.task AND e.iteration = groups.iteration
            LEFT JOIN shown AS s ON s.number = e.number AND s.tip = ?
            WHERE outcome NOT IN ('error', 'damaged')
            GROUP BY e.iteration HAVING COUNT(s.tip) > 0 ORDER BY e.iteration
        """
        return [TipIterationStats(*row) for row in self._query(sql, [tip, tip])]

    def iterate_outlines(self) -> Iterator[Mapping[str, Any]]:
        """Iterate over all episodes as `diagnose/checks.py` reads them, without texts; equal parts are one object."""
        columns = "iteration, task, mode, outcome, earned, tips > 0, returned"
        sql = f"SELECT {columns} FROM episodes WHERE outcome != 'damaged'"  # noqa: S608 (constants)
        steps: tuple[Any, ...] = ((), ({"tips": (None,)},))
        tasks: dict[tuple[str, int], dict[str, Any]] = {}
        for iteration, task, mode, outcome, earned, read, returned in self._query(sql):
            if (task, returned) not in tasks:
                tasks[task, returned] = {"id": task, "options": {"return_to": True} if returned else {}}
            yield {
                "iteration": iteration, "task": tasks[task, returned], "mode": mode, "outcome": outcome,
                "return": earned, "steps": steps[read],
            }  # fmt: skip

    @property
    def state_key(self) -> tuple[str, int]:
        """Get a key that changes whenever the index may have changed."""
        with self._lock, _translate_errors(self.file):
            return self._get_state("file", ""), self._get_state("end", 0)

    def iterations(self) -> tuple[int, int] | None:
        """Get the first and the last iteration; None without episodes."""
        ((first, last),) = self._query("SELECT MIN(iteration), MAX(iteration) FROM episodes")
        return None if first is None else (first, last)

    def _read_batch(self, file: Any, known: int) -> tuple[int, bool]:
        """Insert the next lines; returns their end, and whether more may follow."""
        file.seek(known)
        lines = [line for _ in range(_BATCH) if (line := file.readline()).endswith(b"\n")]
        if not lines:
            return known, False
        with self._transaction():
            if (now := self._get_state("end", 0)) != known:  # another process has read on
                return now, True
            number = self._get_state("count", 0)
            for line in lines:
                number += 1
                try:
                    row, tips = _make_row(parse_json(line, "drop"))
                except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                    row, tips = (0, "", "", 0, DAMAGED, 0, 0.0, 0.0, 0.0, 0, 0, 0, ""), set()
                self._connection.execute(_INSERT, (number, known, len(line), *row))
                self._connection.executemany("INSERT OR IGNORE INTO shown VALUES (?, ?)", [(t, number) for t in tips])
                known += len(line)
            self._set_state(end=known, count=number, tail=_fingerprint(self.file, known))
        return known, len(lines) == _BATCH

    def _reset_if_replaced(self) -> None:
        stat = self.file.stat()
        now = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
        if now == self._get_state("file", ""):
            return
        end = self._get_state("end", 0)
        if stat.st_size < end or _fingerprint(self.file, end) != self._get_state("tail", _fingerprint(self.file, 0)):
            self._clear()
        with self._transaction():
            self._set_state(file=now)

    def _clear(self) -> None:
        with self._transaction():
            for table in ("state", "episodes", "shown"):
                self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 (constants)

    def _open(self) -> sqlite3.Connection:
        beside = self.file.with_name(f"{self.file.name}{INDEX_SUFFIX}")
        for _ in range(2):
            with contextlib.suppress(sqlite3.Error, OSError):
                if not beside.is_symlink():
                    return _connect(str(beside))
            with contextlib.suppress(OSError):  # damaged, of another version, or leading to a file that is no index
                beside.unlink()
        return _connect(":memory:")  # a folder that is not ours to write in

    def _get_state(self, name: str, default: Any) -> Any:
        row = self._connection.execute("SELECT value FROM state WHERE name = ?", [name]).fetchone()
        return default if row is None else row[0]

    def _set_state(self, **values: Any) -> None:
        self._connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", values.items())

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, _translate_errors(self.file):
            return self._connection.execute(sql, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _make_row(record: Any) -> tuple[tuple[Any, ...], set[int]]:
    """The columns of an episode, and the ids of the tips that it was shown."""
    steps, task, words = record["steps"], record["task"], replace_surrogates
    tips = [tip.get("id") for step in steps for tip in step["tips"]]
    row: tuple[Any, ...] = (
        int(record["iteration"]), words(task["id"]), words(record["mode"]), int(record["member"]),
        words(record["outcome"]), int(record["success"]), float(record["score"]), float(record["max_score"]),
        float(record["return"]), len(steps), len(tips), int("return_to" in task.get("options", {})),
        words(steps[-1]["action"]) if steps else "",
    )  # fmt: skip
    shown = {tip for tip in tips if isinstance(tip, int)}
    numbers: list[Any] = [each for each in (*row, *shown) if not isinstance(each, str)]
    if not all(abs(number) < _MAX_INTEGER for number in numbers):
        raise ValueError("a number is not finite, or too large for a column")
    return row, shown


def _fingerprint(file: Path, end: int) -> str:
    with file.open("rb") as opened:
        opened.seek(max(0, end - _FINGERPRINT_BYTES))
        return hashlib.blake2b(opened.read(min(end, _FINGERPRINT_BYTES)), digest_size=16).hexdigest()


def _connect(database: str) -> sqlite3.Connection:
    how: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
    connection: sqlite3.Connection = sqlite3.connect(database, timeout=5.0, **how)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in {0, SCHEMA_VERSION}:
            raise sqlite3.DatabaseError("an index of another version")  # noqa: TRY301 (closed below)
        enable_wal(connection)
        connection.execute("PRAGMA synchronous = OFF")  # it can be made again
        if not version:
            tables = "; ".join(_TABLES)
            connection.executescript(f"BEGIN IMMEDIATE; {tables}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _translate_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        fix = f"delete {file.name}{INDEX_SUFFIX}, and load the page again"
        raise RunError(f"{file} cannot be read ({reason}): {fix}") from error

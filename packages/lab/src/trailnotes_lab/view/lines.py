"""Read the lines of metrics.jsonl and trajectories.jsonl; of a file that grew, only what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeGuard, TypeVar

from trailnotes.errors import RunError
from trailnotes.storage.files import parse_record
from trailnotes.types import replace_surrogates

DAMAGED: Final = "damaged"  # outcome of a line that holds no episode

MetricsLine = Mapping[str, Any]
Row = TypeVar("Row")


class LineReader(Generic[Row]):
    """Rows of the whole lines of one file, which need not exist; a file that was cut or replaced is read anew.

    `parse` makes a row of the number of a line, from 1, its offset in the file and its bytes.
    """

    def __init__(self, path: Path, parse: Callable[[int, int, bytes], Row]) -> None:
        self.path, self._parse = path, parse
        self._rows: list[Row] = []
        self._inode, self._end = 0, 0  # bytes that were read
        self._last = b""  # the last line, by which a file that was cut and grew again is noticed

    def read(self) -> list[Row]:
        """Read on, and return the rows of all lines so far."""
        try:
            if not self.path.is_file():
                self._rows, self._end, self._last = [], 0, b""
                return []
            with self.path.open("rb") as file:
                stat = self.path.stat()
                file.seek(max(0, self._end - len(self._last)))
                if stat.st_ino != self._inode or stat.st_size < self._end or file.read(len(self._last)) != self._last:
                    self._rows, self._inode, self._end, self._last = [], stat.st_ino, 0, b""
                file.seek(self._end)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._rows.append(self._parse(len(self._rows) + 1, self._end, line))
                    self._end, self._last = self._end + len(line), line
        except OSError as error:
            raise RunError(f"cannot read {self.path} ({error.strerror}): fix its permissions") from error
        return self._rows


def extract_series(lines: Sequence[MetricsLine], name: str) -> list[tuple[float, float]]:
    """Extract (environment steps, value) of one metric; by iterations where steps were not counted."""
    points = []
    for number, line in enumerate(lines):
        if is_number(value := line.get(name)):
            steps = line.get("env_steps")
            points.append((float(steps) if is_number(steps) else float(number), float(value)))
    return points


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


class EpisodeRow(NamedTuple):
    """One line of trajectories.jsonl as lists show it, without its texts."""

    number: int  # counts lines from 1
    offset: int  # bytes before it in the file
    iteration: int = 0
    task: str = ""
    mode: str = ""
    outcome: str = DAMAGED
    success: bool = False
    score: float = 0.0
    earned: float = 0.0  # sum of the rewards
    steps: int = 0  # 0 in most records
    tips: int = 0  # in all its prompts
    tip_ids: frozenset[int] = frozenset()
    last_action: str = ""


def parse_episode_row(number: int, offset: int, line: bytes) -> EpisodeRow:
    """Parse a line of trajectories.jsonl; one of a damaged line has the outcome `DAMAGED` and nothing else."""
    record: Any = parse_record(line) or {}
    try:
        steps, task, clean = record.get("steps", []), record["task"], replace_surrogates
        tips = [tip.get("id") for step in steps for tip in step["tips"]]
        return EpisodeRow(
            number, offset, int(record["iteration"]), clean(task["id"]), clean(record["mode"]),
            clean(record["outcome"]), bool(record["success"]), float(record["score"]), float(record["return"]),
            len(steps), len(tips), frozenset(tip for tip in tips if isinstance(tip, int)),
            clean(steps[-1]["action"]) if steps else "",
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return EpisodeRow(number, offset)


def read_episode(path: Path, row: EpisodeRow) -> dict[str, Any]:
    """Read the line of an episode; raises `RunError` if it is damaged."""
    try:
        with path.open("rb") as file:
            file.seek(row.offset)
            record = parse_record(file.readline())
    except OSError as error:
        raise RunError(f"cannot read {path} ({error.strerror}): load the page again") from error
    if record is None:
        raise RunError(f"{path}: line {row.number} is damaged, or has just been replaced")
    return record


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Conditions on episodes; an empty field narrows nothing."""

    task: str = ""  # part of its id
    mode: str = ""
    success: str = ""  # yes | no
    iteration: int | None = None
    tip: int | None = None  # read this one

    def matches(self, row: EpisodeRow) -> bool:
        return (
            self.task in row.task
            and self.mode in ("", row.mode)
            and self.success in ("", "yes" if row.success else "no")
            and self.iteration in (None, row.iteration)
            and (self.tip is None or self.tip in row.tip_ids)
        )


def list_group(rows: Iterable[EpisodeRow], task: str, iteration: int) -> list[EpisodeRow]:
    return [
        row for row in rows if row.iteration == iteration and row.task == task and row.outcome not in {"error", DAMAGED}
    ]

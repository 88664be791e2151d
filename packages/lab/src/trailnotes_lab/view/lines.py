"""Read the lines of metrics.jsonl incrementally: a file that grew is not read again from its start."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

from trailnotes.errors import RunError
from trailnotes.storage.files import parse_record

MAX_FILES: Final = 256  # files

MetricsLine = Mapping[str, Any]


@dataclass(slots=True)
class ParsedLines:
    """The lines of one file so far, and the state of its reader."""

    lines: list[MetricsLine] = field(default_factory=list)
    damaged: int = 0  # lines that cannot be read
    end: int = 0  # bytes that were read
    inode: int = 0
    last: bytes = b""  # the last line, which tells a file that was cut and grew again


class LinesCache:
    """Cache of the files that were read last, for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Path, ParsedLines] = OrderedDict()

    def read(self, path: Path) -> ParsedLines:
        """Read all whole lines of a file so far; none where there is no file.

        Raises:
            RunError: it cannot be read.
        """
        with self._lock:
            try:
                known = self._read_appended(path, self._known.pop(path, ParsedLines()))
            except FileNotFoundError:
                return ParsedLines()
            except OSError as error:
                raise RunError(f"cannot read {path} ({error.strerror}): fix its permissions") from error
            self._known[path] = known
            while len(self._known) > MAX_FILES:
                self._known.popitem(last=False)
            return ParsedLines([*known.lines], known.damaged, known.end)

    def _read_appended(self, path: Path, known: ParsedLines) -> ParsedLines:
        stat = path.stat()
        if not path.is_file():
            return known  # a pipe would never answer
        with path.open("rb") as file:
            file.seek(max(0, known.end - len(known.last)))
            if stat.st_ino != known.inode or stat.st_size < known.end or file.read(len(known.last)) != known.last:
                known = ParsedLines(inode=stat.st_ino)
            file.seek(known.end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                known.end, known.last = known.end + len(line), line
                if (record := parse_record(line)) is None:
                    known.damaged += 1
                else:
                    known.lines.append(record)
        return known


def extract_series(lines: Sequence[MetricsLine], name: str) -> list[tuple[float, float]]:
    """Extract (environment steps, value) of one metric; by iterations where steps were not counted."""
    points = []
    for number, line in enumerate(lines):
        if is_number(value := line.get(name)):
            steps = line.get("env_steps")
            points.append((float(steps) if is_number(steps) else float(number), float(value)))
    return points


def is_number(value: object) -> TypeGuard[float]:
    """Say whether a curve can show the value."""
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Tips as a JSONL file, a tip a line, for people and other programs.

`docs/tip-format.md` names every field, and `docs/tip-format.schema.json` is the schema for programs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, get_type_hints

from trailnotes import __version__
from trailnotes.errors import MemoryStoreError
from trailnotes.memory.schema import open_snapshot
from trailnotes.memory.store import SELECT_TIP, parse_tip_row
from trailnotes.memory.tips import clean_tip
from trailnotes.storage.files import open_regular, parse_json, write_text_atomic
from trailnotes.types import StrPath, Tip

FORMAT: Final = "trailnotes-tips"
VERSION: Final = 1
HEADER_FIELDS: Final = {"format": str, "version": int, "tips": int, "program": str, "memory": str}
MAX_LINE_BYTES: Final = 512 * 1024  # bytes: more than twice what the longest key and text can take
FILE_NAME: Final = "memory.db"
FIELD_TYPES = {name: kind for name, kind in get_type_hints(Tip).items() if name != "id"}
REQUIRED_FIELDS = [field.name for field in fields(Tip) if field.default is MISSING]
MAX_REPORTED_LINES = 10  # malformed lines that an error spells out
SQLITE_MAGIC = b"SQLite format 3\0"  # how every memory file begins


def resolve_memory_file(path: StrPath) -> Path:
    """Return the memory file of the run directory `path`, or `path` itself."""
    path = Path(path)
    return path / FILE_NAME if path.is_dir() else path


def write_tips(path: StrPath, tips: Sequence[Tip], *, memory: str = "") -> None:
    """Write `tips` as JSONL behind a header, atomically; `memory` is the `lineage` of their file.

    The same tips give the same bytes.

    Raises:
        MemoryStoreError: the file cannot be written.
    """
    program = f"trailnotes {__version__}"
    header = {"format": FORMAT, "version": VERSION, "tips": len(tips), "program": program, "memory": memory}
    lines = (json.dumps(record, ensure_ascii=False) for record in (header, *map(asdict, tips)))
    try:
        write_text_atomic(Path(path), "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise MemoryStoreError(f"cannot write {path} ({error.strerror}): nothing was exported") from error


def read_tips(path: StrPath) -> list[Tip]:
    """Read the tips of a JSONL file (blank lines are skipped), a memory file, or the memory file of a run directory.

    Raises:
        MemoryStoreError: it cannot be read, was cut, is of a newer version, or has malformed lines, named by number.
    """
    return list(iter_tips(path))


def iter_tips(path: StrPath) -> Iterator[Tip]:
    """Yield tips as `read_tips` does; faults of a file are raised at its end, so read on until there."""
    path = resolve_memory_file(path)
    if is_memory_file(path):
        with open_snapshot(path) as source:
            for row in source.execute(f"{SELECT_TIP} WHERE retired = '' ORDER BY age"):
                yield replace(parse_tip_row(row), id=None)
        return
    reader = _TipLineParser()
    with _open_readable(path) as file:
        for number, line in _iter_lines(file):
            if tip := reader.parse_line(number, line):
                yield tip
    reader.require_no_faults(path)


def is_memory_file(path: Path) -> bool:
    """Return whether a file is a memory file; raises `MemoryStoreError` where it cannot be read."""
    with _open_readable(path) as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


@contextmanager
def _open_readable(path: Path) -> Iterator[BinaryIO]:
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise MemoryStoreError(f"cannot read {path} ({error.strerror})") from error


class _TipLineParser:
    def __init__(self) -> None:
        self.faults: list[str] = []
        self.count = 0  # of lines that should be tips
        self.last = 0
        self.announced: int | None = None
        self._lines: dict[int, int] = {}  # id -> the line that has it

    def parse_line(self, number: int, line: bytes | None) -> Tip | None:
        """`line`: not blank; None for one that is too long."""
        before, self.last = self.last, number
        try:
            if line is None:
                raise ValueError(f"longer than {MAX_LINE_BYTES:,} bytes, and no tip is")  # noqa: TRY301 (a fault like others)
            record = parse_json(line)
            if not before and isinstance(record, dict) and "format" in record:
                self.announced = _parse_header(record)
                return None
            self.count += 1
            return self._parse_record(number, record)
        except ValueError as error:
            self.faults.append(f"line {number}: {error}")
            return None

    def _parse_record(self, number: int, record: Any) -> Tip:
        if isinstance(record, dict) and "format" in record:
            raise ValueError("a second header: `trailnotes memory merge` joins files")
        if isinstance(record, dict) and (tip_id := record.get("id")) is not None:
            if type(tip_id) is not int:
                raise ValueError(f"id must be int, got {type(tip_id).__name__}")
            if (before := self._lines.setdefault(tip_id, number)) != number:
                raise ValueError(f"id {tip_id} again, which line {before} has")
        return parse_tip(record)

    def require_no_faults(self, path: Path) -> None:
        if self.faults:
            named, left = self.faults[:MAX_REPORTED_LINES], len(self.faults) - MAX_REPORTED_LINES
            raise MemoryStoreError(
                f"{path} has {len(self.faults)} malformed lines, nothing was imported: fix or remove "
                f"{'; '.join(named)}{f'; and {left} more' if left > 0 else ''}"
            )
        if self.announced not in {None, self.count}:
            raise MemoryStoreError(
                f"{path} ends at line {self.last} with {self.count} tips, and its first line promises "
                f"{self.announced}: it was cut, and nothing was imported. Fetch it again; where lines were taken out "
                'or added on purpose, mend "tips" in the first line'
            )


def _iter_lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Number and content of each line that is not blank; None for one of more than `MAX_LINE_BYTES` bytes."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        too_long = len(line) > MAX_LINE_BYTES and not line.endswith(b"\n")
        if too_long:
            while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
        if too_long or line.strip():
            yield number, None if too_long else line.rstrip(b"\n")


def _parse_header(header: dict[str, Any]) -> int | None:
    if header["format"] != FORMAT:
        raise ValueError(f"format must be {FORMAT!r}, got {header['format']!r}")
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"version must be {VERSION}, got {version!r}")
    if version > VERSION:
        raise ValueError(f"version {version}, and this Trailnotes reads up to {VERSION}: upgrade Trailnotes")
    for name, value in header.items():
        if name not in HEADER_FIELDS:
            raise ValueError(f"unknown field {name!r} of a header")
        if type(value) is not HEADER_FIELDS[name]:
            raise ValueError(f"{name} must be {HEADER_FIELDS[name].__name__}, got {type(value).__name__}")
    return header.get("tips")


def parse_tip(record: Any) -> Tip:
    """Parse the tip of a JSON object, without its id; raises ValueError with its fault."""
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 (its reader names the line)
    record.pop("id", None)
    if unknown := sorted(set(record) - set(FIELD_TYPES)):
        raise ValueError(f"unknown field {unknown[0]!r}")
    if missing := [name for name in REQUIRED_FIELDS if name not in record]:
        raise ValueError(f"no field {missing[0]!r}")
    values = {name: _parse_value(name, value) for name, value in record.items()}
    if not clean_tip(values["text"]):
        raise ValueError("its text has no letter or digit")
    return Tip(**values)


def _parse_value(name: str, value: Any) -> Any:
    kind = FIELD_TYPES[name]
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 2**1000 else math.inf
    if type(value) is not kind:
        raise ValueError(f"{name} must be {kind.__name__}, got {type(value).__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{name} must be finite")
    if kind is int and abs(value) >= 2**31:
        raise ValueError(f"{name} is out of range")
    return value

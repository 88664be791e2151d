"""Tips as a JSONL file, a tip a line, for people and other programs.

`docs/tip-format.md` names every field, and `docs/tip-format.schema.json` is the schema for programs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, get_type_hints

from trailnotes import __version__
from trailnotes.errors import MemoryStoreError
from trailnotes.memory.schema import open_snapshot
from trailnotes.memory.store import SELECT_TIP, parse_tip_row
from trailnotes.memory.tips import clean_tip
from trailnotes.storage.files import parse_json, write_text_atomic
from trailnotes.types import StrPath, Tip

FORMAT: Final = "trailnotes-tips"
VERSION: Final = 1
MAX_LINE_BYTES: Final = 512 * 1024  # bytes: more than twice what the longest key and text can take
FILE_NAME: Final = "memory.db"
FIELD_TYPES = {name: kind for name, kind in get_type_hints(Tip).items() if name != "id"}
REQUIRED_FIELDS = [field.name for field in fields(Tip) if field.default is MISSING]
SQLITE_MAGIC = b"SQLite format 3\0"  # how every memory file begins


def resolve_memory_file(path: StrPath) -> Path:
    """Return the memory file of the run directory `path`, or `path` itself."""
    path = Path(path)
    return path / FILE_NAME if path.is_dir() else path


def write_tips(path: StrPath, tips: Sequence[Tip], *, memory: str = "") -> None:
    """Write `tips` as JSONL behind a header, atomically; `memory` is the `lineage` of their file.

    The same tips give the same bytes.
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
        MemoryStoreError: it cannot be read, was cut, is of a newer version, or has a malformed line, named by number.
    """
    return list(iter_tips(path))


def iter_tips(path: StrPath) -> Iterator[Tip]:
    """Yield tips as `read_tips` does; that a file was cut is raised at its end, so read on until there.

    Of a memory file, tips that were retired, or switched off by their owner, are left out.
    """
    path = resolve_memory_file(path)
    if is_memory_file(path):
        with open_snapshot(path) as source:
            for row in source.execute(f"{SELECT_TIP} WHERE retired = '' AND (enabled OR imported) ORDER BY age"):
                yield replace(parse_tip_row(row), id=None)
    else:
        yield from _iter_jsonl(path)


def _iter_jsonl(path: Path) -> Iterator[Tip]:
    announced, count, number, has_header = None, 0, 0, False
    with _open_readable(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise MemoryStoreError(f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} bytes, and no tip is")
            if not line.strip():
                continue
            try:
                record = parse_json(line)
                if not count and not has_header and isinstance(record, dict) and "format" in record:
                    announced, has_header = _parse_header(record), True
                    continue
                count += 1
                tip = parse_tip(record)
            except ValueError as error:
                raise MemoryStoreError(f"{path}, line {number}: {error}: nothing was imported") from error
            yield tip
    if announced not in {None, count}:
        raise MemoryStoreError(
            f"{path} ends at line {number} with {count} tips, and its first line promises {announced}: it was cut, and "
            'nothing was imported. Fetch it again, or mend "tips" in the first line'
        )


def is_memory_file(path: Path) -> bool:
    """Return whether a file is a memory file; raises `MemoryStoreError` where it cannot be read."""
    with _open_readable(path) as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def _open_readable(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise MemoryStoreError(f"cannot read {path} ({error.strerror})") from error


def _parse_header(header: dict[str, Any]) -> int | None:
    """Return the number of tips that the header announces; None if it does not."""
    if header["format"] != FORMAT:
        raise ValueError(f"format must be {FORMAT!r}, got {header['format']!r}")
    if (version := header.get("version")) != VERSION:
        raise ValueError(f"version must be {VERSION}, got {version!r}: upgrade Trailnotes, if it is a later one")
    if type(tips := header.get("tips")) not in {int, type(None)}:
        raise ValueError(f"tips must be int, got {type(tips).__name__}")
    return tips


def parse_tip(record: Any) -> Tip:
    """Parse the tip of a JSON object, without its id; raises ValueError with its fault."""
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 (its reader names the line)
    values = {name: value for name, value in record.items() if name != "id"}
    if unknown := sorted(values.keys() - FIELD_TYPES):
        raise ValueError(f"unknown field {unknown[0]!r}")
    if missing := [name for name in REQUIRED_FIELDS if name not in values]:
        raise ValueError(f"no field {missing[0]!r}")
    for name, value in values.items():
        kind = FIELD_TYPES[name]
        if type(value) is not kind and (kind, type(value)) != (float, int):
            raise ValueError(f"{name} must be {kind.__name__}, got {type(value).__name__}")
        if type(value) is int and abs(value) >= (2**100 if kind is float else 2**31):
            raise ValueError(f"{name} is out of range")
    if not clean_tip(values["text"]):
        raise ValueError("its text has no letter or digit")
    return Tip(**values)

"""Streaming JSON of any size, entry by entry: a list, an object, or a line for each entry; plain or gzipped."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from trailnotes.errors import ConfigError
from trailnotes.storage.files import parse_json, parse_json_at

MAX_ENTRY = 1 << 26  # characters

_CHUNK = 1 << 20  # characters
_SPACE = re.compile(r"[ \t\r\n]*")
# The first object of many has a plain first value (its asin, its name); one object for all has objects or lists.
_OPENING = re.compile(r'\s*(?:(\[)|(\{)\s*(?:"(?:[^"\\]|\\.)*"\s*:\s*[\[{]|\}\s*\Z))')


class JsonEntry(NamedTuple):
    key: str | None  # in an object
    value: Any  # decoded; a `ValueError` for a line that is no JSON
    taken: int  # bytes read so far, of the file on disk


def read_entries(path: Path) -> Iterator[JsonEntry]:
    """Iterate over the elements of a list, the values of an object with their keys, or the lines of any other file."""
    try:
        with path.open("rb") as packed:
            unpacked = gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" else packed
            with io.TextIOWrapper(unpacked, "utf-8-sig", "surrogateescape") as file:
                opening = _OPENING.match(file.read(_CHUNK))
                file.seek(0)
                entries = _iter_values(file, opening[1] or opening[2]) if opening else _iter_lines(file)
                for key, value in entries:
                    yield JsonEntry(key, value, packed.tell())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error, ValueError) as error:
        raise ConfigError(f"{path} is cut off or no JSON ({error}): get it again") from error


def _iter_lines(file: TextIO) -> Iterator[tuple[None, Any]]:
    for line in file:
        if not line.strip():
            continue
        try:
            yield None, parse_json(line)
        except ValueError as error:
            yield None, ValueError(str(error))


def _iter_values(file: TextIO, opening: str) -> Iterator[tuple[str | None, Any]]:
    stream, closing = _JsonStream(file), "]" if opening == "[" else "}"
    stream.consume(opening)
    is_first, key = True, None
    while stream.peek() != closing:
        if not is_first:
            stream.consume(",")
        is_first = False
        if opening == "{":
            key = str(stream.decode_value())
            stream.consume(":")
        yield key, stream.decode_value()
    stream.consume(closing)
    if stream.peek():
        raise ValueError("it goes on after its closing bracket")


class _JsonStream:
    def __init__(self, file: TextIO) -> None:
        self._file, self._text, self._place = file, "", 0

    def peek(self) -> str:
        """Return the next character that is no space, without consuming it; "" at the end."""
        while True:
            space = _SPACE.match(self._text, self._place)
            assert space
            self._place = space.end()
            if self._place < len(self._text) or not self._read_more():
                return self._text[self._place : self._place + 1]

    def consume(self, wanted: str) -> None:
        """Consume the next character that is no space. Raises `ValueError` if it is another than `wanted`."""
        if self.peek() != wanted:
            raise ValueError(f"{wanted!r} is missing")
        self._place += 1

    def decode_value(self) -> Any:
        """Consume the next value. Raises `ValueError` if it is no JSON or longer than `MAX_ENTRY`."""
        self.peek()
        while True:
            try:
                value, end = parse_json_at(self._text, self._place)
            except ValueError:
                if len(self._text) - self._place > MAX_ENTRY or not self._read_more():
                    raise
                continue
            if end < len(self._text) or not self._read_more():  # a number may go on
                self._place = end
                return value

    def _read_more(self) -> bool:
        """Drop the consumed text and read on, twice as much each time: a long entry is decoded a few times only."""
        rest = self._text[self._place :]
        more = self._file.read(max(_CHUNK, 2 * len(rest)))
        if more:
            self._text, self._place = rest + more, 0
        return bool(more)

"""Streaming JSON of any size, entry by entry: a list, an object, or a line for each entry; plain or gzipped.

Memory holds one entry at a time. Each comes with the byte at which the next one begins, where reading can resume.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from trailnotes.errors import ConfigError
from trailnotes.storage.files import parse_json, parse_json_at

MAX_ENTRY = 1 << 26  # characters

_CHUNK = 1 << 20  # bytes
_WHITE_SPACE = " \t\r\n"

_Found = tuple[str | None, Any, int]  # key, value and end of a `JsonEntry`


class JsonEntry(NamedTuple):
    """One entry of a JSON file."""

    key: str | None  # in an object
    value: Any  # decoded; a `ValueError` for a line that is no JSON
    end: int  # bytes before the next one, of the unpacked file
    taken: int  # bytes read so far, of the file on disk


@contextmanager
def _open_source(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("BinaryIO", unpacked), file
        else:
            yield file, file


def read_entries(path: Path, start: int = 0) -> Iterator[JsonEntry]:
    """Iterate over the elements of a list, the values of an object with their keys, or the lines of any other file.

    Args:
        path: the file.
        start: byte to begin at: 0, or the `end` of an entry.

    Raises:
        ConfigError: the file cannot be read, is cut off, is no JSON where it ends an entry, or goes on after its end.
    """
    try:
        with _open_source(path) as (file, packed):
            opening = _detect_opening(file)
            if opening:
                stream = _JsonStream(path, file, start or 1 + _count_leading_space(file))
                found = stream.iter_entries(opening, first=not start)
            else:
                found = _iter_lines(file, start)
            for key, value, end in found:
                yield JsonEntry(key, value, end, packed.tell())
    except gzip.BadGzipFile as error:
        raise ConfigError(f"{path} is not gzipped, or damaged: get it again, or name it without .gz") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} is cut off or damaged ({error}): get it again") from error


def _count_leading_space(file: BinaryIO) -> int:
    file.seek(0)
    head = file.read(_CHUNK)
    return len(head) - len(head.removeprefix(codecs.BOM_UTF8).lstrip())


def _detect_opening(file: BinaryIO) -> str:
    """Return ``[`` or ``{`` if all entries are in one list or object; "" if each has a line.

    The first object of many has a plain first value (its asin, its name); one object for all has objects or lists.
    """
    file.seek(_count_leading_space(file))
    head = file.read(_CHUNK).decode("utf-8", "ignore")
    if head.startswith("["):
        return "["
    if not head.startswith("{"):
        return ""
    try:
        _, end = parse_json_at(head, _skip(head, 1))
    except ValueError:
        return "{" if head[1:].strip() == "}" else ""
    return "{" if head[_skip(head, end, _WHITE_SPACE + ":") :].startswith(("{", "[")) else ""


def _skip(text: str, place: int, characters: str = _WHITE_SPACE) -> int:
    while place < len(text) and text[place] in characters:
        place += 1
    return place


def _iter_lines(file: BinaryIO, start: int) -> Iterator[_Found]:
    file.seek(start)
    while line := file.readline(MAX_ENTRY):
        start += len(line)
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as error:
            value = ValueError(str(error))
        yield None, value, start


class _JsonStream:
    def __init__(self, path: Path, file: BinaryIO, start: int) -> None:
        self._path, self._file, self._start = path, file, start
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._text, self._place, self._counted, self._ended = "", 0, 0, False
        file.seek(start)

    def iter_entries(self, opening: str, *, first: bool) -> Iterator[_Found]:
        """Iterate up to the closing bracket; `first`: no entry was read before."""
        closing = "]" if opening == "[" else "}"
        while (character := self._peek_character()) != closing:
            if not first:
                self._expect(",", character)
            first = False
            key = None
            if opening == "{":
                key = self._decode_value()
                self._expect(":", self._peek_character())
            value = self._decode_value()
            self._start += len(self._text[self._counted : self._place].encode(errors="surrogateescape"))
            self._counted = self._place
            yield key if key is None else str(key), value, self._start
        self._place += 1
        while True:
            self._place = self._counted = _skip(self._text, self._place)
            if self._place < len(self._text):
                raise ConfigError(f"{self._path} is no JSON: it goes on after its closing bracket; get it again")
            if not self._read_more():
                return

    def _peek_character(self) -> str:
        """Return the next character that is no space, without consuming it."""
        while True:
            self._place = _skip(self._text, self._place)
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._read_more():
                raise ConfigError(f"{self._path} is cut off after {self._start} bytes: get it again")

    def _expect(self, wanted: str, found: str) -> None:
        if found != wanted:
            raise ConfigError(f"{self._path} is no JSON after byte {self._start}: {wanted!r} is missing; get it again")
        self._place += 1

    def _decode_value(self) -> Any:
        self._peek_character()
        while True:
            fault = "it does not end"
            try:
                value, end = parse_json_at(self._text, self._place)
                if end < len(self._text) or self._ended:
                    self._place = end
                    return value
            except ValueError as error:
                fault = str(error)
            if len(self._text) - self._place > MAX_ENTRY or not self._read_more():
                place = f"in the entry after byte {self._start} ({fault})"
                raise ConfigError(f"{self._path} is cut off or no JSON {place}: get it again")

    def _read_more(self) -> bool:
        """Drop the counted text and read on, twice as much each time: a long entry is decoded a few times only."""
        if self._ended:
            return False
        self._text, self._place, self._counted = self._text[self._counted :], self._place - self._counted, 0
        data = self._file.read(max(_CHUNK, 2 * (len(self._text) - self._place)))
        self._ended = not data
        self._text += self._decode(data, final=self._ended)
        return True

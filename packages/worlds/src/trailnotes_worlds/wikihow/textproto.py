"""Parser of protocol buffers' text format without a schema, for task files.

protobuf's own reader needs compiled descriptors of all that a file may hold, the emulator's set-up included; this one
returns messages of named values, and its caller checks them. It executes nothing in a file.

Source: the grammar at protobuf.dev, "Text Format Language Specification".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trailnotes.errors import ConfigError

MAX_SIZE: Final = 1_000_000  # characters of a file
MAX_DEPTH: Final = 64  # messages within messages
_MAX_DIGITS: Final = 64  # of a number; protobuf's whole ones have 20 at most

_TOKEN: Final = re.compile(
    r"""(?P<blank>[\s;,]+|\#[^\n]*)
    | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<number>-?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fF]?(?![\w.]))
    | (?P<name>-?[A-Za-z_]\w*)
    | (?P<sign>[{}<>\[\]:])""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_SIMPLE_ESCAPES: Final = dict(zip("abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True))
_CLOSING_SIGNS: Final = {"{": "}", "<": ">"}


class Identifier(str):
    """Bare word: the value of an enumeration, or ``true``."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ProtoMessage:
    """Fields of a message by name, each with its values in the order of the file."""

    where: str  # FILE:LINE, for errors
    fields: dict[str, list[ProtoValue]] = field(default_factory=dict)


ProtoValue = str | float | Identifier | ProtoMessage


class _Token(NamedTuple):
    kind: str  # "string", "number", "name", "sign", or "end"
    text: str
    line: int


def parse_textproto(text: str, source: str) -> ProtoMessage:
    """Parse a text into a message.

    Args:
        text: of the file, `MAX_SIZE` characters at most.
        source: its name, for errors.

    Raises:
        ConfigError: it is too long, or no text format; the message says where.
    """
    if len(text) > MAX_SIZE:
        raise ConfigError(f"{source} has more than {MAX_SIZE:,} characters: it is no task file")
    return _TextprotoReader(text, source).read_message("", 1, 0)


class _TextprotoReader:
    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens = self._tokenize(text)
        self._place = 0

    def read_message(self, end: str, line: int, depth: int) -> ProtoMessage:
        if depth > MAX_DEPTH:
            raise self._make_error(line, f"more than {MAX_DEPTH} messages within each other")
        read = ProtoMessage(f"{self._source}:{line}")
        while not (self._take_sign(end) if end else self._peek().kind == "end"):
            if self._peek().kind == "end":
                raise self._make_error(self._peek().line, f"the file ends before {end!r}: it was cut off")
            name = self._take_token("name", "the name of a field")
            values = read.fields.setdefault(name.text, [])
            is_marked = self._take_sign(":")
            if self._take_sign("["):
                while not self._take_sign("]"):
                    values.append(self._read_value(depth))
            elif is_marked or self._peek().text in _CLOSING_SIGNS:
                values.append(self._read_value(depth))
            else:
                raise self._make_error(name.line, f"{name.text} is followed by neither a colon nor a message")
        return read

    def _read_value(self, depth: int) -> ProtoValue:
        token = self._take_token("", "a value")
        if token.kind == "string":
            parts = [self._unquote(token)]
            while self._peek().kind == "string":  # neighbours are one string
                parts.append(self._unquote(self._take_token("string", "")))
            try:
                return b"".join(parts).decode()
            except UnicodeDecodeError as error:
                raise self._make_error(token.line, "a string that is no UTF-8") from error
        if token.kind == "number":
            return self._parse_number(token)
        if token.kind == "name":
            return Identifier(token.text)
        if token.text in _CLOSING_SIGNS:
            return self.read_message(_CLOSING_SIGNS[token.text], token.line, depth + 1)
        raise self._make_error(token.line, f"{token.text!r} is no value")

    def _peek(self) -> _Token:
        return self._tokens[self._place]

    def _take_sign(self, sign: str) -> bool:
        token = self._peek()
        found = token.kind == "sign" and token.text == sign
        self._place += found
        return found

    def _take_token(self, kind: str, wanted: str) -> _Token:
        token = self._peek()
        if token.kind == "end" or (kind and token.kind != kind):
            found = "the file ends" if token.kind == "end" else f"{token.text[:40]!r} stands"
            raise self._make_error(token.line, f"{found} where {wanted} should be")
        self._place += 1
        return token

    def _tokenize(self, text: str) -> list[_Token]:
        tokens, place, line = [], 0, 1
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise self._make_error(line, f"{text[place : place + 20]!r} is no text format")
            if match.lastgroup != "blank":
                tokens.append(_Token(str(match.lastgroup), match[0], line))
            line += match[0].count("\n")
            place = match.end()
        return [*tokens, _Token("end", "", line)]

    def _unquote(self, token: _Token) -> bytes:
        parts, place, text = [], 1, token.text
        for match in _ESCAPE.finditer(text, 1, len(text) - 1):
            parts.append(text[place : match.start()].encode("utf-8", "replace"))
            octal, hexadecimal, short, long, simple = match.groups()
            if short or long:
                code = int(short or long, 16)
                if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                    raise self._make_error(token.line, f"{code:#x} is no character")
                parts.append(chr(code).encode())
            else:  # octal and hexadecimal escapes are bytes, as in C
                digits, base = (octal, 8) if octal else (hexadecimal, 16)
                byte = int(digits, base) if digits else _SIMPLE_ESCAPES.get(simple, 256)
                if byte > 255:
                    raise self._make_error(token.line, f"{match[0]!r} is no escape")
                parts.append(bytes([byte]))
            place = match.end()
        return b"".join((*parts, text[place:-1].encode("utf-8", "replace")))

    def _parse_number(self, token: _Token) -> float:
        digits = token.text.lower()
        if len(digits) > _MAX_DIGITS:  # Python's own limit is an error of another kind
            raise self._make_error(token.line, f"a number of more than {_MAX_DIGITS} digits")
        if "0x" in digits:
            return int(digits, 16)
        digits = digits.removesuffix("f")
        is_octal = re.fullmatch(r"-?0[0-7]+", digits)
        return float(digits) if set(digits) & set(".e") else int(digits, 8 if is_octal else 10)

    def _make_error(self, line: int, what: str) -> ConfigError:
        return ConfigError(f"{self._source}:{line}: {what}")

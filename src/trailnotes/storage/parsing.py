"""The one reader of text from outside: JSON and TOML as plain values, within bounds.

A file of somebody else's run, an answer of a server and a catalogue are data that nobody has checked. Where Python's
parsers raise another error, or return values that break the code that uses them, this module raises `ValueError`, as
for text that is not JSON: callers expect one error.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

MAX_NESTING: Final = 100  # lists and objects inside each other
MAX_DIGITS: Final = 300  # of an integer: a float can hold it
MAX_TOML_CHARS: Final = 1 << 18  # characters: tomllib takes quadratic time
Nonfinite = Literal["keep", "drop", "refuse"]
_CONTAINERS: Final = {dict, list}
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_INTEGER: Final = b"0" * MAX_DIGITS
_TOO_DEEP_MESSAGE: Final = f"it nests more than {MAX_NESTING} levels deep"
_KEY_PART: Final = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY: Final = re.compile(rf"(?<![\w-]){_KEY_PART}(?:[ \t]*+\.[ \t]*+{_KEY_PART}){{{MAX_NESTING}}}")


def parse_json(text: str | bytes, nonfinite: Nonfinite = "keep") -> Any:
    """Parse JSON that somebody else may have written.

    Args:
        text: bytes are UTF-8.
        nonfinite: what becomes of numbers that no float holds (``NaN``, ``1e999``, more than `MOST_DIGITS` digits):
            "keep" makes them ``nan`` or ``inf``, "drop" None, as `encode_line` writes them.

    Raises:
        ValueError: it is not JSON, nests more than `MAX_NESTING` levels deep, or has a number that "refuse" refuses.
    """
    if isinstance(text, bytes):
        text = text.removeprefix(BOM_UTF8).decode("utf-8", "surrogatepass")
    is_long = _LONG_INTEGER in text.encode("utf-8", "surrogatepass").translate(_AS_ZEROS)
    try:
        value = _DECODERS[nonfinite, is_long].decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP_MESSAGE) from None
    _require_shallow(value, text.count("[") + text.count("{"))
    return value


def parse_json_at(text: str, place: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at `place`, as `parse_json` does; returns it and where it ends."""
    try:
        value, end = _DECODERS["keep", True].raw_decode(text, place)
    except RecursionError:
        raise ValueError(_TOO_DEEP_MESSAGE) from None
    _require_shallow(value, text.count("[", place, end) + text.count("{", place, end))
    return value, end


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML that somebody else may have written.

    Raises:
        ValueError: it is not TOML, is longer than `MAX_TOML_CHARS` characters, nests more than `MAX_NESTING` levels deep, or
            holds an integer of more than `MAX_DIGITS` digits.
    """
    if len(text) > MAX_TOML_CHARS:
        raise ValueError(f"it is longer than {MAX_TOML_CHARS:,} characters")
    if _LONG_KEY.search(text):
        raise ValueError(_TOO_DEEP_MESSAGE)
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP_MESSAGE) from None
    _require_shallow(values, len(text))
    _require_small(values)
    return values


def _require_shallow(value: Any, opened: int) -> None:
    """Refuse a value that nests too deeply. `opened`: how many lists and objects it holds at most."""
    if opened <= MAX_NESTING:  # most lines: there is no need to look
        return
    level = [value]
    for _ in range(MAX_NESTING):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for items in inside for item in items if type(item) in _CONTAINERS]
        if not level:
            return
    raise ValueError(_TOO_DEEP_MESSAGE)


def _require_small(value: Any) -> None:
    match value:
        case dict():
            for item in value.values():
                _require_small(item)
        case list():
            for item in value:
                _require_small(item)
        case int() if abs(value) >= 10**MAX_DIGITS:
            raise ValueError(f"it holds an integer of more than {MAX_DIGITS} digits")


def _reject_nonfinite(digits: str) -> None:
    raise ValueError(f"{digits[:20]} is not a finite number of JSON")


def _make_decoder(nonfinite: Nonfinite, *, counts_digits: bool) -> json.JSONDecoder:
    by_name: dict[Nonfinite, Callable[[str], float | None]] = {
        "keep": float, "drop": lambda _: None, "refuse": _reject_nonfinite
    }  # fmt: skip
    otherwise = by_name[nonfinite]

    def parse_float(digits: str) -> float | None:
        value = float(digits)
        return value if math.isfinite(value) else otherwise(digits)

    def parse_int(digits: str) -> int | float | None:
        return int(digits) if len(digits) <= MAX_DIGITS else parse_float(f"{digits}e{MAX_DIGITS}")

    return json.JSONDecoder(
        parse_float=parse_float, parse_int=parse_int if counts_digits else None, parse_constant=otherwise
    )


_DECODERS: Final = {  # (what of numbers, has long integers): to count the digits of each takes as long as parsing
    (nonfinite, is_long): _make_decoder(nonfinite, counts_digits=is_long)
    for nonfinite in get_args(Nonfinite)
    for is_long in (False, True)
}

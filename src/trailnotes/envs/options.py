"""Validators of values of ``[env.options]``; each error names the option and its allowed values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from trailnotes.errors import ConfigError

Value = TypeVar("Value", str, int, bool)
_OPTIONS: Final = "env.options."
_TYPE_NAMES: Final[Mapping[type, str]] = {str: "a text", int: "a whole number", bool: "true or false"}


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known names nearest to a word, whatever their case, for the end of an error; else list all."""
    lowered = {name.lower(): name for name in known}
    if near := difflib.get_close_matches(word.lower(), lowered, n=2):
        return f"; did you mean {' or '.join(lowered[name] for name in near)}?"
    return f" (known: {', '.join(lowered.values()) or 'none'})"


def require_type(kind: type[Value], key: str, value: object, *, where: str = _OPTIONS) -> Value:
    """Require a value of this very type (a bool is no number); raises `ConfigError`, which names `where`."""
    if type(value) is not kind:
        raise ConfigError(f"{where}{key} = {value!r} must be {_TYPE_NAMES[kind]}")
    return value


def require_choice(key: str, value: object, known: Collection[str], *, where: str = _OPTIONS) -> str:
    text = require_type(str, key, value, where=where)
    if text not in known:
        raise ConfigError(f"{where}{key} = {text!r} is unknown: use {' or '.join(map(repr, known))}")
    return text


def require_text_list(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{_OPTIONS}{key} = {value!r} must be a list of names")
    return tuple(value)


def require_table(key: str, value: object) -> dict[str, Any]:
    """Require a table, and copy it; raises `ConfigError`."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{_OPTIONS}{key} = {value!r} must be a table of names and values")
    return dict(value)


def require_int(key: str, number: object, least: int = 1, most: float = math.inf) -> int:
    """Require a whole number from `least` to `most`; raises `ConfigError`."""
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        up_to = f"{least} or more" if most == math.inf else f"{least} to {most}"
        raise ConfigError(f"{_OPTIONS}{key} = {number!r} must be a whole number, {up_to}")
    return number

"""Checks of what a user may set under ``[env.options]``: each error names the option and what it may be."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from trailnotes.errors import ConfigError


def one_of(key: str, value: object, known: Collection[str]) -> str:
    """`value`, if it is one of `known`. Raises `ConfigError` with the nearest if not."""
    if isinstance(value, str) and value in known:
        return value
    close = difflib.get_close_matches(str(value), known, n=1)
    raise ConfigError(f"{key} = {value!r} is unknown: use {repr(close[0]) if close else ' or '.join(known)}")


def whole(key: str, value: object, least: int, most: int) -> int:
    """`value`, if it is a whole number in this range. Raises `ConfigError` if not."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{key} = {value!r} must be a whole number, {least} to {most}")
    return value

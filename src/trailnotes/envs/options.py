"""Values of ``[env.options]``, checked where they are taken: each error names the option and what it may be."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final, TypeVar

from trailnotes.errors import ConfigError

Value = TypeVar("Value", str, int, bool)
_KINDS: Final[Mapping[type, str]] = {str: "a text", int: "a whole number", bool: "true or false"}


def of_kind(kind: type[Value], key: str, value: object) -> Value:
    """`value`, if it is of this very kind: a truth value is no number.

    Raises:
        ConfigError: it is not.
    """
    if type(value) is not kind:
        raise ConfigError(f"env.options.{key} = {value!r} must be {_KINDS[kind]}")
    return value


def one_of(key: str, value: object, known: Collection[str]) -> str:
    """`value`, if it is one of the `known` texts.

    Raises:
        ConfigError: it is not.
    """
    text = of_kind(str, key, value)
    if text not in known:
        raise ConfigError(f"env.options.{key} = {text!r} is unknown: use {' or '.join(map(repr, known))}")
    return text


def whole(key: str, number: object, most: float = math.inf) -> int:
    """`number`, if it is a whole one from 1 to `most`.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        up_to = "1 or more" if most == math.inf else f"1 to {most}"
        raise ConfigError(f"env.options.{key} = {number!r} must be a whole number, {up_to}")
    return number

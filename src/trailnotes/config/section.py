"""Base class of all sections, their keys, and the sources that keys cite."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from trailnotes.errors import ConfigError

PAPER = "EMPO2, arXiv 2602.23008"
RELEASE = "EMPO2 release 0b40cb72"


def key(default: Any, doc: str, source: str = "", needs: str = "", **limits: Any) -> Any:
    """Declare a setting: its default, its meaning, its source, and what it needs to have an effect (`unused.py`)."""
    extra: dict[str, Any] = {name: text for name, text in {"source": source, "needs": needs}.items() if text}
    default = {"default_factory" if callable(default) else "default": default}
    return Field(**default, description=doc, json_schema_extra=extra or None, **limits)


class Section(BaseModel):
    """Base of all sections: frozen, and unknown keys are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True, allow_inf_nan=False
    )


def _make_plain(value: Any, name: str = "it") -> Any:
    if isinstance(value, Mapping) and all(isinstance(inner, str) for inner in value):
        return {inner: _make_plain(item, inner) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [_make_plain(item, name) for item in value]
    if isinstance(value, Path):
        return str(value)
    if type(value) in {bool, int, str} or (type(value) is float and math.isfinite(value)):
        return value
    raise ValueError(f"{name} is {type(value).__name__}, which config.toml cannot hold: leave it out, or give text, a "
                     "finite number, true, false, a list, or a table whose keys are text")  # fmt: skip


Table = Annotated[dict[str, Any], AfterValidator(_make_plain)]
"""A setting that is a table of any values, which config.toml keeps: tuples become lists, and paths text."""

Text = Annotated[str, Field(min_length=1)]
"""A text that must not be empty."""


def require_secret_free_url(setting: str, value: str, variable: str) -> None:
    """Refuse an address with a name or password before its host, since logs and run directories keep addresses.

    `value` may be a text that ends with the address; `variable` is the environment variable for a key instead.

    Raises:
        ConfigError: there is one; the text does not repeat it.
    """
    if "@" in value.partition("://")[2].partition("/")[0]:
        raise ConfigError(f"{setting} must hold no name or password: put a key into the variable {variable}")


def describe_allowed(field: FieldInfo) -> str:
    """Describe the values of a key: ``one of "auto", "step"``, ``any of ...``, ``>= 1``; "" if its type says all."""
    if choices := _extract_choices(field.annotation):
        words = ", ".join(f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices)
        return f"{'one' if get_origin(field.annotation) is Literal else 'any'} of {words}"
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = [(sign, getattr(m, name)) for m in field.metadata for name, sign in signs.items() if hasattr(m, name)]
    return " and ".join(f"{sign} {limit:g}" for sign, limit in limits)


def _extract_choices(annotation: Any) -> tuple[Any, ...]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return inner
    if origin in {tuple, types.UnionType}:
        return next((choices for part in inner if (choices := _extract_choices(part))), ())
    return ()

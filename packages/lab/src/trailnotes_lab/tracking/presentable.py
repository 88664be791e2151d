"""What others get to see of a run: no keys, no passwords in addresses, nothing that the environment holds of either."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from trailnotes.config.section import SECRETS

HIDDEN = "***"
_SHORTEST = 8  # letters of a secret: a shorter value would be found in innocent text
_NAMES = re.compile(rf"(^|[._-])({SECRETS})$", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@]+(?=@)")
_IN_QUERY = re.compile(rf"([?&](?:[^\s=&?]*[._-])?(?:{SECRETS})=)[^\s&#\"']+", re.IGNORECASE)


def presentable(value: Any) -> Any:
    """JSON values with all that looks like a secret replaced by `HIDDEN`, at any depth, and in letters that exist."""
    match value:
        case str():
            return _scrubbed(value)
        case Mapping():
            return {
                name: HIDDEN if _NAMES.search(str(name)) and item else presentable(item) for name, item in value.items()
            }
        case list() | tuple():
            return [presentable(item) for item in value]
        case _:
            return value


def _scrubbed(text: str) -> str:
    for name, value in os.environ.items():
        if _NAMES.search(name) and len(value) >= _SHORTEST:
            text = text.replace(value, HIDDEN)
    text = _IN_QUERY.sub(rf"\1{HIDDEN}", _IN_ADDRESS.sub(HIDDEN, text))
    return text.encode(errors="replace").decode()  # half a surrogate pair: no service can store one

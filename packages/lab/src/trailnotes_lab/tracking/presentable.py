"""What others get to see of a run: no keys, no passwords in addresses, nothing that the environment holds of either."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from trailnotes.config.section import SECRET_NAMES

REDACTED = "***"
_MIN_SECRET_CHARS = 8  # letters of a secret: a shorter value would be found in innocent text
_SECRET_NAME = re.compile(rf"(^|[._-])({SECRET_NAMES})$", re.IGNORECASE)
_ADDRESS_SECRET = re.compile(r"(?<=://)[^\s/@]+(?=@)")
_QUERY_SECRET = re.compile(rf"([?&](?:[^\s=&?]*[._-])?(?:{SECRET_NAMES})=)[^\s&#\"']+", re.IGNORECASE)


def redact_secrets(value: Any) -> Any:
    """JSON values with all that looks like a secret replaced by `REDACTED`, at any depth, and in letters that exist."""
    match value:
        case str():
            return _redact_text(value)
        case Mapping():
            return {
                name: REDACTED if _SECRET_NAME.search(str(name)) and item else redact_secrets(item)
                for name, item in value.items()
            }
        case list() | tuple():
            return [redact_secrets(item) for item in value]
        case _:
            return value


def _redact_text(text: str) -> str:
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET_CHARS:
            text = text.replace(value, REDACTED)
    text = _QUERY_SECRET.sub(rf"\1{REDACTED}", _ADDRESS_SECRET.sub(REDACTED, text))
    return text.encode(errors="replace").decode()  # half a surrogate pair: no service can store one

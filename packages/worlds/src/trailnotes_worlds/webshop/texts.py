"""Product text for pages: one line, of bounded length, that cannot pass for a part of the page."""

from __future__ import annotations

import re
from typing import Final, Literal

Brackets = Literal["round", "markers"]

ELLIPSIS: Final = "…"  # ends a text that was cut
# Marks of the views around buttons and between texts, which product text must not contain.
_MARKER: Final = re.compile(r"\[\s*((?:sep|(?:clicked )?button_?))\s*\]", re.IGNORECASE)
_ROUND: Final = str.maketrans("[]", "()")
# Format characters (Unicode's Cf): invisible, but they turn or join their neighbours.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f]"
)
_BREAKS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # control characters, halves of pairs
_READ_AHEAD_FACTOR: Final = 4  # characters read for each one shown, since some are dropped before the cut


def sanitize_text(text: str, limit: int, brackets: Brackets = "round") -> str:
    """Sanitize a text: join blanks, drop control and invisible characters, cut to `limit` characters."""
    head = text[: limit * _READ_AHEAD_FACTOR]
    if not head.isprintable():
        head = _BREAKS.sub(" ", _INVISIBLE.sub("", head))
    clean = " ".join(head.split())
    if brackets == "round":
        clean = clean.translate(_ROUND)
    elif "[" in clean:
        clean = _MARKER.sub(r"(\1)", clean)
    if len(clean) > limit or len(text) > limit * _READ_AHEAD_FACTOR:
        return clean[: max(0, limit - len(ELLIPSIS))].rstrip() + ELLIPSIS
    return clean

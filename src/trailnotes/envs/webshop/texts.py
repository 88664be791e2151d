"""Product text as a page shows it: one line, of bounded length, that cannot pass for a part of the page."""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal

Brackets = Literal["round", "markers"]

CUT: Final = "…"  # ends what was cut
# What the views put around buttons and between texts: whoever writes a product must not.
_MARKER: Final = re.compile(r"\[\s*((?:sep|(?:clicked )?button_?))\s*\]", re.IGNORECASE)
_ROUND: Final = str.maketrans("[]", "()")
_SPARE: Final = 4  # characters read for each one shown: white space and invisible ones are dropped before the cut


def clean(text: str, limit: int, brackets: Brackets = "round") -> str:
    """`text` fit to be shown: blanks joined, control and invisible characters dropped, cut to `limit` characters.

    Args:
        text: whatever a product says, of any length.
        limit: characters that remain at most, the mark of a cut included.
        brackets: "round" writes () for [], so that nothing looks like a button of any view; "markers" does so only for
            [SEP], [button] and their like, and leaves others as the original shows them.
    """
    head = text[: limit * _SPARE]
    shown = " ".join((head if head.isascii() and head.isprintable() else _visible(head)).split())
    if brackets == "round":
        shown = shown.translate(_ROUND)
    elif "[" in shown:
        shown = _MARKER.sub(r"(\1)", shown)
    if len(shown) > limit or len(text) > len(head):
        return shown[: max(0, limit - len(CUT))].rstrip() + CUT
    return shown


def _visible(text: str) -> str:
    """Without what is not seen: format characters vanish, control characters and halves of pairs become blanks."""
    kept = []
    for character in text:
        category = unicodedata.category(character)
        if category in ("Cc", "Cs", "Zl", "Zp"):
            kept.append(" ")
        elif category != "Cf":
            kept.append(character)
    return "".join(kept)

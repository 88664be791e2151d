"""A player's sentence about itself as the command that a game's parser knows."""

from __future__ import annotations

import re
from typing import Final

_WILL: Final = (
    r"will|shall|should|must|can|could|would like to|would|want to|need to|have to|am going to|decide to|try to"
)
_OPENING: Final = re.compile(
    r"^(?:(?i:ok|okay|sure|well|now|next|first|so|then)\s*[,:!.]\s*)*"
    rf"(?:(?:I|[Ww]e)(?:\s+(?:{_WILL})|['\u2019](?:ll|d like to|m going to))?|[Ll]et (?:me|us)|[Ll]et['\u2019]s)\s+"
    r"(?:(?:now|then|next|first|just|try to)\s+)*(?=[^\W\d_])"
)


def imperative(action: str) -> str:
    """The command in "I will COMMAND", "Let me COMMAND" or "Okay, I'll now COMMAND"; any other `action` as it is.

    For games whose commands are imperatives, none of which begins like that. A small "i" stays: to their parsers it is
    short for the inventory.
    """
    return _OPENING.sub("", action)

"""Reading the action out of what a policy wrote."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final, Literal

NO_OP: Final = ""  # what an environment gets in place of an action that cannot be read
MAX_ACTION_CHARS: Final = 500  # a longer action cannot be read


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """An action as the environment gets it; `ok` is False where it is the no-op."""

    action: str
    ok: bool


_PREFIX: Final = re.compile(r"^(?:(?:>|action\s*:)\s*)+", re.IGNORECASE)
_TAGS: Final = re.compile(r"<action>(.*?)(?:</action>|\Z)", re.IGNORECASE | re.DOTALL)


def parse_action(text: str, action_format: Literal["line", "tags"]) -> ParsedAction:
    """Read the action out of what the policy wrote; never raises.

    "line" takes the first non-blank line, "tags" what stands in the last pair of action tags (the closing one may be
    missing, it is a common stop string). A leading "Action:" or ">" is dropped, control characters too, blanks are
    joined. Rule for the rest: what is empty then, or longer than `MAX_ACTION_CHARS`, becomes `NO_OP`, with ok = False.
    """
    if action_format == "tags":
        found = _TAGS.findall(text)
        raw = found[-1] if found else ""
    else:
        raw = next((line for line in text.splitlines() if line.strip()), "")
    visible = "".join(c for c in raw if c.isspace() or unicodedata.category(c) not in {"Cc", "Cs"})
    action = _PREFIX.sub("", " ".join(visible.split())).strip()
    ok = 0 < len(action) <= MAX_ACTION_CHARS
    return ParsedAction(action if ok else NO_OP, ok)

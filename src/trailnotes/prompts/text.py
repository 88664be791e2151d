"""Text from outside: the action read out of an answer; what others supply, cut to size and made fit to quote."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from trailnotes.types import NO_OP, answer_of

CountTokens = Callable[[str], int]

MAX_ACTION_CHARS: Final = 500  # a longer action cannot be read
CUT: Final = " [...]"  # marks where text was cut; tips cannot hold it, their brackets are replaced
_PREFIX: Final = re.compile(r"^(?:(?:>|action\s*:)\s*)+", re.IGNORECASE)
_TAGS: Final = re.compile(r"<action>(.*?)(?:</action>|\Z)", re.IGNORECASE | re.DOTALL)
# One-to-one replacements: nothing is left that closes a quote, opens a tag or imitates a chat template's brackets.
_HARMLESS: Final = str.maketrans(
    {**dict.fromkeys('"“”„‟«»`', "'"), "<": "\u2039", ">": "\u203a", "[": "(", "]": ")", "|": "/", "#": " "}
)
_SPEAKERS: Final = re.compile(
    r"\b(system|user|human|assistant|ai|model|tool|developer|notes?|task|instructions?|observation|"
    r"(?:admissible )?actions?|reply|response)\s*:",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(
    r"notes from earlier attempts(?: at this task)?(?: \(quoted; they may be wrong\))?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """An action as the environment gets it; `ok` is False where it is the no-op."""

    action: str
    ok: bool


def parse_action(text: str, action_format: Literal["line", "tags"]) -> ParsedAction:
    """Read the action out of what the policy wrote; never raises.

    Thinking is no part of an action: what stands before the last </think>, or after a <think> that is never closed, is
    not read. Of the rest "line" takes the first non-blank line, "tags" what stands in the last pair of action tags (the
    closing one may be missing, it is a common stop string). A leading "Action:" or ">" is dropped, control characters
    too, blanks are joined. What is empty then, or longer than `MAX_ACTION_CHARS`, becomes `NO_OP`, with ok = False.
    """
    answer = answer_of(text)
    if action_format == "tags":
        found = _TAGS.findall(answer)
        raw = found[-1] if found else ""
    else:
        raw = next((line for line in answer.splitlines() if line.strip()), "")
    visible = "".join(c for c in raw if c.isspace() or unicodedata.category(c) not in {"Cc", "Cs"})
    action = _PREFIX.sub("", " ".join(visible.split())).strip()
    ok = 0 < len(action) <= MAX_ACTION_CHARS
    return ParsedAction(action if ok else NO_OP, ok)


def truncate(text: str, max_tokens: int, count_tokens: CountTokens) -> str:
    """Cut `text` to `max_tokens` tokens, the mark " [...]" included; shorter text stays as it is.

    Where not even the mark fits, the mark alone is left: a cut is never silent.
    """
    if count_tokens(text) <= max_tokens:
        return text
    low, high = 0, len(text) - 1  # characters kept: `low` is known to fit, or is 0
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(text[:middle].rstrip() + CUT) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    kept = text[:low].rstrip()
    return kept + CUT if kept else CUT.strip()


def quoted(text: str) -> str:
    """One line of data, fit to stand between double quotes in a prompt.

    Control and format characters are gone, look-alikes are folded (NFKC), quotes, angle and square brackets, bars
    and hashes are replaced, and words that announce a speaker or one of our own segments lose their colon. So the
    result can neither end its quotation nor start a line, a turn or a segment.
    """
    visible = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    plain = unicodedata.normalize("NFKC", visible).translate(_HARMLESS)
    line = " ".join(plain.split())
    return _SPEAKERS.sub(r"\1 -", _HEADER.sub("(notes)", line))

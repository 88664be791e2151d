"""Text from outside: parses actions out of answers, cuts texts to size, makes them fit to quote."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from trailnotes.types import NO_OP, strip_thinking

CountTokens = Callable[[str], int]

MAX_ACTION_CHARS: Final = 500  # a longer action cannot be read
CUT_MARK: Final = " [...]"  # marks where text was cut; tips cannot hold it, their brackets are replaced
_JOINER: Final = "\u200d"
_COMBINING: Final = frozenset({_JOINER, *map(chr, range(0x1F3FB, 0x1F400))})  # joiner and skin tones
_PREFIX: Final = re.compile(r"^(?:(?:>|action\s*:)\s*)+", re.IGNORECASE)
_TAGS: Final = re.compile(r"<action>((?:(?!</?action>).)*)", re.IGNORECASE | re.DOTALL)
# How a model of language dresses an action up: as a list, a heading, a label, in bold, in quotes, as a sentence.
_BOLD: Final = re.compile(r"(?<!\w)(\*{1,3}|`{1,3})(?=[^\s*`])([^*`]*[^\s*`])\1(?!\w)")
_LABEL: Final = re.compile(
    r"^(?:[-*#>\u2022]+\s+|\d{1,2}[.)]\s+(?=\D)|>|(?:(?:my|the|next|final|chosen)\s+)*(?:action|command)(?:\s+is)?\s*:)\s*",
    re.IGNORECASE,
)
_QUOTES: Final = ('""', "''", "\u201c\u201d", "\u2018\u2019", "\u00ab\u00bb", "\u300c\u300d", "()", "[]")
_STOPS: Final = re.compile(r"(?:(?<=[^\W\d_])|(?<=[\"'\u201d\u2019\u00bb]))[.!\u3002]$")
# One-to-one replacements: nothing is left that closes a quote, opens a tag or imitates a chat template's brackets.
_ESCAPES: Final = str.maketrans(
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
    """An action for the environment; `ok` is False where it is the no-op."""

    action: str
    ok: bool


def parse_action(
    text: str, action_format: Literal["line", "tags"], style: Literal["full", "terse"] = "full"
) -> ParsedAction:
    """Parse the action out of a policy's text; never raises.

    Thinking is skipped. "line" takes the first non-blank line, "tags" the content of the last filled action tags (the
    closing one may be missing). A leading "Action:" or ">" and control characters go, blanks are joined. In the style
    "full" bold type, outer quotes, bullets, numbers, labels and a final full stop go as well, and "line" skips lines
    that are then empty or end with a colon. An empty action, or one longer than `MAX_ACTION_CHARS`, becomes `NO_OP`.
    """
    answer = strip_thinking(text)
    if action_format == "tags":
        found = [inner for inner in _TAGS.findall(answer) if inner.strip()]
        lines = found[-1:]
    else:
        lines = [line for line in answer.splitlines() if line.strip()]
    if style == "terse":
        action = _PREFIX.sub("", _remove_controls(lines[0])).strip() if lines else ""
    else:
        said = [bare for line in lines if (bare := _strip_decoration(_remove_controls(line)))]
        action = next((bare for bare in said if bare[-1] != ":"), said[0] if said else "")
    ok = 0 < len(action) <= MAX_ACTION_CHARS
    return ParsedAction(action if ok else NO_OP, ok)


def _remove_controls(line: str) -> str:
    return " ".join("".join(c for c in line if c.isspace() or unicodedata.category(c) not in {"Cc", "Cs"}).split())


def _strip_decoration(line: str) -> str:
    """Strip the bare action; a line without a letter or digit, such as a code fence, is none."""
    line = line[: 4 * MAX_ACTION_CHARS]
    if line.startswith("```") or not any(map(str.isalnum, line)):
        return ""
    before = ""
    while line != before:
        before = line
        line = _STOPS.sub("", _LABEL.sub("", _BOLD.sub(r"\2", line)).strip())
        if len(line) > 1 and line[0] + line[-1] in _QUOTES and line[-1] not in line[1:-1]:
            line = line[1:-1].strip()
    return line


def truncate(text: str, max_tokens: int, count_tokens: CountTokens) -> str:
    """Cut `text` to `max_tokens` tokens, the mark " [...]" included; shorter text stays as it is.

    If not even the mark fits, the mark alone is left. Accents, vowel signs and composed emoji stay whole.
    """
    if count_tokens(text) <= max_tokens:
        return text
    low, high = 0, len(text) - 1  # characters kept: `low` is known to fit, or is 0
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(text[:middle].rstrip() + CUT_MARK) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    while low and (  # the second of two characters combines with the first
        text[low - 1] == _JOINER or unicodedata.category(text[low])[0] == "M" or text[low] in _COMBINING
    ):
        low -= 1
    kept = text[:low].rstrip()
    return kept + CUT_MARK if kept else CUT_MARK.strip()


def quoted(text: str) -> str:
    """Make one line of data fit to stand between double quotes in a prompt.

    Control and format characters go, look-alikes are folded (NFKC), brackets, quotes, bars and hashes are replaced, and
    words that announce a speaker or segment lose their colon: it can neither end its quotation nor start a line, a turn
    or a segment.
    """
    visible = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    plain = unicodedata.normalize("NFKC", visible).translate(_ESCAPES)
    line = " ".join(plain.split())
    return _SPEAKERS.sub(r"\1 -", _HEADER.sub("(notes)", line))

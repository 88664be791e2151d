"""Tips about WebShop, terse and in English: the way to a purchase, and what was missed; and the way read back.

An action stands in a tip without its brackets, "click red" for ``click[red]``: a prompt that quotes a tip shows other
brackets, and a reader would copy those. Dead ends are left out, so that a tip can be followed from a fresh start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

FaultKind = Literal["option", "value", "price", "other", "unbought"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that a buyer can see to be wrong with an episode."""

    kind: FaultKind
    what: str = ""  # the name of the option, the value that was asked for, or the limit in dollars


# What is said of a fault.
TERSE: Final[dict[FaultKind, str]] = {
    "option": "no {what}",
    "value": "want {what}",
    "price": "too dear",
    "other": "want other",
    "unbought": "not bought",
}
ENGLISH: Final[dict[FaultKind, tuple[str, ...]]] = {
    "option": ("no {what} was chosen", "the {what} was left open", "I forgot to choose the {what}"),
    "value": ("'{what}' was asked for and not chosen", "it should have been '{what}'", "the page offers '{what}' too"),
    "price": ("it costs more than the limit of {what} dollars", "its price is above {what} dollars"),
    "other": ("it is not what was asked for", "another product must fit better", "something about it does not fit"),
    "unbought": ("nothing was bought", "I never came to buy anything"),
}
# What stands before the way, with the only colon before it, and after it.
OPENINGS: Final[dict[bool, tuple[str, ...]]] = {
    True: (
        "This bought the right thing: ",
        "Do the same again: ",
        "The way to the full score: ",
        "What was asked for is found like this: ",
        "It takes {num} steps: ",
    ),
    False: (
        "This was not right yet: ",
        "What I did: ",
        "Do not repeat this as it is: ",
        "Not the full score: ",
        "My {num} steps: ",
    ),
}
ENDINGS: Final[dict[bool, tuple[str, ...]]] = {
    True: ("That earned the full score.", "Nothing was missing.", "Everything fitted.", "Score {score}."),
    False: ("But {faults}: score {score}.", "Score {score}, since {faults}.", "The fault is that {faults} ({score})."),
}
SEPARATORS: Final = (", then ", "; ", ", ")
NEXT: Final = "click[next >]"  # "click next" in a tip, since a quotation has another angle
_ACTION: Final = re.compile(r"(search|click)\[(.+)\]", re.DOTALL)
_PARTS: Final = re.compile(r"(?:, then|,| ?;) (?=(?:search|click) )")
_END: Final = re.compile(r"\.(?= [A-Z]|$)| \. ")


def format_terse_tip(way: Sequence[str], faults: Sequence[Fault]) -> str:
    """A tip of few words: the way, and behind a full stop what was missed."""
    told = " ; ".join(map(strip_brackets, way)) or "nothing"
    missed = " , ".join(TERSE[fault.kind].format(what=fault.what) for fault in faults)
    return f"{told} . {missed}" if missed else told


def format_english_tip(way: Sequence[str], faults: Sequence[Fault], score: float, rng: random.Random) -> str:
    """A tip in English, its wording drawn.

    Args:
        way: actions that lead to where it ended.
        faults: what was wrong with it; none after a full score.
        score: in 0..1.
        rng: draws the wording.
    """
    right = not faults
    told = rng.choice(SEPARATORS).join(map(strip_brackets, way)) or "nothing"
    missed = " and ".join(rng.choice(ENGLISH[fault.kind]).format(what=fault.what) for fault in faults)
    opening = rng.choice(OPENINGS[right]).format(num=len(way))
    return f"{opening}{told}. {rng.choice(ENDINGS[right]).format(faults=missed, score=f'{score:.2g}')}"


def parse_tip_actions(text: str) -> tuple[str, ...]:
    """The actions that a tip tells, in order, as the shop takes them; () where it tells none."""
    begin = re.search(r"(?:^|(?<=: ))(?:search|click) ", text)
    if begin is None:
        return ()
    told = _END.split(text[begin.start() :], maxsplit=1)[0]
    words = (part.strip().partition(" ") for part in _PARTS.split(told))
    actions = (f"{verb}[{what.strip()}]" for verb, _, what in words if what.strip())
    return tuple(NEXT if action == "click[next]" else action for action in actions)


def space_brackets(action: str) -> str:
    """An action with blanks inside its brackets, so that its words are the same tokens as on a page."""
    match = _ACTION.fullmatch(action)
    return f"{match[1]}[ {match[2]} ]" if match else action


def unspace_brackets(action: str) -> str:
    """The inverse of `spaced`; any other text as it is."""
    match = _ACTION.fullmatch(action)
    return f"{match[1]}[{match[2].strip()}]" if match else action


def strip_brackets(action: str) -> str:
    """An action without its brackets; any other text as it is."""
    if action == NEXT:
        return "click next"
    match = _ACTION.fullmatch(action)
    return f"{match[1]} {match[2]}" if match else action

"""Tips about WebShop, terse and in English: the actions of a purchase and its faults; and a parser of the actions.

Tips write an action without its brackets, "click red" for ``click[red]``: a prompt that quotes a tip shows other
brackets, and a reader would copy those. They leave out dead ends, so that a tip can be followed from a fresh start.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

FaultKind = Literal["option", "value", "price", "other", "unbought"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of an episode that a buyer can see."""

    kind: FaultKind
    what: str = ""  # the name of the option, the value that was asked for, or the limit in dollars


WORDS: Final = tomllib.loads(Path(__file__).with_name("webshop_tips.toml").read_text(encoding="utf-8"))
SEPARATORS: Final = (", then ", "; ", ", ")
NEXT: Final = "click[next >]"  # "click next" in a tip, since a quotation has another angle
_ACTION: Final = re.compile(r"(search|click)\[(.+)\]", re.DOTALL)
_PARTS: Final = re.compile(r"(?:, then|,| ?;) (?=(?:search|click) )")
_END: Final = re.compile(r"\.(?= [A-Z]|$)| \. ")


def format_terse_tip(way: Sequence[str], faults: Sequence[Fault]) -> str:
    """Write a tip of few words: the actions, and behind a full stop the faults."""
    actions = " ; ".join(map(strip_brackets, way)) or "nothing"
    missed = " , ".join(WORDS["terse"][fault.kind].format(what=fault.what) for fault in faults)
    return f"{actions} . {missed}" if missed else actions


def format_english_tip(way: Sequence[str], faults: Sequence[Fault], score: float, rng: random.Random) -> str:
    """Write a tip in English, with a random wording."""
    right = "wrong" if faults else "right"
    actions = rng.choice(SEPARATORS).join(map(strip_brackets, way)) or "nothing"
    missed = " and ".join(rng.choice(WORDS["english"][fault.kind]).format(what=fault.what) for fault in faults)
    opening = rng.choice(WORDS["openings"][right]).format(num=len(way))
    ending = rng.choice(WORDS["endings"][right]).format(faults=missed, score=f"{score:.2g}")
    return f"{opening}{actions}. {ending}"


def parse_tip_actions(text: str) -> tuple[str, ...]:
    """Parse the actions of a tip, in order, as the shop takes them; () if it names none."""
    begin = re.search(r"(?:^|(?<=: ))(?:search|click) ", text)
    if begin is None:
        return ()
    sentence = _END.split(text[begin.start() :], maxsplit=1)[0]
    words = (part.strip().partition(" ") for part in _PARTS.split(sentence))
    actions = (f"{verb}[{what.strip()}]" for verb, _, what in words if what.strip())
    return tuple(NEXT if action == "click[next]" else action for action in actions)


def space_brackets(action: str) -> str:
    """Put blanks inside the brackets of an action, so that its words are the same tokens as on a page."""
    match = _ACTION.fullmatch(action)
    return f"{match[1]}[ {match[2]} ]" if match else action


def unspace_brackets(action: str) -> str:
    match = _ACTION.fullmatch(action)
    return f"{match[1]}[{match[2].strip()}]" if match else action


def strip_brackets(action: str) -> str:
    """Write an action without its brackets; return any other text as it is."""
    if action == NEXT:
        return "click next"
    match = _ACTION.fullmatch(action)
    return f"{match[1]} {match[2]}" if match else action

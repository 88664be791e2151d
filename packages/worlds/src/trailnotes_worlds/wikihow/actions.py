"""What an agent may do, and how it says so."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

ActionKind = Literal["CLICK", "INPUT", "SCROLL", "GOBACK", "NOTHING"]
FORMATS: Final = ["CLICK(ID)", "INPUT(ID, TEXT)", "SCROLL(UP)", "SCROLL(DOWN)", "GOBACK"]
DIRECTIONS: Final = ("UP", "DOWN", "LEFT", "RIGHT")

_CALL: Final = re.compile(r"\s*([A-Za-z]+)\s*(?:\(\s*(\w+)\s*(?:,(.*))?\))?\s*", re.DOTALL)
_MAX_DIGITS: Final = 9


class Action(NamedTuple):
    """One action; what cannot be read is NOTHING, as in Mobile-Env."""

    kind: ActionKind
    element: int = 0  # of CLICK and INPUT: the id of a line of the screen
    text: str = ""  # of INPUT
    direction: str = ""  # of SCROLL: where the page is scrolled to


def parse_action(said: str) -> Action:
    """The action that a text is: ``CLICK(3)``, ``INPUT(2, boil an egg)``, ``SCROLL(DOWN)``, ``GOBACK``."""
    match = _CALL.fullmatch(said)
    if match is None:
        return Action("NOTHING")
    name, first, text = match[1].upper(), match[2] or "", match[3]
    has_id = first.isascii() and first.isdecimal() and len(first) <= _MAX_DIGITS
    if name == "CLICK" and has_id and text is None:
        return Action("CLICK", int(first))
    if name == "INPUT" and has_id and text is not None:
        return Action("INPUT", int(first), text.strip())
    if name == "SCROLL" and first.upper() in DIRECTIONS and text is None:
        return Action("SCROLL", direction=first.upper())
    return Action("GOBACK" if name == "GOBACK" and not first else "NOTHING")

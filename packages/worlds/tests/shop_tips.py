"""Tips of WebShop's scripted buyers, read back."""

from __future__ import annotations

import re

from trailnotes_worlds.demonstrations.webshop_buyers import NEXT

_PARTS = re.compile(r"(?:, then|,| ?;) (?=(?:search|click) )")
_END = re.compile(r"\.(?= [A-Z]|$)| \. ")


def parse_tip_actions(text: str) -> tuple[str, ...]:
    """Parse the actions of a tip, in order, as the shop takes them; () if it names none."""
    begin = re.search(r"(?:^|(?<=: ))(?:search|click) ", text)
    if begin is None:
        return ()
    sentence = _END.split(text[begin.start() :], maxsplit=1)[0]
    words = (part.strip().partition(" ") for part in _PARTS.split(sentence))
    actions = (f"{verb}[{what.strip()}]" for verb, _, what in words if what.strip())
    return tuple(NEXT if action == "click[next]" else action for action in actions)


def unspace_brackets(action: str) -> str:
    match = re.fullmatch(r"(search|click)\[(.+)\]", action, re.DOTALL)
    return f"{match[1]}[{match[2].strip()}]" if match else action

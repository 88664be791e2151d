"""Scripted readers of WikiHow: they know the instruction and the screen, and speak the app's actions."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from trailnotes_worlds.wikihow.articles import ABOUT
from trailnotes_worlds.wikihow.goals import extract_keywords
from trailnotes_worlds.wikihow.pages import REFERENCES_TAP, SEARCH_TAP

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from trailnotes.types import Observation
    from trailnotes.warmstart.demonstrations.episodes import Script
    from trailnotes_worlds.wikihow.env import WikiHowEnv
    from trailnotes_worlds.wikihow.views import View

_NAMED: Final = re.compile(
    r'article "How to (?P<article>.*)"|author page of (?P<author>.*)\.$|category (?P<category>.*)$'
)
_SEARCHED: Final = re.compile(r"how to (.+?)\.?\s*$", re.MULTILINE)
_ACTION: Final = re.compile(r"(\w+)\((.+)\)", re.DOTALL)


def space_arguments(action: str) -> str:
    """An action as it is said: with blanks within, so that its words are the same tokens as on a screen."""
    match = _ACTION.fullmatch(action)
    return f"{match[1]}( {match[2].replace(', ', ' , ', 1)} )" if match else action


class Reader:
    """Does what the newest instruction says, by what the screen shows."""

    def __init__(self, env: WikiHowEnv, rng: random.Random) -> None:
        self.env, self.rng = env, rng

    def straight(self, first: Observation) -> Script:
        """To the end without a detour."""
        self.title = self._parse_title(first)
        observation = first
        while True:
            observation = yield self.choose_action(observation)

    def hasty(self, first: Observation) -> Script:
        """Now and then anything that can be done, and gives up before the end or at it."""
        return self.start_hastily(first, self.rng.randint(2, 4))

    def start_hastily(self, first: Observation, num: int) -> Script:
        """The first `num` actions, now and then anything that can be done."""
        self.title = self._parse_title(first)
        observation = first
        for _ in range(num):
            offers = observation.actions or ()
            observation = (
                yield self.rng.choice(offers) if offers and self.rng.random() < 0.4 else self.choose_action(observation)
            )

    def choose_action(self, observation: Observation) -> str:
        """The action that the instruction asks for here."""
        wanted = observation.info.get("instruction", "")
        if not wanted:
            place = self._find_element(lambda view: view.target == SEARCH_TAP)
            return f"INPUT({place}, {self._choose_query()})"
        place = self._find_element(partial(_is_named, wanted))
        if place is not None:
            return f"CLICK({place})"
        return "SCROLL(DOWN)" if self.env.app.can_scroll(self.env.app_state, "DOWN") else "GOBACK"

    def _find_element(self, fits: Callable[[View], bool]) -> int | None:
        listed = self.env.app.leaves(self.env.app_state)
        return next((place for place, leaf in enumerate(listed) if fits(leaf.view)), None)

    def _parse_title(self, first: Observation) -> str:
        found = _SEARCHED.search(first.instruction or "")
        return found[1] if found else ""

    def _choose_query(self) -> str:
        """What is searched: the title, or the words of it that matter."""
        return self.title if self.rng.random() < 0.7 else " ".join(extract_keywords(self.title))


def _is_named(wanted: str, view: View) -> bool:
    """Whether a view is what an instruction names, or leads there."""
    if "about page" in wanted or "reference list" in wanted:
        return view.target == (ABOUT if "about page" in wanted else REFERENCES_TAP)
    named = _NAMED.search(wanted)
    if named is None or not view.target:
        return False
    name, text = str(named[named.lastgroup or 0]).lower(), view.text.lower()
    return text in (name, f"how to {name}")

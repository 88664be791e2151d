"""Scripted ScienceWorld episodes in the full wording: tips in English, and the actions read back out of one.

A tip lists what was done in order, word by word so that it can be done again, and says what that led to. Its wording is
drawn, so that a reader learns to read words and not one format.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

from trailnotes.warmstart.demonstrations.episodes import get_actions
from trailnotes_worlds.demonstrations.scienceworld import ScienceWorldDemonstrator

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from trailnotes.types import Trajectory

Ending = Literal["solved", "failed", "unfinished"]

# What stands before the list, with the only colon before it.
OPENINGS: Final[dict[Ending, tuple[str, ...]]] = {
    "solved": (
        "This solved it: ",
        "Do this in order: ",
        "The way to the full score: ",
        "What worked, step by step: ",
        "I completed it like this: ",
        "It can be done in {num} steps: ",
    ),
    "failed": (
        "This failed: ",
        "Do not repeat this: ",
        "A wrong way: ",
        "What I did before it failed: ",
        "My {num} steps, the last of them wrong: ",
    ),
    "unfinished": (
        "What I did, in order: ",
        "I tried this: ",
        "This was not enough: ",
        "My {num} steps: ",
        "I got part of the way like this: ",
    ),
}
# What stands after it: {last} is the last action.
ENDINGS: Final[dict[Ending, tuple[str, ...]]] = {
    "solved": (
        "That completed everything.",
        "It ended with the full score of {score}.",
        "Score {score}, so do the same again.",
        "Nothing else was needed.",
    ),
    "failed": (
        "With '{last}' the attempt failed, score {score}.",
        "The last step was a mistake and ended it at {score}.",
        "It ended at once with {score}, so do not {last} again.",
        "Try something else in place of '{last}', which cost everything ({score}).",
    ),
    "unfinished": (
        "It ended with {score} of 100, so something is missing.",
        "That gave a score of {score} and did not complete it.",
        "Only {score} points, the rest is still to be found out.",
        "After '{last}' the score was {score}, not yet 100.",
    ),
}
# How two actions are parted, and the last two.
LISTS: Final = ((", then ", ", then "), (", ", ", and then "), (", ", " and finally "), ("; ", "; "), (" / ", " / "))
_PARTS: Final = re.compile(r", and then |, then | and finally |', '|, |; | / | ?\(\d+\) ")
_END: Final = re.compile(r"\.(?: |$)")


class EnglishScienceWorld(ScienceWorldDemonstrator):
    """The same episodes with tips in English."""

    def write_note(self, trajectory: Trajectory, score: float) -> str:
        """What is written about an episode that ended with `score`."""
        return format_attempt_tip(get_actions(trajectory), score, self.rng)


def format_attempt_tip(actions: Sequence[str], score: float, rng: random.Random) -> str:
    """A tip about `actions` that ended with `score` (of 100; below 0 is failed for good)."""
    ending: Ending = "solved" if score >= 100 else "failed" if score < 0 else "unfinished"
    opening = rng.choice(OPENINGS[ending]).format(num=len(actions))
    closing = rng.choice(ENDINGS[ending]).format(score=f"{score:g}", last=actions[-1])
    return f"{opening}{_format_actions(actions, rng)}. {closing}"


def parse_listed_actions(text: str) -> tuple[str, ...]:
    """The actions that a tip lists between its first colon and the end of that sentence, or () if there is no list."""
    _, colon, rest = text.partition(": ")
    listed = _END.split(rest, maxsplit=1)[0] if colon else ""
    return tuple(action for part in _PARTS.split(listed) if (action := part.strip(" '")))


def _format_actions(actions: Sequence[str], rng: random.Random) -> str:
    """All of `actions`: one after the other, numbered, or quoted."""
    way = rng.randrange(len(LISTS) + 2)
    if way == len(LISTS):
        return " ".join(f"({number}) {action}" for number, action in enumerate(actions, 1))
    if way > len(LISTS):
        return ", ".join(f"'{action}'" for action in actions)
    between, last = LISTS[way]
    *first, end = actions
    return f"{between.join(first)}{last}{end}" if first else end

"""Scripted ScienceWorld episodes with tips in English, and a parser of the actions in such a tip.

A tip lists the actions in order, word by word so that they can be repeated, and names their outcome. The wording is
drawn at random, so that the model learns to read words and not one format.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trailnotes.types import Trajectory
from trailnotes.warmstart.demonstrations.episodes import get_actions
from trailnotes_worlds.demonstrations.scienceworld import ScienceWorldDemonstrator

# How a tip begins and ends: ending -> "openings" and "endings".
_PHRASES: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# Separators of actions, and of the last two.
LISTS: Final = ((", then ", ", then "), (", ", ", and then "), (", ", " and finally "), ("; ", "; "), (" / ", " / "))
_PARTS: Final = re.compile(r", and then |, then | and finally |', '|, |; | / | ?\(\d+\) ")
_END: Final = re.compile(r"\.(?: |$)")


class EnglishScienceWorld(ScienceWorldDemonstrator):
    """Demonstrator of the same episodes with tips in English."""

    def write_note(self, trajectory: Trajectory, score: float) -> str:
        return format_attempt_tip(get_actions(trajectory), score, self.rng)


def format_attempt_tip(actions: Sequence[str], score: float, rng: random.Random) -> str:
    """Write a tip about `actions` that ended with `score` (of 100; below 0 is a failure for good)."""
    phrases = _PHRASES["solved" if score >= 100 else "failed" if score < 0 else "unfinished"]
    opening = rng.choice(phrases["openings"]).format(num=len(actions))
    closing = rng.choice(phrases["endings"]).format(score=f"{score:g}", last=actions[-1])
    return f"{opening}{_format_actions(actions, rng)}. {closing}"


def parse_listed_actions(text: str) -> tuple[str, ...]:
    """Parse the actions that a tip lists between its first colon and the end of that sentence; () without a list."""
    _, colon, rest = text.partition(": ")
    listed = _END.split(rest, maxsplit=1)[0] if colon else ""
    return tuple(action for part in _PARTS.split(listed) if (action := part.strip(" '")))


def _format_actions(actions: Sequence[str], rng: random.Random) -> str:
    way = rng.randrange(len(LISTS) + 2)
    if way == len(LISTS):
        return " ".join(f"({number}) {action}" for number, action in enumerate(actions, 1))
    if way > len(LISTS):
        return ", ".join(f"'{action}'" for action in actions)
    between, last = LISTS[way]
    *first, end = actions
    return f"{between.join(first)}{last}{end}" if first else end

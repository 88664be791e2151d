"""Tips about Waymarks in English, in several wordings each, and the parser of their rules.

Each names the family: a tip may turn up where another family is played. Drawn wordings teach a reader words and not one
format.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from trailnotes.envs.waymarks import spec as ws

# By kind of tip ("read" in the archive, "won" or "failed" by playing) and of game.
TEMPLATES: Final[dict[str, dict[ws.Kind, list[str]]]] = tomllib.loads(
    files("trailnotes.warmstart.demonstrations").joinpath("waymarks_words.toml").read_text(encoding="utf-8")
)
PAIR_TEMPLATES: Final = ("{box} with {gem}", "{gem} for the {box}", "{gem} in the {box}", "{box} {gem}")

_THINGS: Final = re.compile(rf"\b({'|'.join((*ws.BOXES, *ws.GEMS))})\b")
_MOVE: Final = f"(?:{'|'.join(ws.DIRECTIONS)})"
_MOVES: Final = re.compile(rf"\b{_MOVE}\b(?:(?:,|\s|and\b|then\b)+{_MOVE}\b)*")


def format_rule_tip(kind: ws.Kind, family: str, rule: ws.Rule, rng: random.Random, *, won: bool) -> str:
    """Format a tip that tells a whole rule, as it was read in the archive or played to the end."""
    return _format_sentence(TEMPLATES["won" if won else "read"][kind], rng, family=family, way=_format_rule(rule, rng))


def format_failure_tip(spec: ws.GameSpec, tried: ws.Rule, rng: random.Random) -> str:
    """Format a tip about a guess that failed.

    `tried` has the moves up to the dead end, or the gem for each box.
    """
    return _format_sentence(
        TEMPLATES["failed"][spec.kind], rng, family=spec.family, way=_format_rule(tried, rng),
        fit=_describe_opened_boxes(spec, tried),
    )  # fmt: skip


def parse_rule(kind: ws.Kind, text: str) -> ws.Rule:
    """Parse the directions, or the gems by box, that a tip names in one piece; () where it names none.

    It also parses wordings from outside this file: any list of directions, or of boxes beside gems.
    """
    if kind == "route":
        longest: list[str] = max((re.findall(_MOVE, run) for run in _MOVES.findall(text.lower())), key=len, default=[])
        return tuple(longest)
    things = _THINGS.findall(text.lower())
    gems: dict[str, str] = {}
    while len(things) > 1:
        box, gem = sorted(things[:2], key=ws.GEMS.__contains__)
        if box in ws.BOXES and gem in ws.GEMS:
            gems.setdefault(box, gem)
            things = things[1:]
        things = things[1:]
    return tuple(gems[box] for box in ws.BOXES if box in gems)


def _format_sentence(wordings: Sequence[str], rng: random.Random, **words: str) -> str:
    text = rng.choice(wordings).format(**words)
    return text[0].upper() + text[1:]


def _format_rule(rule: ws.Rule, rng: random.Random) -> str:
    words = [*rule]
    if rule[0] in ws.GEMS:
        pair = rng.choice(PAIR_TEMPLATES)
        words = [pair.format(box=box, gem=gem) for box, gem in zip(ws.BOXES, rule, strict=False)]
    return _join_words(words, rng.choice((", ", " then ", " and ", ", then ")))


def _join_words(words: Sequence[str], last: str) -> str:
    """Join words by commas and `last` before the last one, or by " then " everywhere."""
    if last == " then ":
        return last.join(words)
    return last.join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _describe_opened_boxes(spec: ws.GameSpec, tried: ws.Rule) -> str:
    opened = [f"the {box}" for box, gem, key in zip(spec.boxes, tried, spec.rule, strict=False) if gem == key]
    return f"only {_join_words(opened, ' and ')} opened" if opened else "nothing opened"

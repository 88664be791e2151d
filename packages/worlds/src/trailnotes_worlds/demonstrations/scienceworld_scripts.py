"""Which actions the scripted ScienceWorld episodes take: gold paths made shorter, and random wanderings.

A script is a generator that is sent the newest observation and yields the next action.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trailnotes.types import Observation
    from trailnotes.warmstart.demonstrations.episodes import Script

ROOMS = (
    "kitchen", "bathroom", "living room", "bedroom", "workshop", "art studio", "hallway", "greenhouse", "outside",
    "foundry",
)  # fmt: skip
IGNORED_THINGS = {"agent", "air", "ground"}
_GO = re.compile(r"(?:go to|teleport to) (.+)")
_MOVING = re.compile(r"(?:open door to|go to|teleport to|look around)\b")
_ARTICLE = re.compile(r"^(?:an?|the|some) +")
_REST = re.compile(r", | \(|\. |\.$|\)")
_BOX = re.compile(r"\w+ box\b")
_NAMED_THING = re.compile(r"ocus on the ((?!thing|animal)[\w -]+)\.")
_ELECTRIC = re.compile(r"wire|battery|generator|solar panel|turbine")


def shorten_path(path: Sequence[str]) -> Iterator[list[str]]:
    """Ways to shorten a gold path that may or may not still work, the shortest first; the path itself comes last."""
    short = _replace_walks(path)
    renamed = [_normalize_names(action) for action in short]
    yield [action for action in renamed if not action.startswith("wait")]
    yield renamed
    yield short
    yield list(path)


def _replace_walks(path: Sequence[str]) -> list[str]:
    """Every walk through rooms becomes one teleportation; a look comes after the first, or before the first deed."""
    short: list[str] = []
    room = ""
    for action in path:
        if going := _GO.match(action):
            room = going[1]
        elif not _MOVING.match(action):
            if room:
                short.append(f"teleport to {room}")
            if "look around" not in short:
                short.append("look around")
            short.append(action)
            room = ""
    return short


def _normalize_names(action: str) -> str:
    """Names as a listing has them: the paths repeat a word ("baby baby mouse") and add where a thing is."""
    words = re.sub(r"\b(\w+) \1\b", r"\1", action)
    words = re.sub(r"\begg (\w+ egg)\b", r"\1", words)
    return words.removesuffix(" in inventory").replace(" in inventory to ", " to ")


def parse_things(listing: str) -> list[str]:
    """Names of what a look shows, what lies on and in other things too; doors and surroundings are left out."""
    inside = listing.partition("You also see:")[0].partition("\n")[2]
    found: list[str] = []
    for line in inside.splitlines():
        head, _, content = line.strip().partition(": ")
        for item in (head, *content.rstrip(". )").split(", ")):
            name = _REST.split(_ARTICLE.sub("", item.strip()).removeprefix("substance called "))[0]
            if name and name not in IGNORED_THINGS | {"nothing"} and not name.startswith(("which", "currently", "On ")):
                found.append(_ARTICLE.sub("", name))
    return list(dict.fromkeys(found))


def wander(rng: random.Random, first: Observation) -> Script:
    """Without a plan: a place, a look, and actions of the right form on things seen, each drawn at random."""
    task = first.instruction or ""
    named = [room for room in ROOMS if room in task]
    room = rng.choice(named) if named and rng.random() < 0.5 else rng.choice(ROOMS)
    yield f"teleport to {room}"
    seen = parse_things((yield "look around").text) or ["agent"]
    if "paint" in task:
        yield from _mix_randomly(seen, rng)
    named_thing = _NAMED_THING.search(task)
    thing = named_thing[1] if named_thing and rng.random() < 0.7 else rng.choice(seen)
    yield f"focus on {thing}"
    if "circuit" in task or "conductive" in task:
        yield from _connect_randomly(thing, seen, rng)
    if boxes := sorted(set(_BOX.findall(task))):
        if named and rng.random() < 0.5:
            yield f"pick up {thing}"
            yield f"teleport to {named[-1]}"
        yield f"move {thing} to {rng.choice(boxes)}"


def _connect_randomly(thing: str, seen: Sequence[str], rng: random.Random) -> Script:
    """Some connections between ends of wires, sources and `thing`, drawn at random."""
    parts = [name for name in seen if _ELECTRIC.search(name)] or list(seen)
    for _ in range(rng.randint(2, 5)):
        first, second = _name_terminal(rng.choice(parts), rng), _name_terminal(rng.choice([thing, *parts]), rng)
        yield f"connect {first} to {second}"


def _name_terminal(part: str, rng: random.Random) -> str:
    if "wire" in part:
        return f"{part} terminal {rng.choice((1, 2))}"
    pole = rng.choice(("anode", "cathode"))
    return f"{part} {pole}" if _ELECTRIC.search(part) else f"{pole} in {part}"


def _mix_randomly(seen: Sequence[str], rng: random.Random) -> Script:
    """Some pouring from and into things drawn at random."""
    for _ in range(rng.randint(1, 2)):
        yield f"pour {rng.choice(seen)} in {rng.choice(seen)}"
    yield f"mix {rng.choice(seen)}"

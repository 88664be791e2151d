"""Briefing at the start of a ScienceWorld episode: objects to focus on, and worked examples. Pure.

Examples come from the simulator's own solutions of training variations, never of validation or test variations.
`prompts` words the facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from trailnotes.errors import ConfigError
from trailnotes_worlds.scienceworld.tasks import get_simulator_split, validate_variation

Turns = Sequence[tuple[str, str]]  # observation, next action

MAX_TURNS = 10  # of an example, which is the beginning and the end of a longer solution
MAX_CHARS = 80  # of an observation in an example

_FOCUS = re.compile(r"\bfocus on (.+)", re.IGNORECASE | re.DOTALL)
_ORDINALS = ("first", "then", "next", "")
_REFERENTS = {  # words of the focus sentence -> their definition in the task text
    "the thing": re.compile(r"\bfind a\(n\) (.+?)\."),
    "the substance": re.compile(r"\bto (?:boil|melt|freeze|change the state of matter of) (.+?)\."),
}


def parse_focus_objects(task_text: str) -> tuple[str, ...]:
    """Parse the objects to focus on from a task text, in its order and words; () without any.

    "The thing" and "the substance" get their definitions in brackets, and each object the condition at the start of its
    sentence. The text may be wrong: for green-blue paint it asks for a focus on the green paint, where the simulator's
    own solution focuses on the green-blue. The parser does not correct it.

    Example: ``("the thermometer", "the tin", "the red box (if the melting point ... is above ...)")``.
    """
    objects = []
    for sentence in re.split(r"(?<=\.)\s+", " ".join(task_text.split())):
        focus = _FOCUS.search(sentence)
        if not focus:
            continue
        name = focus[1].rstrip(". ")
        if (meaning := _REFERENTS.get(name)) and (referent := meaning.search(task_text)):
            name += f" ({referent[1]})"
        lead = sentence[: focus.start()].strip(" ,")
        is_plain = lead.lower() in _ORDINALS or lead.lower().startswith("your task")
        objects.append(name if is_plain else f"{name} ({lead[0].lower()}{lead[1:]})")
    return tuple(objects)


def pick_example_variations(task: str, variation: int, num: int) -> list[int]:
    """Pick the first training variations except `variation`: the paper's protocol trains on the first ones."""
    validate_variation(task, variation)
    others = [other for other in get_simulator_split(task)["train"] if other != variation]
    if not 0 <= num <= len(others):
        raise ConfigError(
            f"examples = {num} of {task}: there are {len(others)} other training variations; ask for fewer"
        )
    return others[:num]


def build_worked_examples(
    task: str, variation: int, num: int, play: Callable[[int], tuple[str, Turns]]
) -> list[dict[str, Any]]:
    examples = []
    for other in pick_example_variations(task, variation, num):
        text, turns = play(other)
        examples.append({"instruction": text, "turns": shorten_turns(turns)})
    return examples


def shorten_turns(turns: Turns, max_turns: int = MAX_TURNS, max_chars: int = MAX_CHARS) -> list[list[str]]:
    """Cut observations to `max_chars`, and leave out turns in the middle beyond `max_turns`.

    The observation after a gap names its length.
    """
    missing = len(turns) - max_turns
    head = (max_turns + 1) // 2 if missing > 0 else len(turns)
    result = [[_truncate(seen, max_chars), done] for seen, done in turns[:head]]
    rest = [[_truncate(seen, max_chars), done] for seen, done in turns[head + max(0, missing) :]]
    if missing > 0 and rest:
        rest[0][0] = f"({missing} turns later) {rest[0][0]}"
    return result + rest


def _truncate(text: str, max_chars: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= max_chars else line[: max_chars - 4].rstrip() + " ..."

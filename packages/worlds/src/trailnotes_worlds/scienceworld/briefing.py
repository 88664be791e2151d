"""What an agent is told when a ScienceWorld episode begins: what to focus on, and worked examples. Pure.

Examples are built from the simulator's own solutions of training variations, never of those to validate or test on.
How facts are worded is the business of `prompts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from trailnotes.errors import ConfigError
from trailnotes_worlds.scienceworld.tasks import get_simulator_split, validate_variation

Turns = Sequence[tuple[str, str]]  # what was seen, what was done then

MAX_TURNS = 10  # of an example; of a longer solution the beginning and the end are shown
MAX_CHARS = 80  # of an observation in an example

_FOCUS = re.compile(r"\bfocus on (.+)", re.IGNORECASE | re.DOTALL)
_ORDINALS = ("first", "then", "next", "")
_REFERENTS = {  # words of the focus sentence -> where the task says what they mean
    "the thing": re.compile(r"\bfind a\(n\) (.+?)\."),
    "the substance": re.compile(r"\bto (?:boil|melt|freeze|change the state of matter of) (.+?)\."),
}


def parse_focus_objects(task_text: str) -> tuple[str, ...]:
    """What a task says must be focused on, in its order and words; () if it asks for no focus.

    "The thing" and "the substance" are followed by what they stand for, and everything by the condition that its
    sentence begins with. A task text may be wrong: for green-blue paint it finally asks for a focus on the green
    paint, where the simulator's own solution focuses on the green-blue. Nothing is corrected here.

    Example: ``("the thermometer", "the tin", "the red box (if the melting point ... is above ...)")``.
    """
    objects = []
    for sentence in re.split(r"(?<=\.)\s+", " ".join(task_text.split())):
        found = _FOCUS.search(sentence)
        if not found:
            continue
        name = found[1].rstrip(". ")
        if (meaning := _REFERENTS.get(name)) and (said := meaning.search(task_text)):
            name += f" ({said[1]})"
        lead = sentence[: found.start()].strip(" ,")
        when = (
            ""
            if lead.lower() in _ORDINALS or lead.lower().startswith("your task")
            else f" ({lead[0].lower()}{lead[1:]})"
        )
        objects.append(name + when)
    return tuple(objects)


def pick_example_variations(task: str, variation: int, num: int) -> list[int]:
    """Variations to show in episodes of `variation`: the first of the training split, never itself.

    The first, because those are the ones that the paper's protocol trains on.

    Raises:
        ConfigError: there are not that many.
    """
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
    """The examples of a briefing.

    Args:
        task: name of the task.
        variation: the one about to be played; it is left out.
        num: how many.
        play: solves a variation: its task text, and what was seen and done, turn by turn.

    Raises:
        ConfigError: the task has too few training variations.
    """
    examples = []
    for other in pick_example_variations(task, variation, num):
        text, turns = play(other)
        examples.append({"instruction": text, "turns": shorten_turns(turns)})
    return examples


def shorten_turns(turns: Turns, max_turns: int = MAX_TURNS, max_chars: int = MAX_CHARS) -> list[list[str]]:
    """Turns with observations cut to `max_chars`, and without those in the middle that are more than `max_turns`.

    Where some are missing, the next observation says so.
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

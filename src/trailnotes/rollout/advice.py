"""REMEMBERER in words: examples with advice, and reading an answer that is advice itself (arXiv 2306.07929, section 3).

The method is one of trailnotes-lab; the words are here, since demonstrations teach them to initial models.

Every step is a prompt of its own: rules, examples, the present input. The answer is a block of encouraged actions with
the value that the policy expects of each; the one that it values most is taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from trailnotes.rollout.conversation import parse_action, quoted
from trailnotes.types import Message, strip_thinking

Style = Literal["full", "terse"]
NUM_LAST_ACTIONS: Final = 5  # in a prompt (Rememberer release 552cb62)
MAX_ADVICE_TOKENS: Final = 100  # of an answer, by default (Rememberer release 552cb62)

_RULES: Final = (
    "You act in a text environment to complete a task. You are shown examples of situations with advice: actions that "
    "were worth taking there, and actions that were not, each with its value; near the best score is good, 0 or less "
    "is bad. For the last situation, write the encouraged actions only, one a line, as: ACTION -> VALUE. Take what the "
    "examples encourage where the situation is the same, avoid what they discourage, do not repeat what has failed, "
    "and do not invent objects."
)
WORDS: Final = {
    "full": {
        "example": "Example {} (quoted):", "task": "Task: {}", "did": "Last actions: {}", "nothing": "none",
        "earned": "Reward: {:.1f} for the last action, {:.1f} in all", "saw": "Observation: {}",
        "actions": "Admissible actions: {}", "do": "Encouraged:", "not": "Discouraged:",
        "now": "The present situation:", "separator": "; ",
    },
    "terse": {
        "example": "example {} :", "task": "{}", "did": "did : {}", "nothing": "nothing", "earned": "", "saw": "{}",
        "actions": "actions : {}", "do": "do :", "not": "not :", "now": "", "separator": " , ",
    },
}  # fmt: skip
_LINE: Final = re.compile(
    r"^\s*(?:[-*]\s*)?(?P<action>.+?)\s*->\s*(?P<value>[-+]?\s*\d+(?:\s*\.\s*\d+)?)(?P<reason>.*)$"
)
_STOP: Final = re.compile(r"^\s*(?:discouraged|not)\s*:", re.IGNORECASE)
_OPENING: Final = re.compile(r"^\s*(?:encouraged|do)\s*:\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Situation:
    """The common fields of an example and the present input; texts as in the prompt, already cut to their caps."""

    task: str
    observation: str
    history: tuple[str, ...] = ()  # the last actions, oldest first
    actions: str = ""  # admissible ones; "" in an example
    last_reward: float = 0.0  # rewards are in the full style only, as the release has them in WikiHow
    total_reward: float = 0.0
    facts: tuple[str, ...] = ()  # of the environment's briefing, in words; () in an example


@dataclass(frozen=True, slots=True)
class ValuedAction:
    """An action with its value: an estimate of the return, in the unit of the environment's rewards."""

    action: str
    value: float


@dataclass(frozen=True, slots=True)
class Example:
    """A remembered situation with its advice."""

    situation: Situation
    encouraged: tuple[ValuedAction, ...]
    discouraged: tuple[ValuedAction, ...]


def build_advice_messages(present: Situation, examples: Sequence[Example], style: Style) -> list[Message]:
    """Build the prompt of one step; the most similar example comes last, nearest to the question."""
    words = WORDS[style]
    lines = []
    for number, example in enumerate(examples, 1):
        lines += [words["example"].format(number), *_format_situation(example.situation, style, quote=True)]
        for header, valued in ((words["do"], example.encouraged), (words["not"], example.discouraged)):
            if valued or style == "terse":
                lines += [header, *(f"{quoted(item.action)} -> {item.value:.1f}" for item in valued)]
        if style == "full":
            lines.append("")
    if style == "full":
        lines.append(words["now"])
    lines += [*_format_situation(present, style, quote=False), words["do"]]
    system = [Message("system", _RULES)] if style == "full" else []
    return [*system, Message("user", "\n".join(lines))]


def format_advice(valued: Sequence[ValuedAction]) -> str:
    """Format an ideal answer for `parse_advice`; actions verbatim, not quoted."""
    return "\n".join(f"{item.action} -> {item.value:.1f}" for item in valued)


def parse_advice(text: str) -> list[ValuedAction]:
    """Parse the encouraged actions of an answer, in its order; [] if it is unreadable. Never raises.

    A line is ``ACTION -> VALUE reason``; thinking, and all from "Discouraged:" on, is skipped. The reason is no part of
    the action.
    """
    advice = []
    for line in strip_thinking(text).splitlines():
        if _STOP.match(line):
            break
        match = _LINE.match(_OPENING.sub("", line))
        if match and (action := parse_action(match["action"].strip(" \"'"), "line", "terse")):
            advice.append(ValuedAction(action, float("".join(match["value"].split()))))
    return advice


def _format_situation(situation: Situation, style: Style, *, quote: bool) -> list[str]:
    words = WORDS[style]
    as_text = quoted if quote else str
    did = words["separator"].join(situation.history) or words["nothing"]
    lines = [words["task"].format(as_text(situation.task)), *situation.facts, words["did"].format(as_text(did))]
    if words["earned"]:
        lines.append(words["earned"].format(situation.last_reward, situation.total_reward))
    lines.append(words["saw"].format(as_text(situation.observation)))
    if situation.actions:
        lines.append(words["actions"].format(as_text(situation.actions)))
    return lines

"""Words for Gymnasium's numbers and colours: actions, drawings, values."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from trailnotes.errors import ConfigError

_COLOUR_NAMES: Final = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOURED_TEXT: Final = re.compile(r"\x1b\[([0-9;]*)m(.*?)\x1b\[0?m", re.DOTALL)
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class ToyText:
    """Toy text of Gymnasium: names of its actions, its goal in words, and the last reward of a success."""

    actions: tuple[str, ...]
    instruction: str
    success_reward: float


TOY_TEXTS: Final = {
    name: ToyText(tuple(toy.pop("actions")), **toy)
    for name, toy in tomllib.loads(Path(__file__).with_name("toy_texts.toml").read_text(encoding="utf-8")).items()
}


def find_toy_text(env_id: str) -> ToyText | None:
    name = env_id.rpartition(":")[2].rpartition("/")[2].partition("-v")[0]
    return TOY_TEXTS.get(name.removesuffix("8x8").removesuffix("Slippery"))


def resolve_action_names(
    space: Any, unwrapped: Any, given: Sequence[str] | None, toy: ToyText | None
) -> tuple[str, ...]:
    """Name each action of a discrete space, in its order.

    The names are those given, those of a toy text, those of the environment (`get_action_meanings`, as in Atari, or an
    enumeration `actions`, as in MiniGrid), or the numbers themselves, the first that there are.
    """
    number, start = int(space.n), int(space.start)
    names: Iterable[Any]
    if given is not None:
        names = given
    elif toy:
        names = toy.actions
    elif callable(meanings := getattr(unwrapped, "get_action_meanings", None)):
        names = meanings()
    elif members := getattr(getattr(unwrapped, "actions", None), "__members__", None):
        names = members
    else:
        names = (str(start + index) for index in range(number))
    words = tuple(normalize_action_name(str(name)) for name in names)
    if len(words) != number or len(set(words)) != number or not all(words):
        raise ConfigError(
            f"env.options.action_names: {number} actions need {number} different names, not {', '.join(words)[:200]}"
        )
    return words


def normalize_action_name(action: str) -> str:
    return " ".join(action.lower().split())


@lru_cache(maxsize=1024)  # a game has few drawings, and each is drawn often
def render_plain(drawing: str) -> str:
    """Remove control characters from a drawing, and write colours as ``[red:S]``.

    In Gymnasium's toy texts only a colour marks the place of the player.
    """
    return _CONTROL.sub("", _COLOURED_TEXT.sub(_label_colour, drawing.replace("\r\n", "\n"))).strip("\n")


def _label_colour(match: re.Match[str]) -> str:
    for code in match[1].split(";"):
        if len(code) == 2 and code[0] in "349" and code[1] in "01234567":
            return f"[{_COLOUR_NAMES[int(code[1])]}:{match[2]}]"
    return match[2]


def format_value(value: Any) -> str:
    """Format an observation as JSON. Raises `TypeError` unless it is a number, text, sequence or mapping."""
    return _JSON_ENCODER.encode(value)


def _convert_numpy(part: Any) -> Any:
    if not hasattr(part, "tolist"):
        raise TypeError(f"{type(part).__name__} is not JSON")
    return part.tolist()


_JSON_ENCODER: Final = json.JSONEncoder(default=_convert_numpy)  # json.dumps would make one for each observation

"""The protocol of an environment, errors of its code, and how actions are read."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from trailnotes.errors import ConfigError, EnvError, MissingExtraError
from trailnotes.types import Observation, Task

_WILL: Final = (
    r"will|shall|should|must|can|could|may|might|would like to|would|want to|need to|have to|am (?:now )?going to|"
    r"am about to|decide to|choose to|plan to|intend to|try to"
)
_INTENT: Final = rf"(?:I|[Ww]e)(?:\s+(?:{_WILL})|['\u2019](?:ll|d like to|d|m (?:now )?going to))?"
_OPENING: Final = re.compile(
    r"^(?:(?i:ok|okay|alright|all right|sure|well|now|next|first|finally|so|then|therefore)\b\s*(?:[,:!.]\s*)?)*"
    r"(?:I (?:think|believe|guess)(?: that)?\s+(?=I|we))?"
    rf"(?:{_INTENT}|[Ll]et (?:me|us)|[Ll]et['\u2019]s|(?:[Mm]y|[Tt]he)(?: next| best)? (?:action|move|step) is to)\s+"
    r"(?:(?:now|then|next|first|just|try to)\s+)*(?=[^\W\d_])"
)
# "to" belongs to the way here, and "go" is not said: "I am going to the kitchen".
_PROGRESSIVE: Final = re.compile(
    r"\b(I|[Ww]e)(?: am| are|['\u2019]m|['\u2019]re) (?:now )?going (?=to (?:the|a|an|my)\b)"
)

MAX_TRACEBACK: Final = 10_000  # characters
_MAX_ACTION: Final = 500  # characters that are looked at, of an action that is one of few
_STRIPPED_CHARS: Final = " \t\r\n.,;:!\"'`"  # decoration around an action


@runtime_checkable
class Env(Protocol):
    """A text environment. Synchronous, single-threaded, one episode at a time; it may be reset any number of times.

    A class that a user registers is constructed with the options of the config's ``[env.options]`` as keyword
    arguments. Besides these methods it has a static or class method ``tasks(split, **options) -> list[Task]``: the
    same list in every process, forever. It may have a static or class method ``identity(**options)``: what results must
    have in common to be comparable, as a mapping of JSON values. It may have an attribute ``memory_bytes``: memory of
    the host that an instance takes, for estimates.
    """

    def reset(self, task: Task) -> Observation:
        """Start `task`; the observation has the `instruction`. The same task gives the same text."""

    def step(self, action: str) -> Observation:
        """Take one action, any string; after the end it raises `EnvError`."""

    def close(self) -> None: ...


@contextmanager
def wrap_env_errors(what: str) -> Iterator[None]:
    """Turn errors of environment code into `EnvError`, so that one episode is lost, not the run.

    Deliberate errors (`ConfigError`, `MissingExtraError`) pass as they are.
    """
    try:
        yield
    except (ConfigError, MissingExtraError, EnvError):
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)[2:] or traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith((sys.base_prefix, sys.prefix, "<"))]
        failure = EnvError(f"{what} raised {format_error(error)} ({format_location(*(own or frames)[-1][:2])})")
        failure.traceback = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])[
            :MAX_TRACEBACK
        ]
        raise failure from error


def format_location(file: str, line: int | None) -> str:
    return f"{Path(file).name}:{line}"


def format_error(error: BaseException) -> str:
    """Format type and text of an error on one line of bounded length."""
    text = sanitize_text(str(error), 500)
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def sanitize_text(text: str, most: int) -> str:
    """Make untrusted text fit for an error: on one line, cut, with "?" for what a terminal would obey."""
    words = " ".join(text.split())[:most]
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def strip_intent(action: str) -> str:
    """Strip the intent in "I will COMMAND", "Let me COMMAND" or "Okay, I'll now COMMAND".

    For games whose commands are imperatives. A small "i" stays: to parsers it is short for inventory.
    """
    return _OPENING.sub("", _PROGRESSIVE.sub(r"\1 will go ", action))


def normalize_command(action: str) -> str:
    """Normalize an action: no intent, single blanks, nothing around the command."""
    return " ".join(strip_intent(action[:_MAX_ACTION].strip()).split()).strip(_STRIPPED_CHARS)


def match_offered(action: str, offered: Sequence[str]) -> str:
    """Match `action` to one of `offered` up to case and intent; else return its normalized form."""
    if action in offered:
        return action
    words = normalize_command(action)
    said = words.casefold()
    return next((other for other in offered if other.casefold() == said), words)

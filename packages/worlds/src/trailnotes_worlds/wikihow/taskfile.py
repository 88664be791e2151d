"""A task of Mobile-Env, as its file says it: what is looked for on the phone, and what that means for the agent.

Source: ``task.proto`` of X-LANCE/Mobile-Env (commit 976145e). How the phone is set up is read over: there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from trailnotes.errors import ConfigError
from trailnotes_worlds.wikihow.matching import Matcher, Transformation
from trailnotes_worlds.wikihow.selectors import Selector
from trailnotes_worlds.wikihow.textproto import MAX_DEPTH, MAX_SIZE, Message, Name, parse

LISTENERS: Final = ("score", "reward", "episode_end", "extra", "json_extra", "instruction", "null")
Repeats = Literal["NONE", "LAST", "UNLIMITED"]
SlotType = Literal["SINGLE", "AND", "OR"]
Sign = Literal["EQ", "LE", "LT", "GE", "GT", "NE"]

_NUMBERED: Final[Mapping[str, Sequence[str]]] = {  # enumerations by number, as a file may write them, too
    "source.repeatability": ("NONE", "LAST", "UNLIMITED"),
    "slot.repeatability": ("UNLIMITED", "LAST", "NONE"),
    "type": ("SINGLE", "AND", "OR"),
    "mode": ("REGEX", "DIFFLIB", "FUZZ", "SBERT"),
    "sign": ("EQ", "LE", "LT", "GE", "GT", "NE"),
}
_ICONS: Final = ("icon_recognize", "icon_detect", "icon_match", "icon_detect_match")
_MAX_PATTERN: Final = 2_000  # characters of a regular expression
_MAX_REWARD: Final = 1e12  # of an event; more is no reward that anybody means


@dataclass(frozen=True, slots=True)
class LogSource:
    """A line of the log that a pattern is found in."""

    filters: tuple[str, ...]  # TAG:LEVEL, as logcat has them
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Property:
    """What an attribute of a view must be: a pattern that is found in it, or a number that it compares with."""

    name: str
    sign: Sign
    wanted: re.Pattern[str] | float | None  # None: anything


@dataclass(frozen=True, slots=True)
class ViewSource:
    """A view of the screen with certain properties."""

    selector: Selector
    properties: tuple[Property, ...]


@dataclass(frozen=True, slots=True)
class TextSource:
    """A text that can be read in a part of the screen."""

    matcher: Matcher
    region: tuple[float, float, float, float]  # left, top, right, bottom; shares of the screen
    detects: bool  # each text of the region is looked at for itself, else all of them as one


@dataclass(frozen=True, slots=True)
class ResponseSource:
    """Something that the agent says to its user."""

    matcher: Matcher


@dataclass(frozen=True, slots=True)
class IconSource:
    """A picture on the screen. Ours has none, so it is never found."""


@dataclass(frozen=True, slots=True)
class Source:
    """One thing that may be noticed."""

    id: int  # 0: nothing refers to it
    repeats: Repeats  # NONE: the same input counts once; LAST: not twice in succession
    looks_for: LogSource | ViewSource | TextSource | ResponseSource | IconSource


@dataclass(frozen=True, slots=True)
class Slot:
    """A node of the trees that make events of what was noticed."""

    type: SlotType
    id: int
    inputs: tuple[int | Slot, ...]  # ids of sources and of other slots, or slots
    prerequisites: tuple[int, ...]  # ids that must ever have been triggered
    transformation: Transformation
    repeats: Repeats
    waits_for: tuple[int, ...]  # cache_until: it stays set until these are, too; -1: for good


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A task."""

    id: str
    commands: tuple[str, ...]  # what the agent is told
    sources: tuple[Source, ...]
    slots: Mapping[str, Slot]  # by listener; those that the file has


def read_task(path: Path) -> TaskFile:
    """The task of a file.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_SIZE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a task file: {error}") from error
    return task_of(text, path.name)


def task_of(text: str, source: str) -> TaskFile:
    """The task that a text in protobuf's text format is; `source` is its name, for errors.

    Raises:
        ConfigError: it is none, or asks for what is not understood; the text says where.
    """
    read = parse(text, source)
    sources = tuple(_source(each) for each in _messages(read, "event_sources"))
    slots = {}
    for message in _messages(read, "event_slots")[-1:]:
        _only(message, {f"{name}_listener" for name in LISTENERS})
        for name in LISTENERS:
            for each in _messages(message, f"{name}_listener")[-1:]:
                slots[name] = _slot(each, 0)
    task = TaskFile(_text(read, "id"), tuple(_texts(read, "command")), sources, slots)
    if not task.commands:
        raise ConfigError(f"{source} has no command: there is nothing to tell an agent")
    if "episode_end" not in slots:
        raise ConfigError(f"{source} has no episode_end_listener: its task could never be finished")
    _check_ids(task, source)
    return task


def highest_reward(task: TaskFile) -> float:
    """What a task can be worth: the constants of the events that its reward listener hears, each once; 1 at least."""
    values = [value for value in _constants(task, "reward") if isinstance(value, int | float)]
    return max(1.0, float(sum(value for value in values if 0 < value < _MAX_REWARD)))


def instructions_of(task: TaskFile) -> str:
    """All that the agent will be told, a line each, as REMEMBERER words a task."""
    told = [
        text for value in _constants(task, "instruction") for text in (value if isinstance(value, list) else [value])
    ]
    later = [f"Then, {text[:1].lower()}{text[1:]}" for text in told if isinstance(text, str)]
    return "\n".join((*task.commands, *later))


def _constants(task: TaskFile, listener: str) -> list[Any]:
    """What the events that a listener hears are worth, of those that are always worth the same."""
    if listener not in task.slots:
        return []
    by_id = {slot.id: slot for slot in nested(task.slots.values()) if slot.id}
    heard = [each if isinstance(each, Slot) else by_id.get(each) for each in task.slots[listener].inputs]
    values = [slot.transformation.constant for slot in heard if slot is not None and slot.inputs]
    own = task.slots[listener].transformation.constant
    return [value for value in ([own] if own is not None else values) if value is not None]


def _source(message: Message) -> Source:
    kinds = {"text_recognize", "text_detect", *_ICONS, "view_hierarchy_event", "log_event", "response_event"}
    _only(message, {"id", "repeatability", *kinds})
    found = sorted(kinds & set(message.fields))
    if len(found) != 1:
        raise ConfigError(f"{message.where}: an event source is one of {', '.join(sorted(kinds))}")
    inner = _messages(message, found[0])[-1]
    looks_for: LogSource | ViewSource | TextSource | ResponseSource | IconSource
    if found[0] == "log_event":
        _only(inner, {"filters", "pattern"})
        looks_for = LogSource(tuple(_texts(inner, "filters")), _pattern(inner, "pattern"))
    elif found[0] == "view_hierarchy_event":
        looks_for = _view_source(inner)
    elif found[0] == "response_event":
        looks_for = ResponseSource(_matcher(inner, "pattern"))
    elif found[0] in _ICONS:
        looks_for = IconSource()
    else:
        region = [_messages(inner, "rect")[-1] if "rect" in inner.fields else Message(inner.where)] * 4
        left, top, right, bottom = map(_float, region, ("x0", "y0", "x1", "y1"))
        looks_for = TextSource(_matcher(inner, "expect"), (left, top, right, bottom), found[0] == "text_detect")
    repeats = _name(message, "repeatability", _NUMBERED["source.repeatability"])
    return Source(_int(message, "id"), cast("Repeats", repeats), looks_for)


def _view_source(message: Message) -> ViewSource:
    _only(message, {"selector", "properties"})
    texts = _texts(message, "selector")
    if not texts:
        raise ConfigError(f"{message.where}: a view_hierarchy_event needs a selector")
    properties = []
    for each in _messages(message, "properties"):
        _only(each, {"property_name", "sign", "pattern", "integer", "floating"})
        number = next((_float(each, name) for name in ("integer", "floating") if name in each.fields), None)
        wanted = _pattern(each, "pattern") if "pattern" in each.fields else number
        sign = cast("Sign", _name(each, "sign", _NUMBERED["sign"]))
        properties.append(Property(_text(each, "property_name"), sign, wanted))
    return ViewSource(Selector(texts, message.where), tuple(properties))


def _matcher(message: Message, name: str) -> Matcher:
    _only(message, {name, "rect", "mode", "threshold"})
    mode = _name(message, "mode", _NUMBERED["mode"])
    wanted = _pattern(message, name) if mode == "REGEX" else _text(message, name)
    return Matcher(wanted, mode, _float(message, "threshold"), message.where)


def _slot(message: Message, depth: int) -> Slot:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{message.where}: more than {MAX_DEPTH} events within each other")
    _only(message, {"type", "id", "events", "prerequisite", "transformation", "repeatability", "cache_until"})
    inputs: list[int | Slot] = []
    for each in _messages(message, "events"):
        _only(each, {"id", "event"})
        if len(each.fields) != 1:
            raise ConfigError(f"{each.where}: events are an id or an event each")
        inner = _messages(each, "event")
        inputs.append(_slot(inner[-1], depth + 1) if inner else _int(each, "id"))
    return Slot(
        cast("SlotType", _name(message, "type", _NUMBERED["type"])),
        _int(message, "id"),
        tuple(inputs),
        tuple(_ints(message, "prerequisite")),
        Transformation(_texts(message, "transformation"), message.where),
        cast("Repeats", _name(message, "repeatability", _NUMBERED["slot.repeatability"])),
        tuple(_ints(message, "cache_until")),
    )


def nested(slots: Iterable[int | Slot]) -> Iterable[Slot]:
    """All of `slots` and what is within them."""
    for slot in slots:
        if isinstance(slot, Slot):
            yield from nested(slot.inputs)
            yield slot


def _check_ids(task: TaskFile, source: str) -> None:
    """Every id that is referred to is there, and nothing waits for itself."""
    slots = [*nested(task.slots.values())]
    by_id = {slot.id: slot for slot in slots if slot.id}
    known = {each.id for each in task.sources} | set(by_id)
    for slot in slots:
        for wanted in (*(each for each in slot.inputs if isinstance(each, int)), *slot.prerequisites, *slot.waits_for):
            if wanted not in known and wanted != -1:
                raise ConfigError(f"{source}: an event refers to id {wanted}, which nothing has")
    done: set[int] = set()
    for slot in slots:
        _check_loops(slot, by_id, (), done, source)


def _check_loops(slot: Slot, by_id: Mapping[int, Slot], around: tuple[int, ...], done: set[int], source: str) -> None:
    if id(slot) in around or len(around) > 4 * MAX_DEPTH:
        raise ConfigError(f"{source}: event {slot.id} is made of itself, or of too many others in a row")
    if id(slot) in done:
        return
    for each in (*slot.inputs, *slot.prerequisites):
        inner = each if isinstance(each, Slot) else by_id.get(each)
        if inner is not None:
            _check_loops(inner, by_id, (*around, id(slot)), done, source)
    done.add(id(slot))


# -- values of fields; of a field that is to stand once the last one counts, as in protobuf


def _only(message: Message, known: set[str]) -> None:
    for name in message.fields:
        if name not in known:
            raise ConfigError(f"{message.where}: {name!r} is unknown here: use {', '.join(sorted(known))}")


def _messages(message: Message, name: str) -> list[Message]:
    return [_of(Message, each, message, name, "a message in braces") for each in message.fields.get(name, [])]


def _texts(message: Message, name: str) -> list[str]:
    return [_of(str, each, message, name, "a text in quotes") for each in message.fields.get(name, [])]


def _text(message: Message, name: str) -> str:
    return next(reversed(_texts(message, name)), "")


def _float(message: Message, name: str) -> float:
    values = message.fields.get(name, [])
    return float(_of((int, float), values[-1], message, name, "a number")) if values else 0.0


def _ints(message: Message, name: str) -> list[int]:
    return [_of(int, each, message, name, "a whole number") for each in message.fields.get(name, [])]


def _int(message: Message, name: str) -> int:
    return next(reversed(_ints(message, name)), 0)


def _name(message: Message, name: str, known: Sequence[str]) -> str:
    """A value of an enumeration, by name or by number; the first by default."""
    value = next(reversed(message.fields.get(name, [])), Name(known[0]))
    if isinstance(value, int) and 0 <= value < len(known):
        return known[value]
    if isinstance(value, Name) and value in known:
        return str(value)
    raise ConfigError(f"{message.where}: {name} is one of {', '.join(known)}, without quotes")


def _pattern(message: Message, name: str) -> re.Pattern[str]:
    text = _text(message, name)
    if len(text) > _MAX_PATTERN:
        raise ConfigError(f"{message.where}: {name} is longer than {_MAX_PATTERN} characters")
    try:
        return re.compile(text, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{message.where}: {name} {text[:60]!r} is no regular expression: {error}") from error


def _of(kind: Any, value: object, message: Message, name: str, wanted: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, Name):
        raise ConfigError(f"{message.where}: {name} must be {wanted}")
    return value

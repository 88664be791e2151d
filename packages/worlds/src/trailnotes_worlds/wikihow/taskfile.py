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
from trailnotes_worlds.wikihow.textproto import MAX_DEPTH, MAX_SIZE, Identifier, ProtoMessage, parse_textproto

LISTENERS: Final = ("score", "reward", "episode_end", "extra", "json_extra", "instruction", "null")
Repeats = Literal["NONE", "LAST", "UNLIMITED"]
SlotType = Literal["SINGLE", "AND", "OR"]
Sign = Literal["EQ", "LE", "LT", "GE", "GT", "NE"]

_ENUM_VALUES: Final[Mapping[str, Sequence[str]]] = {  # enumerations by number, as a file may write them, too
    "source.repeatability": ("NONE", "LAST", "UNLIMITED"),
    "slot.repeatability": ("UNLIMITED", "LAST", "NONE"),
    "type": ("SINGLE", "AND", "OR"),
    "mode": ("REGEX", "DIFFLIB", "FUZZ", "SBERT"),
    "sign": ("EQ", "LE", "LT", "GE", "GT", "NE"),
}
_ICON_FIELDS: Final = ("icon_recognize", "icon_detect", "icon_match", "icon_detect_match")
_MAX_PATTERN: Final = 2_000  # characters of a regular expression
_MAX_REWARD: Final = 1e12  # of an event; more is no reward that anybody means


@dataclass(frozen=True, slots=True)
class LogSource:
    """A line of the log that a pattern is found in."""

    filters: tuple[str, ...]  # TAG:LEVEL, as logcat has them
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class ViewProperty:
    """What an attribute of a view must be: a pattern that is found in it, or a number that it compares with."""

    name: str
    sign: Sign
    wanted: re.Pattern[str] | float | None  # None: anything


@dataclass(frozen=True, slots=True)
class ViewSource:
    """A view of the screen with certain properties."""

    selector: Selector
    properties: tuple[ViewProperty, ...]


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
class EventSource:
    """One thing that may be noticed."""

    id: int  # 0: nothing refers to it
    repeats: Repeats  # NONE: the same input counts once; LAST: not twice in succession
    looks_for: LogSource | ViewSource | TextSource | ResponseSource | IconSource


@dataclass(frozen=True, slots=True)
class EventSlot:
    """A node of the trees that make events of what was noticed."""

    type: SlotType
    id: int
    inputs: tuple[int | EventSlot, ...]  # ids of sources and of other slots, or slots
    prerequisites: tuple[int, ...]  # ids that must ever have been triggered
    transformation: Transformation
    repeats: Repeats
    waits_for: tuple[int, ...]  # cache_until: it stays set until these are, too; -1: for good


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A task."""

    id: str
    commands: tuple[str, ...]  # what the agent is told
    sources: tuple[EventSource, ...]
    slots: Mapping[str, EventSlot]  # by listener; those that the file has


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
    return parse_task(text, path.name)


def parse_task(text: str, source: str) -> TaskFile:
    """The task that a text in protobuf's text format is; `source` is its name, for errors.

    Raises:
        ConfigError: it is none, or asks for what is not understood; the text says where.
    """
    read = parse_textproto(text, source)
    sources = tuple(_parse_source(each) for each in _get_messages(read, "event_sources"))
    slots = {}
    for message in _get_messages(read, "event_slots")[-1:]:
        _require_known_fields(message, {f"{name}_listener" for name in LISTENERS})
        for name in LISTENERS:
            for each in _get_messages(message, f"{name}_listener")[-1:]:
                slots[name] = _parse_slot(each, 0)
    task = TaskFile(_get_text(read, "id"), tuple(_get_texts(read, "command")), sources, slots)
    if not task.commands:
        raise ConfigError(f"{source} has no command: there is nothing to tell an agent")
    if "episode_end" not in slots:
        raise ConfigError(f"{source} has no episode_end_listener: its task could never be finished")
    _validate_ids(task, source)
    return task


def compute_max_reward(task: TaskFile) -> float:
    """What a task can be worth: the constants of the events that its reward listener hears, each once; 1 at least."""
    values = [value for value in _list_constants(task, "reward") if isinstance(value, int | float)]
    return max(1.0, float(sum(value for value in values if 0 < value < _MAX_REWARD)))


def format_instructions(task: TaskFile) -> str:
    """All that the agent will be told, a line each, as REMEMBERER words a task."""
    told = [
        text
        for value in _list_constants(task, "instruction")
        for text in (value if isinstance(value, list) else [value])
    ]
    later = [f"Then, {text[:1].lower()}{text[1:]}" for text in told if isinstance(text, str)]
    return "\n".join((*task.commands, *later))


def _list_constants(task: TaskFile, listener: str) -> list[Any]:
    """What the events that a listener hears are worth, of those that are always worth the same."""
    if listener not in task.slots:
        return []
    by_id = {slot.id: slot for slot in iter_slots(task.slots.values()) if slot.id}
    heard = [each if isinstance(each, EventSlot) else by_id.get(each) for each in task.slots[listener].inputs]
    values = [slot.transformation.constant for slot in heard if slot is not None and slot.inputs]
    own = task.slots[listener].transformation.constant
    return [value for value in ([own] if own is not None else values) if value is not None]


def _parse_source(message: ProtoMessage) -> EventSource:
    kinds = {"text_recognize", "text_detect", *_ICON_FIELDS, "view_hierarchy_event", "log_event", "response_event"}
    _require_known_fields(message, {"id", "repeatability", *kinds})
    found = sorted(kinds & set(message.fields))
    if len(found) != 1:
        raise ConfigError(f"{message.where}: an event source is one of {', '.join(sorted(kinds))}")
    inner = _get_messages(message, found[0])[-1]
    looks_for: LogSource | ViewSource | TextSource | ResponseSource | IconSource
    if found[0] == "log_event":
        _require_known_fields(inner, {"filters", "pattern"})
        looks_for = LogSource(tuple(_get_texts(inner, "filters")), _compile_pattern(inner, "pattern"))
    elif found[0] == "view_hierarchy_event":
        looks_for = _parse_view_source(inner)
    elif found[0] == "response_event":
        looks_for = ResponseSource(_parse_matcher(inner, "pattern"))
    elif found[0] in _ICON_FIELDS:
        looks_for = IconSource()
    else:
        region = [_get_messages(inner, "rect")[-1] if "rect" in inner.fields else ProtoMessage(inner.where)] * 4
        left, top, right, bottom = map(_get_float, region, ("x0", "y0", "x1", "y1"))
        looks_for = TextSource(_parse_matcher(inner, "expect"), (left, top, right, bottom), found[0] == "text_detect")
    repeats = _get_enum(message, "repeatability", _ENUM_VALUES["source.repeatability"])
    return EventSource(_get_int(message, "id"), cast("Repeats", repeats), looks_for)


def _parse_view_source(message: ProtoMessage) -> ViewSource:
    _require_known_fields(message, {"selector", "properties"})
    texts = _get_texts(message, "selector")
    if not texts:
        raise ConfigError(f"{message.where}: a view_hierarchy_event needs a selector")
    properties = []
    for each in _get_messages(message, "properties"):
        _require_known_fields(each, {"property_name", "sign", "pattern", "integer", "floating"})
        number = next((_get_float(each, name) for name in ("integer", "floating") if name in each.fields), None)
        wanted = _compile_pattern(each, "pattern") if "pattern" in each.fields else number
        sign = cast("Sign", _get_enum(each, "sign", _ENUM_VALUES["sign"]))
        properties.append(ViewProperty(_get_text(each, "property_name"), sign, wanted))
    return ViewSource(Selector(texts, message.where), tuple(properties))


def _parse_matcher(message: ProtoMessage, name: str) -> Matcher:
    _require_known_fields(message, {name, "rect", "mode", "threshold"})
    mode = _get_enum(message, "mode", _ENUM_VALUES["mode"])
    wanted = _compile_pattern(message, name) if mode == "REGEX" else _get_text(message, name)
    return Matcher(wanted, mode, _get_float(message, "threshold"), message.where)


def _parse_slot(message: ProtoMessage, depth: int) -> EventSlot:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{message.where}: more than {MAX_DEPTH} events within each other")
    _require_known_fields(
        message, {"type", "id", "events", "prerequisite", "transformation", "repeatability", "cache_until"}
    )
    inputs: list[int | EventSlot] = []
    for each in _get_messages(message, "events"):
        _require_known_fields(each, {"id", "event"})
        if len(each.fields) != 1:
            raise ConfigError(f"{each.where}: events are an id or an event each")
        inner = _get_messages(each, "event")
        inputs.append(_parse_slot(inner[-1], depth + 1) if inner else _get_int(each, "id"))
    return EventSlot(
        cast("SlotType", _get_enum(message, "type", _ENUM_VALUES["type"])),
        _get_int(message, "id"),
        tuple(inputs),
        tuple(_get_ints(message, "prerequisite")),
        Transformation(_get_texts(message, "transformation"), message.where),
        cast("Repeats", _get_enum(message, "repeatability", _ENUM_VALUES["slot.repeatability"])),
        tuple(_get_ints(message, "cache_until")),
    )


def iter_slots(slots: Iterable[int | EventSlot]) -> Iterable[EventSlot]:
    """All of `slots` and what is within them."""
    for slot in slots:
        if isinstance(slot, EventSlot):
            yield from iter_slots(slot.inputs)
            yield slot


def _validate_ids(task: TaskFile, source: str) -> None:
    """Every id that is referred to is there, and nothing waits for itself."""
    slots = [*iter_slots(task.slots.values())]
    by_id = {slot.id: slot for slot in slots if slot.id}
    known = {each.id for each in task.sources} | set(by_id)
    for slot in slots:
        for wanted in (*(each for each in slot.inputs if isinstance(each, int)), *slot.prerequisites, *slot.waits_for):
            if wanted not in known and wanted != -1:
                raise ConfigError(f"{source}: an event refers to id {wanted}, which nothing has")
    done: set[int] = set()
    for slot in slots:
        _require_acyclic(slot, by_id, (), done, source)


def _require_acyclic(
    slot: EventSlot, by_id: Mapping[int, EventSlot], around: tuple[int, ...], done: set[int], source: str
) -> None:
    if id(slot) in around or len(around) > 4 * MAX_DEPTH:
        raise ConfigError(f"{source}: event {slot.id} is made of itself, or of too many others in a row")
    if id(slot) in done:
        return
    for each in (*slot.inputs, *slot.prerequisites):
        inner = each if isinstance(each, EventSlot) else by_id.get(each)
        if inner is not None:
            _require_acyclic(inner, by_id, (*around, id(slot)), done, source)
    done.add(id(slot))


# -- values of fields; of a field that is to stand once the last one counts, as in protobuf


def _require_known_fields(message: ProtoMessage, known: set[str]) -> None:
    for name in message.fields:
        if name not in known:
            raise ConfigError(f"{message.where}: {name!r} is unknown here: use {', '.join(sorted(known))}")


def _get_messages(message: ProtoMessage, name: str) -> list[ProtoMessage]:
    return [
        _require_types(ProtoMessage, each, message, name, "a message in braces")
        for each in message.fields.get(name, [])
    ]


def _get_texts(message: ProtoMessage, name: str) -> list[str]:
    return [_require_types(str, each, message, name, "a text in quotes") for each in message.fields.get(name, [])]


def _get_text(message: ProtoMessage, name: str) -> str:
    return next(reversed(_get_texts(message, name)), "")


def _get_float(message: ProtoMessage, name: str) -> float:
    values = message.fields.get(name, [])
    return float(_require_types((int, float), values[-1], message, name, "a number")) if values else 0.0


def _get_ints(message: ProtoMessage, name: str) -> list[int]:
    return [_require_types(int, each, message, name, "a whole number") for each in message.fields.get(name, [])]


def _get_int(message: ProtoMessage, name: str) -> int:
    return next(reversed(_get_ints(message, name)), 0)


def _get_enum(message: ProtoMessage, name: str, known: Sequence[str]) -> str:
    """A value of an enumeration, by name or by number; the first by default."""
    value = next(reversed(message.fields.get(name, [])), Identifier(known[0]))
    if isinstance(value, int) and 0 <= value < len(known):
        return known[value]
    if isinstance(value, Identifier) and value in known:
        return str(value)
    raise ConfigError(f"{message.where}: {name} is one of {', '.join(known)}, without quotes")


def _compile_pattern(message: ProtoMessage, name: str) -> re.Pattern[str]:
    text = _get_text(message, name)
    if len(text) > _MAX_PATTERN:
        raise ConfigError(f"{message.where}: {name} is longer than {_MAX_PATTERN} characters")
    try:
        return re.compile(text, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{message.where}: {name} {text[:60]!r} is no regular expression: {error}") from error


def _require_types(kind: Any, value: object, message: ProtoMessage, name: str, wanted: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, Identifier):
        raise ConfigError(f"{message.where}: {name} must be {wanted}")
    return value

"""Task files of Mobile-Env: which events on the phone the engine looks for, and what they mean for the agent.

Source: ``task.proto`` of X-LANCE/Mobile-Env (commit 976145e). The parser ignores the setup of the phone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, get_args

from trailnotes.errors import ConfigError
from trailnotes_worlds.wikihow.matching import Matcher, Selector, Transformation
from trailnotes_worlds.wikihow.textproto import MAX_DEPTH, MAX_SIZE, Identifier, ProtoMessage, parse_textproto

LISTENERS: Final = ("score", "reward", "episode_end", "extra", "json_extra", "instruction", "null")
Repeats = Literal["NONE", "LAST", "UNLIMITED"]
SlotType = Literal["SINGLE", "AND", "OR"]
Sign = Literal["EQ", "LE", "LT", "GE", "GT", "NE"]

_TYPE_NAMES: Final = {
    ProtoMessage: "a message in braces", str: "a text in quotes", float: "a number", int: "a whole number"
}  # fmt: skip
T = TypeVar("T")
_ICON_FIELDS: Final = ("icon_recognize", "icon_detect", "icon_match", "icon_detect_match")
_MAX_PATTERN: Final = 2_000  # characters of a regular expression
_MAX_REWARD: Final = 1e12  # of an event


@dataclass(frozen=True, slots=True)
class LogSource:
    """Log line with a match of a pattern."""

    filters: tuple[str, ...]  # TAG:LEVEL, as in logcat
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class ViewProperty:
    """Condition on an attribute of a view: a pattern to find in it, or a number to compare it with."""

    name: str
    sign: Sign
    wanted: re.Pattern[str] | float | None  # None: anything


@dataclass(frozen=True, slots=True)
class ViewSource:
    """View of the screen with certain properties."""

    selector: Selector
    properties: tuple[ViewProperty, ...]


@dataclass(frozen=True, slots=True)
class TextSource:
    """Text in a region of the screen."""

    matcher: Matcher
    region: tuple[float, float, float, float]  # left, top, right, bottom; shares of the screen
    detects: bool  # compares each text of the region, else all of them joined


@dataclass(frozen=True, slots=True)
class ResponseSource:
    """Response of the agent to its user."""

    matcher: Matcher


@dataclass(frozen=True, slots=True)
class IconSource:
    """Picture on the screen, which is never found: these screens have none."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Event that the engine may notice."""

    id: int  # 0: no reference to it
    repeats: Repeats  # NONE: the same input counts once; LAST: not twice in succession
    looks_for: LogSource | ViewSource | TextSource | ResponseSource | IconSource


@dataclass(frozen=True, slots=True)
class EventSlot:
    """Node of the trees that combine noticed events."""

    type: SlotType
    id: int
    inputs: tuple[int | EventSlot, ...]  # ids of sources and of other slots, or slots
    prerequisites: tuple[int, ...]  # ids that must have been triggered before
    transformation: Transformation
    repeats: Repeats
    waits_for: tuple[int, ...]  # cache_until: it stays set until these are; -1: for good


@dataclass(frozen=True, slots=True)
class TaskFile:
    """Parsed content of a task file."""

    id: str
    commands: tuple[str, ...]  # instructions of the agent
    sources: tuple[EventSource, ...]
    slots: Mapping[str, EventSlot]  # by listener, of those in the file


def read_task(path: Path) -> TaskFile:
    """Read the task file at a path. Raises `ConfigError`: it is unreadable, or no task file."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_SIZE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a task file: {error}") from error
    return parse_task(text, path.name)


def parse_task(text: str, source: str) -> TaskFile:
    """Parse a task in protobuf's text format; `source` is its name, for errors.

    Raises:
        ConfigError: it is no task, or uses unsupported features; the message says where.
    """
    read = parse_textproto(text, source)
    sources = tuple(_parse_source(each) for each in _get_all(read, "event_sources", ProtoMessage))
    slots = {}
    for message in _get_all(read, "event_slots", ProtoMessage)[-1:]:
        _require_known_fields(message, {f"{name}_listener" for name in LISTENERS})
        for name in LISTENERS:
            for each in _get_all(message, f"{name}_listener", ProtoMessage)[-1:]:
                slots[name] = _parse_slot(each, 0)
    task = TaskFile(_get_last(read, "id", str, ""), tuple(_get_all(read, "command", str)), sources, slots)
    if not task.commands:
        raise ConfigError(f"{source} has no command for the agent")
    if "episode_end" not in slots:
        raise ConfigError(f"{source} has no episode_end_listener: its task could never be finished")
    _validate_ids(task, source)
    return task


def compute_max_reward(task: TaskFile) -> float:
    """Sum the constant rewards of a task, each once: its greatest reward, at least 1."""
    values = [value for value in _list_constants(task, "reward") if isinstance(value, int | float)]
    return max(1.0, float(sum(value for value in values if 0 < value < _MAX_REWARD)))


def format_instructions(task: TaskFile) -> str:
    """Format all instructions of the task, a line each, as REMEMBERER words them."""
    told = [
        text
        for value in _list_constants(task, "instruction")
        for text in (value if isinstance(value, list) else [value])
    ]
    later = [f"Then, {text[:1].lower()}{text[1:]}" for text in told if isinstance(text, str)]
    return "\n".join((*task.commands, *later))


def _list_constants(task: TaskFile, listener: str) -> list[Any]:
    if listener not in task.slots:
        return []
    by_id = {slot.id: slot for slot in iter_slots(task.slots.values()) if slot.id}
    heard = [each if isinstance(each, EventSlot) else by_id.get(each) for each in task.slots[listener].inputs]
    values = [slot.transformation.constant for slot in heard if slot is not None and slot.inputs]
    own = task.slots[listener].transformation.constant
    return [own] if own is not None else [value for value in values if value is not None]


def _parse_source(message: ProtoMessage) -> EventSource:
    kinds = {"text_recognize", "text_detect", *_ICON_FIELDS, "view_hierarchy_event", "log_event", "response_event"}
    _require_known_fields(message, {"id", "repeatability", *kinds})
    found = sorted(kinds & set(message.fields))
    if len(found) != 1:
        raise ConfigError(f"{message.where}: an event source is one of {', '.join(sorted(kinds))}")
    inner = _get_all(message, found[0], ProtoMessage)[-1]
    looks_for: LogSource | ViewSource | TextSource | ResponseSource | IconSource
    if found[0] == "log_event":
        _require_known_fields(inner, {"filters", "pattern"})
        looks_for = LogSource(tuple(_get_all(inner, "filters", str)), _compile_pattern(inner, "pattern"))
    elif found[0] == "view_hierarchy_event":
        looks_for = _parse_view_source(inner)
    elif found[0] == "response_event":
        looks_for = ResponseSource(_parse_matcher(inner, "pattern"))
    elif found[0] in _ICON_FIELDS:
        looks_for = IconSource()
    else:
        rect = _get_last(inner, "rect", ProtoMessage, ProtoMessage(inner.where))
        left, top, right, bottom = (float(_get_last(rect, edge, float, 0.0)) for edge in ("x0", "y0", "x1", "y1"))
        looks_for = TextSource(_parse_matcher(inner, "expect"), (left, top, right, bottom), found[0] == "text_detect")
    repeats = _get_enum(message, "repeatability", get_args(Repeats))
    return EventSource(_get_last(message, "id", int, 0), cast("Repeats", repeats), looks_for)


def _parse_view_source(message: ProtoMessage) -> ViewSource:
    _require_known_fields(message, {"selector", "properties"})
    texts = _get_all(message, "selector", str)
    if not texts:
        raise ConfigError(f"{message.where}: a view_hierarchy_event needs a selector")
    properties = []
    for each in _get_all(message, "properties", ProtoMessage):
        _require_known_fields(each, {"property_name", "sign", "pattern", "integer", "floating"})
        number = next(
            (float(_get_last(each, name, float, 0.0)) for name in ("integer", "floating") if name in each.fields), None
        )
        wanted = _compile_pattern(each, "pattern") if "pattern" in each.fields else number
        sign = cast("Sign", _get_enum(each, "sign", get_args(Sign)))
        properties.append(ViewProperty(_get_last(each, "property_name", str, ""), sign, wanted))
    return ViewSource(Selector(texts, message.where), tuple(properties))


def _parse_matcher(message: ProtoMessage, name: str) -> Matcher:
    _require_known_fields(message, {name, "rect", "mode", "threshold"})
    mode = _get_enum(message, "mode", ("REGEX", "DIFFLIB", "FUZZ", "SBERT"))
    wanted = _compile_pattern(message, name) if mode == "REGEX" else _get_last(message, name, str, "")
    return Matcher(wanted, mode, float(_get_last(message, "threshold", float, 0.0)), message.where)


def _parse_slot(message: ProtoMessage, depth: int) -> EventSlot:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{message.where}: more than {MAX_DEPTH} events within each other")
    _require_known_fields(
        message, {"type", "id", "events", "prerequisite", "transformation", "repeatability", "cache_until"}
    )
    inputs: list[int | EventSlot] = []
    for each in _get_all(message, "events", ProtoMessage):
        _require_known_fields(each, {"id", "event"})
        if len(each.fields) != 1:
            raise ConfigError(f"{each.where}: events are an id or an event each")
        inner = _get_all(each, "event", ProtoMessage)
        inputs.append(_parse_slot(inner[-1], depth + 1) if inner else _get_last(each, "id", int, 0))
    return EventSlot(
        cast("SlotType", _get_enum(message, "type", get_args(SlotType))),
        _get_last(message, "id", int, 0),
        tuple(inputs),
        tuple(_get_all(message, "prerequisite", int)),
        Transformation(_get_all(message, "transformation", str), message.where),
        cast("Repeats", _get_enum(message, "repeatability", ("UNLIMITED", "LAST", "NONE"))),
        tuple(_get_all(message, "cache_until", int)),
    )


def iter_slots(slots: Iterable[int | EventSlot]) -> Iterable[EventSlot]:
    """Yield all of `slots` and the slots within them."""
    for slot in slots:
        if isinstance(slot, EventSlot):
            yield from iter_slots(slot.inputs)
            yield slot


def _validate_ids(task: TaskFile, source: str) -> None:
    slots = [*iter_slots(task.slots.values())]
    by_id = {slot.id: slot for slot in slots if slot.id}
    known = {each.id for each in task.sources} | set(by_id)
    for slot in slots:
        for wanted in (*(each for each in slot.inputs if isinstance(each, int)), *slot.prerequisites, *slot.waits_for):
            if wanted not in known and wanted != -1:
                raise ConfigError(f"{source}: an event refers to the missing id {wanted}")
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


def _require_known_fields(message: ProtoMessage, known: set[str]) -> None:
    for name in message.fields:
        if name not in known:
            raise ConfigError(f"{message.where}: {name!r} is unknown here: use {', '.join(sorted(known))}")


def _get_all(message: ProtoMessage, name: str, kind: type[T]) -> list[T]:
    values = message.fields.get(name, [])
    for value in values:
        if not isinstance(value, int | float if kind is float else kind) or isinstance(value, Identifier):
            raise ConfigError(f"{message.where}: {name} must be {_TYPE_NAMES[kind]}")
    return cast("list[T]", values)


def _get_last(message: ProtoMessage, name: str, kind: type[T], default: T) -> T:
    return next(reversed(_get_all(message, name, kind)), default)  # as in protobuf, the last value counts


def _get_enum(message: ProtoMessage, name: str, known: Sequence[str]) -> str:
    value = next(reversed(message.fields.get(name, [])), Identifier(known[0]))
    if isinstance(value, int) and 0 <= value < len(known):
        return known[value]
    if isinstance(value, Identifier) and value in known:
        return str(value)
    raise ConfigError(f"{message.where}: {name} is one of {', '.join(known)}, without quotes")


def _compile_pattern(message: ProtoMessage, name: str) -> re.Pattern[str]:
    text = _get_last(message, name, str, "")
    if len(text) > _MAX_PATTERN:
        raise ConfigError(f"{message.where}: {name} is longer than {_MAX_PATTERN} characters")
    try:
        return re.compile(text, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{message.where}: {name} {text[:60]!r} is no regular expression: {error}") from error

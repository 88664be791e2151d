"""Goals of an episode: pages to reach, each of them worth 1, once. The last one ends the episode.

The app writes a line to its log at each navigation, and a pattern of that line tells which page was reached. Task files
of Mobile-Env list other events of the same page, too: its views and its texts on the picture. The reader skips them,
since here the log line always comes with the page.

Source: ``task.proto`` of X-LANCE/Mobile-Env (commit 976145e), and its 10 public task files of WikiHow.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from trailnotes.errors import ConfigError, MissingExtraError, format_install_command

_QUOTED_LETTERS = re.compile(r"(?:%[89A-F][0-9A-F])+")  # beyond ASCII: what else a query quotes could forge a line


@dataclass(frozen=True, slots=True)
class TargetPage:
    pattern: re.Pattern[str]  # of the log line that its visit writes
    instruction: str = ""  # that the agent gets once it is reached; "" for none


@dataclass(frozen=True, slots=True)
class Goal:
    """Goal of an episode, in the order of its instructions."""

    command: str  # the first instruction
    pages: tuple[TargetPage, ...]

    def find_reached(self, log: Iterable[str]) -> list[int]:
        lines = [_QUOTED_LETTERS.sub(lambda letters: unquote(letters[0]), line) for line in log]
        return [place for place, page in enumerate(self.pages) if any(map(page.pattern.search, lines))]

    def format_instructions(self) -> str:
        later = (page.instruction for page in self.pages if page.instruction)
        return "\n".join((self.command, *(f"Then, {text[:1].lower()}{text[1:]}" for text in later)))


# What would ask for more than a page, once: all of a slot's events, one after another, or again and again.
_UNREAD = re.compile(r"\b(type:\s*AND|prerequisite:|repeatability:\s*(?!NONE)\w+)")

# The fields of a task file that describe its goal; the parser skips all others. A star marks a repeated field.
_SCHEMA: Final = {
    "Task": {"command": "string*", "event_sources": "Source*", "event_slots": "Listeners"},
    "Source": {"id": "int32", "log_event": "LogEvent"},
    "LogEvent": {"pattern": "string"},
    "Listeners": {"reward_listener": "Slot", "episode_end_listener": "Slot", "instruction_listener": "Slot"},
    "Slot": {"id": "int32", "events": "Event*", "transformation": "string*"},
    "Event": {"id": "int32", "event": "Slot"},
}


@cache
def _get_task_class() -> type[Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="task.proto", package="mobile_env")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), start=1):
            label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            scalar = {"string": kinds.TYPE_STRING, "int32": kinds.TYPE_INT32}.get(kind.rstrip("*"))
            added.type = scalar or kinds.TYPE_MESSAGE
            if scalar is None:
                added.type_name = f".mobile_env.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    task_class: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName("mobile_env.Task"))
    return task_class


def read_goal(path: Path) -> Goal:
    try:
        from google.protobuf import text_format
    except ModuleNotFoundError as error:
        fix = format_install_command("mobile-env")
        raise MissingExtraError(f"task files of Mobile-Env need the package protobuf: {fix}") from error
    try:
        text = path.read_text(encoding="utf-8-sig")
        task = text_format.Parse(text, _get_task_class()(), allow_unknown_field=True)
        return Goal(task.command[0], tuple(_list_pages(task, text)))
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise ConfigError(f"{path} cannot be read as a task file: {error}") from error
    except (LookupError, ValueError, SyntaxError, re.error) as error:
        raise ConfigError(f"{path} is no task of WikiHow: {error}") from error


def _list_pages(task: Any, text: str) -> list[TargetPage]:
    if unread := _UNREAD.search(text):
        raise ValueError(f"pages count once, any of a slot's, in any order: {unread[1]} cannot be followed")
    listeners = task.event_slots
    patterns = {each.id: each.log_event.pattern for each in task.event_sources if each.HasField("log_event")}
    instructions = {}
    for slot in (each.event for each in listeners.instruction_listener.events if each.event.events):
        (instructions[slot.events[0].id],) = ast.literal_eval(slot.transformation[0].removeprefix("y = "))
    slots = [each.event for each in listeners.reward_listener.events]
    if [each.id for each in listeners.episode_end_listener.events] != [slot.id for slot in slots[-1:]]:
        raise ValueError("its end is not the last page that it rewards")
    pages = []
    for slot in slots:
        alternatives = [patterns[each.id] for each in slot.events if each.id in patterns]
        if not alternatives or [*slot.transformation] != ["y = 1"]:
            raise ValueError(f"event {slot.id} needs a log_event and the reward 1")
        pages.append(TargetPage(re.compile("|".join(alternatives)), instructions.get(slot.id, "")))
    return pages

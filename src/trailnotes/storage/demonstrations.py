"""Conversations for imitation, as lines of a JSONL file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trailnotes.errors import ConfigError
from trailnotes.storage.files import encode_line, read_user_lines, task_to_json, write_bytes_atomic
from trailnotes.types import Message, Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation, and the indices of its imitated assistant turns."""

    messages: tuple[Message, ...]
    taught: frozenset[int]
    task: Task | None = None  # the game it is of, where that is known
    kind: str = ""  # what it shows, such as "trial-1" or "tip": rehearsals draw each kind equally often
    helped: bool = True  # whether it won, or was followed by something better


def list_assistant_turns(messages: Iterable[Message]) -> frozenset[int]:
    return frozenset(i for i, message in enumerate(messages) if message.role == "assistant")


def write_demonstrations(demonstrations: Iterable[Demonstration], path: Path) -> None:
    """Write a file that `read_demonstrations` reads, whole or not at all."""
    write_bytes_atomic(path, b"".join(encode_line(demonstration_to_json(each)) for each in demonstrations))


def read_demonstrations(path: Path, setting: str) -> list[Demonstration]:
    """Read conversations of a JSONL file, ``{"messages": [{"role", "content"}, ...]}`` a line.

    All assistant turns teach, unless ``"taught"`` lists those that do (0 is the first message). ``"task"`` is the id of
    the game, or a task as in trajectories.jsonl, which must not be evaluated. ``"token_ids"`` of an assistant turn are
    those sampled; a model whose tokenizer reads other text in them uses the text. `setting` named the file.
    """
    demonstrations = []
    for number, record in read_user_lines(path):
        try:
            demonstrations.append(_parse_record(record))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{setting} = {path}, line {number}: is not a demonstration ({error}); "
                'a line is {"messages": [{"role": "user", "content": "..."}, ...]}'
            ) from error
    if not demonstrations:
        raise ConfigError(f"{setting} = {path} holds no demonstrations")
    return demonstrations


def demonstration_to_json(demonstration: Demonstration) -> Mapping[str, Any]:
    rows = [{"role": m.role, "content": m.content, "token_ids": m.token_ids} for m in demonstration.messages]
    record: dict[str, Any] = {"messages": [{name: row[name] for name in row if row[name] is not None} for row in rows]}
    if demonstration.taught != list_assistant_turns(demonstration.messages):
        record["taught"] = sorted(demonstration.taught)
    if demonstration.kind:
        record["kind"] = demonstration.kind
    if not demonstration.helped:
        record["helped"] = False
    return record | ({"task": task_to_json(demonstration.task)} if demonstration.task else {})


def _parse_record(record: Any) -> Demonstration:
    rows, task = _require_type(list, "messages", _require_type(dict, "a line", record)["messages"]), record.get("task")
    messages = tuple(_parse_message(_require_type(dict, "a message", row)) for row in rows)
    roles = [message.role for message in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if any(role != ("user", "assistant")[i % 2] for i, role in enumerate(turns)):
        raise ValueError(f"user and assistant must take turns, the user first: {', '.join(roles)}")
    taught = frozenset(_parse_numbers("taught", record.get("taught", sorted(list_assistant_turns(messages)))))
    if not taught or not taught <= list_assistant_turns(messages):
        raise ValueError(f"taught = {sorted(taught)} must name turns of the assistant")
    if task is not None:
        task = _parse_task(task) if isinstance(task, dict) else Task(_require_type(str, "task", task), "unknown")
    kind = _require_type(str, "kind", record.get("kind", ""))
    return Demonstration(messages, taught, task, kind, _require_type(bool, "helped", record.get("helped", True)))


def _parse_message(row: Mapping[str, Any]) -> Message:
    role, content = (_require_type(str, name, row[name]) for name in ("role", "content"))
    return Message(role, content, _parse_numbers("token_ids", row.get("token_ids", [])) or None)  # type: ignore[arg-type]


def _parse_task(record: Mapping[str, Any]) -> Task:
    kinds = {"id": str, "env": str, "seed": int, "split": str, "options": dict, "family": str}
    for name in kinds.keys() & record.keys():
        _require_type(kinds[name], f"task.{name}", record[name])
    return Task(**record)


def _parse_numbers(name: str, listed: Any) -> tuple[int, ...]:
    return tuple(_require_type(int, f"each of {name}", number) for number in _require_type(list, name, listed))


def _require_type(kind: type[T], name: str, value: Any) -> T:
    if type(value) is not kind:  # true is no number
        raise TypeError(f"{name} must be of type {kind.__name__}, is {value!r:.40}")
    return value

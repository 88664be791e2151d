"""Conversations for imitation, as lines of a JSONL file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trailnotes.errors import ConfigError
from trailnotes.storage.files import encode_line, parse_json, write_bytes_atomic
from trailnotes.storage.records import task_to_json
from trailnotes.types import Message, Task


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

    Raises:
        ConfigError: there is no such file, or a line is not a conversation; the text has its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # texts may hold other line ends
    except OSError as error:
        raise ConfigError(f"{setting} = {str(path)!r} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting} = {str(path)!r} is not UTF-8 text: {error.reason}") from error
    demonstrations = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            messages, task = _parse_messages(record["messages"]), _parse_task(record.get("task"))
            taught = _parse_imitated(record.get("taught"), list_assistant_turns(messages))
            kind, helped = str(record.get("kind", "")), bool(record.get("helped", True))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}:{number} is not a demonstration ({error}); "
                'a line is {"messages": [{"role": "user", "content": "..."}, ...]}'
            ) from error
        if not taught:
            raise ConfigError(f"{path}:{number} has no assistant turn to imitate")
        demonstrations.append(Demonstration(messages, taught, task, kind, helped))
    if not demonstrations:
        raise ConfigError(f"{path} holds no demonstrations")
    return demonstrations


def demonstration_to_json(demonstration: Demonstration) -> Mapping[str, Any]:
    turns = [{"role": m.role, "content": m.content} for m in demonstration.messages]
    kept = zip(turns, demonstration.messages, strict=True)
    record: dict[str, Any] = {"messages": [t | ({"token_ids": m.token_ids} if m.token_ids else {}) for t, m in kept]}
    if demonstration.taught != list_assistant_turns(demonstration.messages):
        record["taught"] = sorted(demonstration.taught)
    if demonstration.kind:
        record["kind"] = demonstration.kind
    if not demonstration.helped:
        record["helped"] = False
    return record | ({"task": task_to_json(demonstration.task)} if demonstration.task else {})


def _parse_imitated(named: Any, turns: frozenset[int]) -> frozenset[int]:
    if named is None:
        return turns
    if not frozenset(named) <= turns:
        raise ValueError(f"taught = {named!r} names a message that is not the assistant's")
    return frozenset(named)


def _parse_task(named: Any) -> Task | None:
    if named is None:
        return None
    return Task(**named) if isinstance(named, dict) else Task(str(named), "unknown")  # an id tells games apart alone


def _parse_messages(rows: Any) -> tuple[Message, ...]:
    for row in rows:
        if not isinstance(row["content"], str):
            raise TypeError(f"a turn's content is {type(row['content']).__name__}, not text")
        if not all(type(index) is int and index >= 0 for index in row.get("token_ids", ())):
            raise ValueError(f"token_ids = {row['token_ids']!r} are no ids")
    roles = [row["role"] for row in rows]
    head = int(roles[:1] == ["system"])
    for i, role in enumerate(roles[head:]):
        if role != (expected := ("user", "assistant")[i % 2]):
            raise ValueError(f"turn {head + i + 1} has role {role!r} instead of {expected!r}")
    return tuple(Message(row["role"], row["content"], tuple(row.get("token_ids", ())) or None) for row in rows)

"""Conversations to learn from, as lines of a JSONL file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trailnotes.errors import ConfigError
from trailnotes.storage.files import encode_line, write_bytes_atomic
from trailnotes.storage.parsing import parse_json
from trailnotes.storage.records import task_to_json
from trailnotes.types import Message, Task

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation, and which of its assistant turns are imitated (indices into `messages`)."""

    messages: tuple[Message, ...]
    taught: frozenset[int]
    task: Task | None = None  # the game it is of, where that is known
    kind: str = ""  # what it shows, such as "trial-1" or "tip": rehearsals draw each kind equally often
    helped: bool = True  # whether it won, or was followed by something better


def list_assistant_turns(messages: Iterable[Message]) -> frozenset[int]:
    """All turns of the assistant."""
    return frozenset(i for i, message in enumerate(messages) if message.role == "assistant")


def write_demonstrations(demonstrations: Iterable[Demonstration], path: Path) -> None:
    """Write what `read_demonstrations` reads: the whole file or none of it."""
    write_bytes_atomic(
        path, b"".join(encode_line(demonstration_to_json(demonstration)) for demonstration in demonstrations)
    )


def read_demonstrations(path: Path, setting: str) -> list[Demonstration]:
    """Conversations of a JSONL file, ``{"messages": [{"role", "content"}, ...]}`` a line.

    All assistant turns teach, unless ``"taught"`` lists those that do (0 is the first message). A line may also name
    its game, which must not be examined: ``"task"`` is a task's id, or a task as in the trajectories.jsonl of a run.
    An assistant turn may hold the ``"token_ids"`` that were sampled; a model whose tokenizer reads other text in them
    goes by the text. ``"kind"`` and ``"helped"`` are as in `Demonstration`.

    Args:
        path: the file.
        setting: that named it, for the errors.

    Raises:
        ConfigError: there is no such file, or a line is not a conversation; the text has its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # other ends of lines may stand inside of texts
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
    """One line of what `read_demonstrations` reads."""
    record: dict[str, Any] = {"messages": [_message_to_json(message) for message in demonstration.messages]}
    if demonstration.taught != list_assistant_turns(demonstration.messages):
        record["taught"] = sorted(demonstration.taught)
    if demonstration.kind:
        record["kind"] = demonstration.kind
    if not demonstration.helped:
        record["helped"] = False
    return record | ({"task": task_to_json(demonstration.task)} if demonstration.task else {})


def _message_to_json(message: Message) -> Mapping[str, Any]:
    turn = {"role": message.role, "content": message.content}
    return turn | ({"token_ids": message.token_ids} if message.token_ids else {})


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
    """The messages, checked: an optional system prompt, then user and assistant in turn."""
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

"""What a demonstration is, and how to read them from a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trailnotes.errors import ConfigError
from trailnotes.types import Message, Task

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation, and which of its assistant turns are imitated (indices into `messages`)."""

    messages: tuple[Message, ...]
    taught: frozenset[int]
    task: Task | None = None  # the game it is of, where that is known


def from_jsonl(path: Path) -> list[Demonstration]:
    """Conversations of a JSONL file, ``{"messages": [{"role", "content"}, ...]}`` a line; all assistant turns teach.

    A line may also name its game, which must not be examined: ``"task"`` is a task's id, or a task as in the
    trajectories.jsonl of a run.

    Raises:
        ConfigError: there is no such file, or a line is not a conversation; the text has its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"warmstart.demonstrations = {str(path)!r} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"warmstart.demonstrations = {str(path)!r} is not UTF-8 text: {error.reason}") from error
    demonstrations = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            messages, task = _conversation(record["messages"]), _task(record.get("task"))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}:{number} is not a demonstration ({error}); "
                'a line is {"messages": [{"role": "user", "content": "..."}, ...]}'
            ) from error
        taught = frozenset(i for i, message in enumerate(messages) if message.role == "assistant")
        if not taught:
            raise ConfigError(f"{path}:{number} has no assistant turn to imitate")
        demonstrations.append(Demonstration(messages, taught, task))
    if not demonstrations:
        raise ConfigError(f"{path} holds no demonstrations")
    return demonstrations


def _task(named: Any) -> Task | None:
    if named is None:
        return None
    return Task(**named) if isinstance(named, dict) else Task(str(named), "unknown")  # an id tells games apart alone


def _conversation(rows: Any) -> tuple[Message, ...]:
    """The messages, checked: an optional system prompt, then user and assistant in turn."""
    for row in rows:
        if not isinstance(row["content"], str):
            raise TypeError(f"a turn's content is {type(row['content']).__name__}, not text")
    roles = [row["role"] for row in rows]
    head = int(roles[:1] == ["system"])
    for i, role in enumerate(roles[head:]):
        if role != (expected := ("user", "assistant")[i % 2]):
            raise ValueError(f"turn {head + i + 1} has role {role!r} instead of {expected!r}")
    return tuple(Message(row["role"], row["content"]) for row in rows)

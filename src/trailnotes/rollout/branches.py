"""The conversation of a foreign agent: its requests extend earlier ones, fork from them, or repeat them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trailnotes.types import Message, Role, Tip


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation, in both contexts."""

    plain: Message
    acting: Message
    tips: tuple[Tip, ...] = ()  # that `acting` shows before its text


class Branches:
    """All turns that a policy has read or sampled, by the messages before them.

    An agent sends its whole conversation with each request, and knows neither sampled ids nor tips. A turn that follows
    the same messages as before gets both back.
    """

    def __init__(self) -> None:
        self._turns: dict[tuple[int, Role, str], tuple[int, Turn]] = {}  # by the number of the turn before; 0: none

    def record(self, turns: Sequence[Turn]) -> None:
        """Record a conversation; of equal turns the last counts."""
        before = 0
        for turn in turns:
            key = before, turn.plain.role, turn.plain.content
            before, _ = self._turns.get(key, (len(self._turns) + 1, turn))
            self._turns[key] = before, turn

    def trace(self, messages: Sequence[Message]) -> list[Turn]:
        """Return the turns of `messages`, as far as they are known; others are new in both contexts."""
        turns: list[Turn] = []
        before = 0
        for message in messages:
            before, turn = self._turns.get((before, message.role, message.content), (-1, Turn(message, message)))
            turns.append(turn)
        return turns


def parse_request(request: Mapping[str, Any], held: Sequence[Message]) -> list[Message]:
    """Parse `Observation.request`: the messages of `held` that stay, and those that follow.

    Raises:
        ValueError: it keeps more than there is, or ends with the assistant.
    """
    kept, further = request["kept"], [Message(role, content) for role, content in request["messages"]]
    if not 0 <= kept <= len(held) or not further or further[-1].role != "user":
        raise ValueError(f"a request must extend {len(held)} messages by some that end with the user's, got {request}")
    return [*held[:kept], *further]

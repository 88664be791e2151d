"""A policy that follows a script, for tests, demonstrations and gold paths; its encoding can be read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from trailnotes.errors import PolicyError
from trailnotes.policies.base import OwnedPolicy
from trailnotes.types import Completion, Message, Role, Sampling, TokenIds

END_ID: Final = 256  # ends every turn; ids below are the bytes of the text in UTF-8
ROLE_IDS: Final[dict[Role, int]] = {"system": 257, "user": 258, "assistant": 259}  # begin a turn

Script = Callable[[Sequence[Message]], str]


class ScriptedPolicy(OwnedPolicy):
    """Policy that says what `script` answers to the messages so far, one token a byte, with log-probability 0.

    The first of `Sampling.stop` in the text ends it, as does `max_tokens` (finish reason "length", no end token).
    `name` is the author of its tips.
    """

    append_only = True

    def __init__(self, script: Script, *, name: str = "scripted", context_length: int = 1_000_000) -> None:
        self.name = name
        self.version = 0
        self.context_length = context_length
        self.open_episodes: set[str] = set()
        self._script = script

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        ids: list[int] = []
        for message in messages:
            ids.append(ROLE_IDS[message.role])
            spoken = _encode_text(message.content) if message.token_ids is None else message.token_ids
            ids += spoken
            if message.token_ids is None or spoken[-1:] != (END_ID,):
                ids.append(END_ID)
        return (*ids, ROLE_IDS["assistant"])

    def decode(self, token_ids: Iterable[int]) -> str:
        return bytes(i for i in token_ids if i < END_ID).decode("utf-8", "replace")

    def count_tokens(self, text: str) -> int:
        return len(_encode_text(text))

    def open_episode(self, episode: str) -> None:
        self.open_episodes.add(episode)

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:  # noqa: ARG002
        """Ask the script. Raises `PolicyError` if prompt and longest completion exceed the context."""
        prompt_ids = self.encode(messages)
        if len(prompt_ids) + sampling.max_tokens > self.context_length:
            raise PolicyError(
                f"a prompt of {len(prompt_ids)} tokens leaves no room for {sampling.max_tokens} more "
                f"in a context of {self.context_length}"
            )
        text, _ = sampling.cut_at_stop(self.answer(messages, sampling))
        ids = (*_encode_text(text), END_ID)
        if len(ids) <= sampling.max_tokens:
            return Completion(prompt_ids, ids, (0.0,) * len(ids), text)
        ids = ids[: sampling.max_tokens]
        return Completion(prompt_ids, ids, (0.0,) * len(ids), self.decode(ids), "length")

    def answer(self, messages: Sequence[Message], sampling: Sampling) -> str:  # noqa: ARG002 (subclasses draw)
        return self._script(messages)

    def close_episode(self, episode: str) -> None:
        self.open_episodes.discard(episode)


def _encode_text(text: str) -> TokenIds:
    return tuple(text.encode("utf-8", "surrogatepass"))

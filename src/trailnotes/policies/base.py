"""What a policy is: it encodes a conversation, and samples what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trailnotes.types import Completion, Message, Sampling, TokenIds


class Policy(Protocol):
    """An agent's mouth: batching, caches and devices are its own business.

    Episodes are coroutines that share one policy. `episode` names the conversation, so that an engine can keep
    its KV cache for as long as the episode lives; `open_episode` and `close_episode` bracket it.
    """

    name: str  # model directory or hub name: a tip's author
    version: int  # of the weights; goes up at every update
    context_length: int  # tokens that prompt and completion may have together
    append_only: bool  # whether encode(messages + new) always starts with encode(messages) and the sampled ids

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        """Token ids of the conversation, ready for the assistant to speak next.

        Assistant messages that carry `token_ids` enter with exactly these. () if the engine returns no ids.
        """
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` alone, to hold a length cap; an estimate for engines without a tokenizer."""
        ...

    def open_episode(self, episode: str) -> None:
        """Announce a live episode (a deterministic engine gathers all live ones before each batch)."""
        ...

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Sample the next assistant turn. Raises `PolicyError` if prompt and completion exceed the context."""
        ...

    def close_episode(self, episode: str) -> None:
        """Free what the engine kept for the episode. Unknown names are ignored."""
        ...

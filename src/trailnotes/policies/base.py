"""What a policy is: it encodes a conversation, and samples what comes next; some learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trailnotes.types import Completion, Message, Sampling, TokenIds

if TYPE_CHECKING:
    from torch import Tensor

    from trailnotes.policies.chat import ChatFormat


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

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` alone, to hold a length cap; an estimate for engines without a tokenizer."""

    def open_episode(self, episode: str) -> None:
        """Announce a live episode (a deterministic engine gathers all live ones before each batch)."""

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Sample the next assistant turn. Raises `PolicyError` if prompt and completion exceed the context."""

    def close_episode(self, episode: str) -> None:
        """Free what the engine kept for the episode. Unknown names are ignored."""


class OwnedPolicy(Policy, Protocol):
    """A policy as its owner sees it."""

    def close(self) -> None:
        """End what belongs to the policy alone, such as processes. Twice is fine."""


class TrainedPolicy(OwnedPolicy, Protocol):
    """A policy that plays with the weights of a learner."""

    tokenizer: Any  # of transformers
    format: ChatFormat
    probes: Sequence[Completion]  # what the learner is to score whenever its weights are handed over

    async def load(self, weights: Mapping[str, Tensor], version: int, said: Sequence[Sequence[float]] = ()) -> float:
        """Take over weights; nobody may be in the middle of a completion.

        Args:
            weights: by the names of the model's files: all of a whole model, of adapters theirs alone.
            version: of the weights.
            said: the learner's log-probabilities of the sampled tokens of each probe, by these weights, in nats at the
                sampling temperature of training.

        Returns:
            How far what plays is from the learner in that, in nats on average.

        Raises:
            PolicyError: a completion is under way, the weights are another model's, or what plays says something else
                of the probes than the learner.
        """

    async def sleep(self) -> None:
        """Make room for a learner on the same device, where there is one."""

    async def wake(self) -> None:
        """Be ready to play again."""

    def report(self) -> dict[str, float]:
        """Figures of what was played since the last call; none where there is nothing to say."""

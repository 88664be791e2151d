"""The interface of a policy: it encodes a conversation and samples the next turn; some policies are trained."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from trailnotes.policies.chat import ChatFormat
from trailnotes.types import Completion, Message, Sampling, TokenIds

T = TypeVar("T")


class Policy(Protocol):
    """Text-generation interface of an agent; batching, caches and devices belong to its implementation.

    Episodes are coroutines that share one policy. `episode` names the conversation, so that an engine can keep its KV
    cache between `open_episode` and `close_episode`.
    """

    name: str  # model directory or hub name: a tip's author
    version: int  # of the weights; goes up at every update
    context_length: int  # tokens that prompt and completion may have together
    append_only: bool  # whether encode(messages + new) always starts with encode(messages) and the sampled ids

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        """Encode the conversation up to where the assistant speaks; () if the engine returns no ids.

        Assistant messages that carry `token_ids` enter with exactly these.
        """

    def count_tokens(self, text: str) -> int:
        """Count the tokens of `text` alone, for length limits; engines without a tokenizer estimate them."""

    def open_episode(self, episode: str) -> None:
        """Announce a live episode (a deterministic engine gathers all live ones before each batch)."""

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Sample the next assistant turn. Raises `PolicyError` if prompt and completion exceed the context."""

    def close_episode(self, episode: str) -> None:
        """Free what the engine kept for the episode, if it knows the name."""


class OwnedPolicy(Policy, Protocol):
    """A policy with the methods of its owner; by default it has nothing to end."""

    def close(self) -> None:
        """End what belongs to the policy alone, such as processes. Twice is fine."""
        return


class TrainedPolicy(OwnedPolicy, Protocol):
    """A policy that acts with the weights of a learner; by default it shares no device and has no figures."""

    tokenizer: Any  # of transformers
    format: ChatFormat
    probes: Sequence[Completion] = ()  # what the learner is to score whenever its weights are handed over
    reads_learner_memory: bool = False  # whether `load` takes the learner's own tensors, and copies them itself

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        return self.format.encode(messages)

    def count_tokens(self, text: str) -> int:
        return self.format.count_tokens(text)

    def decode(self, token_ids: TokenIds) -> str:
        return self.format.decode(token_ids)

    def describe_tools(self, tools: Sequence[dict[str, Any]]) -> str:
        """Word functions as the model's template does in the system message; "" where it has no form that is read."""
        return self.format.describe_tools(tools)

    async def load(self, weights: Any, version: int, logprobs: Sequence[Sequence[float]] = ()) -> float:
        """Take over weights while no completion is under way.

        Args:
            weights: tensors, of a whole model all by the names of its parameters, of adapters theirs alone by the names
                of peft's files; or the name under which a server keeps them.
            version: of the weights.
            logprobs: the learner's, of the sampled tokens of each probe under these weights, in nats at the sampling
                temperature of training.

        Returns the mean absolute difference between policy and learner on the probes, in nats. Raises `PolicyError`
        where the weights are another model's, or the policy scores the probes otherwise.
        """

    async def sleep(self) -> None:
        """Leave a shared device to the learner."""
        return

    async def wake(self) -> bool:
        """Get ready to sample again after `sleep`; return whether the weights are gone, and `load` must come next."""
        return False

    def report(self) -> dict[str, float]:
        """Return figures about what was sampled since the last call; {} for none."""
        return {}


PROBE_TOKENS: Final = 16  # of each probe: enough that a wrong layer shows, and a moment's work
PROBES: Final = (  # what an episode might hold
    ("You are in a hall. A door leads north.", "I go north through the door, and look around."),
    ("You see a key. Your task is to open the chest.", "First I take the key, then I open the chest with it."),
    ("It is dark here. What do you do next?", "Let me think. I need a lamp, and the lamp is in the kitchen."),
)


def make_probes(chat: ChatFormat, context_length: int) -> list[Completion]:
    """Encode the probes as conversations of this format, cut to a context."""
    probes = []
    for observation, reply in PROBES:
        messages = [Message("user", observation)]
        prompt = chat.encode(messages)
        ids = chat.encode_reply(messages, reply)[: min(PROBE_TOKENS, max(1, context_length - len(prompt)))]
        probes.append(Completion(prompt, ids, (0.0,) * len(ids), reply))
    return probes


async def shield_until_done(coroutine: Coroutine[Any, Any, T]) -> T:
    """Shield a coroutine from cancellation, and wait for its end: a request that was sent is paid for."""
    task = asyncio.ensure_future(coroutine)
    # Of the exception that a cancelled caller leaves, asyncio would print a traceback.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise

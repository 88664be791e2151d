"""Engines of vLLM as a policy: the contract of `policies/base.py`, with weights that a learner sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trailnotes.errors import PolicyError
from trailnotes.policies.chat import ChatFormat
from trailnotes.policies.hf.engine import Endings
from trailnotes.policies.vllm.replica import Connect, Record, Replica
from trailnotes.policies.vllm.weights import Parcel, is_adapters, write_adapters, write_whole
from trailnotes.types import Completion, Message, Sampling, TokenIds

NUM_PROBES = 3
PROBE_TOKENS = 16  # of each probe: enough that a wrong layer shows, and a moment's work

Score = Callable[[Sequence[Completion]], Sequence[Sequence[float]]]
"""The learner's log-probabilities, in nats at the sampling temperature, of the sampled tokens of each completion."""


class VLLMPolicy:
    """Engines with the same weights, behind the `Policy` protocol.

    An episode begins with the engine that has the fewest, and stays with it, where its prefix is in the cache. Batches
    form as requests arrive: equal seeds give equal tokens but for the last bits of what is computed together.

    Args:
        connects: how to start or reach each engine.
        tokenizer: of transformers.
        folder: for weights on their way; it is the policy's own.
        name: a tip's author.
        context_length: tokens that prompt and completion may have together.
        end_ids: tokens that end a turn, besides those of the chat format.
        template_options: for the tokenizer's chat template.
        dtype: of the engines' weights.
        temperature: that a training samples at; the engines are held to the learner there.
        tolerance: nats, see `engine.tolerance`.
        adapters: settings of adapters that their tensors do not show (``lora_alpha``); None where all is trained.

    Raises:
        PolicyError: an engine does not start.
    """

    def __init__(  # noqa: PLR0913 - the parts, which `vllm_policy` takes from a config
        self,
        connects: Sequence[Connect],
        tokenizer: Any,
        folder: Path,
        *,
        name: str,
        context_length: int,
        end_ids: frozenset[int] = frozenset(),
        template_options: Mapping[str, Any] | None = None,
        dtype: torch.dtype = torch.float32,
        temperature: float = 1.0,
        tolerance: float = 0.05,
        adapters: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer, self.name, self.version = tokenizer, name, 0
        self.context_length = context_length
        self.format = ChatFormat(tokenizer, template_options)
        self.append_only = self.format.append_only
        self.endings = Endings(self.format.decode, self.format.end_ids | end_ids, self.format.opening)
        self.replicas = [Replica(connect, self.endings, tolerance) for connect in connects]
        self._folder, self._dtype, self._temperature, self._adapters = folder, dtype, temperature, adapters
        self._seats: dict[str, Replica | None] = {}  # of the open episodes; taken at the first request
        self._asking: set[str] = set()
        self._loading = False
        self._parcel: Parcel | None = None
        self._num_parcels = 0
        self._start()

    @property
    def num_unfinished(self) -> int:
        """Completions under way."""
        return len(self._asking)

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        """Token ids of the conversation, ready for the assistant to speak next."""
        return self.format.encode(messages)

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` alone."""
        return self.format.count_tokens(text)

    def open_episode(self, episode: str) -> None:
        """Announce a live episode. Raises `PolicyError` if one of this name is open."""
        if episode in self._seats:
            raise PolicyError(f"episode {episode!r} is open already: each live episode needs a name of its own")
        self._seats[episode] = None

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Sample the next assistant turn. An engine that is lost meanwhile is replaced, and asked again.

        Raises:
            PolicyError: prompt and completion exceed the context, the episode is not open or has a request under way,
                weights are being loaded, or an engine cannot be kept alive.
        """
        prompt_ids = self.encode(messages)
        if len(prompt_ids) + sampling.max_tokens > self.context_length:
            raise PolicyError(
                f"a prompt of {len(prompt_ids)} tokens and {sampling.max_tokens} new ones exceed the context of "
                f"{self.context_length} tokens"
            )
        if episode not in self._seats:
            raise PolicyError(f"episode {episode!r} is not open: call open_episode first")
        if episode in self._asking:
            raise PolicyError(f"episode {episode!r} has a completion under way: await it first")
        if self._loading:
            raise PolicyError("the engines take over new weights: await load before the next completion")
        self._asking.add(episode)
        try:
            return await self._seat(episode).complete(prompt_ids, sampling)
        finally:
            self._asking.discard(episode)

    def close_episode(self, episode: str) -> None:
        """Give up the episode's place. Unknown names are ignored."""
        if replica := self._seats.pop(episode, None):
            replica.num_episodes -= 1

    def begin_with(self, adapters: Mapping[str, Tensor]) -> None:
        """Take over the adapters that a run begins with, before any episode. Raises `PolicyError` as `load` does."""
        self._parcel = parcel = self._pack(adapters, self.version)
        with ThreadPoolExecutor(len(self.replicas)) as pool:
            list(pool.map(lambda replica: replica.load(parcel), self.replicas))

    async def load(self, weights: Mapping[str, Tensor], version: int, score: Score) -> float:
        """Hand the trained weights to every engine, and hold what they then say against the learner.

        Args:
            weights: a whole model's, by the names of its state dict, or adapters alone, in peft's names.
            version: that the policy then has.
            score: the learner.

        Returns:
            The largest of the engines' mean differences from the learner, in nats.

        Raises:
            PolicyError: completions are under way, an engine refuses the weights or cannot be kept alive, or it differs
                from the learner by more than the tolerance.
        """
        if self._asking or self._loading:
            raise PolicyError(f"the weights changed while {len(self._asking)} completions were under way")
        self._loading = True
        try:
            before, self._parcel = self._parcel, await asyncio.to_thread(self._pack, weights, version)
            await _of_all(asyncio.to_thread(replica.load, self._parcel) for replica in self.replicas)
            if before:
                before.path.unlink(missing_ok=True)
            self.version = version
            return await self._verify(score)
        finally:
            self._loading = False

    async def verify(self, score: Score) -> float:
        """Hold the engines against the learner as they are; for the weights that they began with. As `load` does."""
        if self._asking or self._loading:
            raise PolicyError(f"{len(self._asking)} completions are under way: verify the engines between iterations")
        self._loading = True
        try:
            return await self._verify(score)
        finally:
            self._loading = False

    def close(self) -> None:
        """End the engines that were started here, and hang up on the others. Twice is fine."""
        for replica in self.replicas:
            replica.close()
        with suppress(OSError):
            for path in self._folder.glob("parcel-*"):
                path.unlink()

    def _start(self) -> None:
        """All engines at once, since each takes its time."""
        try:
            with ThreadPoolExecutor(len(self.replicas)) as pool:
                for step in (Replica.begin, Replica.wait_until_ready):
                    list(pool.map(step, self.replicas))
        except BaseException:
            self.close()
            raise

    def _seat(self, episode: str) -> Replica:
        replica = self._seats[episode]
        if replica is None:
            replica = self._seats[episode] = min(self.replicas, key=lambda each: each.num_episodes)
            replica.num_episodes += 1
        return replica

    def _pack(self, weights: Mapping[str, Tensor], version: int) -> Parcel:
        self._num_parcels += 1
        path = self._folder / f"parcel-{self._num_parcels}.safetensors"
        if not is_adapters(weights):
            if self._adapters is not None:
                raise PolicyError("these engines were started for adapters: hand over the adapters alone")
            write_whole(weights, path, self._dtype)
            return Parcel(path, version, None)
        if self._adapters is None:
            raise PolicyError("these engines were started for a whole model: set model.lora.enabled = true")
        return Parcel(path, version, write_adapters(weights, path, self._dtype, self._adapters))

    async def _verify(self, score: Score) -> float:
        """One engine speaks, the learner says how likely that was, and all engines must say the same."""
        prompts = [self.encode([Message("user", " ".join(["x"] * (i + 1)))]) for i in range(NUM_PROBES)]
        room = min(PROBE_TOKENS, self.context_length - max(map(len, prompts)))
        samplings = [Sampling(self._temperature, max_tokens=room, seed=i) for i in range(NUM_PROBES)]
        asked = zip(prompts, samplings, strict=True)
        probes = await _of_all(self.replicas[0].complete(prompt, sampling) for prompt, sampling in asked)
        numbers = [list(map(float, row)) for row in score(probes)]
        rows = [(probe.prompt_ids + probe.token_ids, len(probe.prompt_ids)) for probe in probes]
        record = Record(rows, numbers, self._temperature)
        found = await _of_all(asyncio.to_thread(replica.check, record) for replica in self.replicas)
        return float(max(found))


async def _of_all(tasks: Any) -> Any:
    """The results of all; the first error once all have ended, so that nothing is under way after it."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results

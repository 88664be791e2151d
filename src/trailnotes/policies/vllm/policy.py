"""Engines of vLLM as a policy whose weights a learner sends."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import fsum
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from trailnotes.config.schema import Config
from trailnotes.errors import PolicyError
from trailnotes.policies.chat import ChatFormat, encode_replies
from trailnotes.policies.hf.engine import StopCondition, require_room
from trailnotes.policies.hf.policy import get_context_length
from trailnotes.policies.probes import make_probes
from trailnotes.policies.vllm.replica import Connect, ProbeRecord, Replica
from trailnotes.policies.vllm.weights import WeightFiles, write_weights
from trailnotes.types import Completion, Message, Sampling, TokenIds

T = TypeVar("T")


class VLLMPolicy:
    """Policy that samples from engines with the same weights, which `make_vllm_policy` makes; see `TrainedPolicy`.

    An episode begins with the engine that has the fewest, and stays with it, where its prefix is in the cache. Batches
    form as requests arrive: equal seeds give equal tokens but for the last bits of what is computed together. Weights
    are files in `folder`, which every engine sees under this path, and which is the policy's own.
    """

    def __init__(
        self, config: Config, connects: Sequence[Connect], tokenizer: Any, folder: Path, *, end_ids: frozenset[int],
        adapters: Mapping[str, Any] | None, sleeps: bool,
    ) -> None:  # fmt: skip
        self.tokenizer, self.name, self.version = tokenizer, config.model.path, 0
        self.context_length = min(get_context_length(config.model), config.rollout.max_context_tokens)
        self.format = ChatFormat(tokenizer, config.model.template_options)
        self.append_only = self.format.append_only
        self.endings = StopCondition(self.format.decode, self.format.end_ids | end_ids, self.format.opening)
        self.probes: Sequence[Completion] = make_probes(self.format, self.context_length)
        self.replicas = [Replica(connect, self.endings, config.engine) for connect in connects]
        self._sleeps = sleeps
        self._reported = [0, 0, 0]
        self._dtype, self._temperature = getattr(torch, config.model.dtype), config.rollout.temperature
        self._folder, self._adapters = folder, adapters
        self._assigned: dict[str, Replica | None] = {}  # to the open episodes, at their first request
        self._asking: set[str] = set()
        self._loading = False
        self._weights: WeightFiles | None = None
        try:
            self._map_replicas(Replica.start)
        except BaseException:
            self.close()
            raise

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        return self.format.encode(messages)

    def count_tokens(self, text: str) -> int:
        return self.format.count_tokens(text)

    def open_episode(self, episode: str) -> None:
        if episode in self._assigned:
            raise PolicyError(f"episode {episode!r} is open already: each live episode needs a name of its own")
        self._assigned[episode] = None

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Sample the next assistant turn. An engine that is lost meanwhile is replaced, and asked again."""
        prompt_ids = self.encode(messages)
        require_room(prompt_ids, sampling, self.context_length)
        if episode not in self._assigned:
            raise PolicyError(f"episode {episode!r} is not open: call open_episode first")
        if episode in self._asking:
            raise PolicyError(f"episode {episode!r} has a completion under way: await it first")
        if self._loading:
            raise PolicyError("the engines take over new weights: await load before the next completion")
        self._asking.add(episode)
        try:
            replica = self._assigned[episode]
            if replica is None:
                replica = self._assigned[episode] = min(self.replicas, key=lambda each: each.num_episodes)
                replica.num_episodes += 1
            return await replica.complete(prompt_ids, sampling)
        finally:
            self._asking.discard(episode)

    def close_episode(self, episode: str) -> None:
        if replica := self._assigned.pop(episode, None):
            replica.num_episodes -= 1

    async def score(self, messages: Sequence[Message], replies: Sequence[str | TokenIds]) -> list[float]:
        """Mean log-probability of the tokens of each reply, at temperature 1; see `HFPolicy.score`."""
        prompt, rows = encode_replies(self.format, messages, replies, self.context_length)
        replica = min(self.replicas, key=lambda each: each.num_episodes)
        asked = [((*prompt, *row), len(prompt)) for row in rows]
        return [fsum(found) / len(found) for found in await asyncio.to_thread(replica.score, asked, 1.0)]

    def load_initial_weights(self, weights: Mapping[str, Tensor], said: Sequence[Sequence[float]] = ()) -> None:
        """Load weights that will not be trained. As `load`, but `said` at temperature 1, and it blocks."""
        self._load_all(weights, self.version, said, 1.0)

    async def load(self, weights: Mapping[str, Tensor], version: int, said: Sequence[Sequence[float]] = ()) -> float:
        """Hand weights to every engine, and compare its probe log-probabilities with those that the learner `said`."""
        if self._asking or self._loading:
            raise PolicyError(f"the weights changed while {len(self._asking)} completions were under way")
        self._loading = True
        try:
            return await asyncio.to_thread(self._load_all, weights, version, said, self._temperature)
        finally:
            self._loading = False

    async def sleep(self) -> None:
        if self._sleeps:
            await asyncio.to_thread(self._map_replicas, lambda replica: replica.call("/sleep"))

    async def wake(self) -> None:
        if self._sleeps:
            torch.cuda.empty_cache()  # where there is none, nothing happens
            await asyncio.to_thread(self._map_replicas, lambda replica: replica.call("/wake_up"))

    def report(self) -> dict[str, float]:
        """Count engines started anew since the last call, and the share of prompt tokens found in their caches."""
        names = ("num_rebuilds", "num_read", "num_cached")
        counts = [sum(getattr(each, name) for each in self.replicas) for name in names]
        rebuilds, read, cached = (now - then for now, then in zip(counts, self._reported, strict=True))
        self._reported = counts
        return {"rebuilds": float(rebuilds), "cached": cached / read if read else 0.0}

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _load_all(
        self, weights: Mapping[str, Tensor], version: int, said: Sequence[Sequence[float]], temperature: float
    ) -> float:
        rows = [(probe.prompt_ids + probe.token_ids, len(probe.prompt_ids)) for probe in self.probes]
        record = ProbeRecord(rows, said, temperature) if said else None
        folder = self._folder / f"weights-{secrets.token_hex(8)}"
        before, files = self._weights, write_weights(weights, folder, version, self._dtype, self._adapters)
        self._weights = files
        distances = self._map_replicas(lambda replica: replica.load(files, record))
        if before:
            shutil.rmtree(before.folder, ignore_errors=True)
        self.version = version
        return max(distances)

    def _map_replicas(self, ask: Callable[[Replica], T]) -> list[T]:
        """Ask all engines at once; raise the first error once all have answered."""
        with ThreadPoolExecutor(len(self.replicas)) as pool:
            try:
                return list(pool.map(ask, self.replicas))
            except KeyboardInterrupt:  # or the threads would be waited for
                self.close()
                raise

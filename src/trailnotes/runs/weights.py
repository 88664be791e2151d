"""Weights on their way from the learner to the policy, and turns of the policy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from trailnotes.config.schema import Config
from trailnotes.learner.base import ModelLearner
from trailnotes.learner.samples import anchor_sample
from trailnotes.policies.base import Policy, TrainedPolicy


def has_shared_weights(config: Config) -> bool:
    """Return whether the policy samples from the very model that the learner changes."""
    return config.engine.name == "hf" and not (config.rollout.max_async_iterations or config.is_hosted)


class WeightSnapshot(NamedTuple):
    """Weights of the learner for a policy with weights of its own; see `TrainedPolicy.load`."""

    weights: Any  # see `TrainedPolicy.load`
    version: int
    probe_logprobs: Sequence[Sequence[float]]


class WeightSync:
    """Hand-over of the learner's weights to the policy, between whose turns they may change."""

    def __init__(self, config: Config, policy: TrainedPolicy, learner: ModelLearner, author: Policy | None) -> None:
        self.version = 0  # how often the learner's weights were updated
        self._policy: Any = policy
        self._learner: Any = learner
        self._author = author
        self._shared, self._policy_writes = has_shared_weights(config), not config.has_frozen_author
        self._turn = asyncio.Lock()
        self._newest = self.snapshot(0)
        self._loaded: WeightSnapshot | None = None  # by the policy
        self._initial = self._newest if config.has_frozen_author and author is None else None
        self._mismatch = self._seconds = 0.0

    def snapshot(self, version: int) -> WeightSnapshot | None:
        """Copy the learner's weights and its log-probabilities of the policy's probes; None where they are shared."""
        if self._shared:
            return None
        rows = [anchor_sample(probe, "tip", 0.0) for probe in self._policy.probes]
        logprobs = [
            [logprob for logprob, scored in zip(values, row.loss_mask, strict=True) if scored]
            for row, values in zip(rows, self._learner.logprobs(rows) if rows else (), strict=True)
        ]
        return WeightSnapshot(self._learner.weights(), version, logprobs)

    def publish(self, version: int, learned: WeightSnapshot | None) -> None:
        """Make `learned`, of `snapshot`, the weights that the policy samples from at its next turn."""
        self.version, self._newest = version, learned
        if self._shared:
            self._policy.bump_version()
            self._policy.version = version

    async def acquire(self) -> None:
        """Wait for the policy's turn, and load the newest weights into it."""
        await self._turn.acquire()
        began, newest = time.monotonic(), self._newest
        try:
            await self._policy.wake()
            if newest is not None and self._loaded is not newest:
                self._mismatch = await self._policy.load(*newest)
                self._loaded = newest
        except BaseException:  # others may wait for the turn, and the failure would wait for them
            self.release()
            raise
        self._seconds += time.monotonic() - began

    def release(self) -> None:
        self._turn.release()

    @asynccontextmanager
    async def use_author(self) -> AsyncIterator[Policy]:
        """Give the model of `algorithm.author`: a model of its own, or the policy with its initial weights."""
        policy = self._policy
        if self._policy_writes or self._author is not None:
            yield self._author or policy
        elif self._shared:
            version = policy.version
            with self._learner.use_initial_adapters():
                policy.reset_cache()
                policy.version = 0
                try:
                    yield policy
                finally:
                    policy.reset_cache()
                    policy.version = version
        else:
            assert self._initial is not None
            assert self._loaded is not None
            await policy.load(*self._initial)
            try:
                yield policy
            finally:
                await policy.load(*self._loaded)

    def pop_metrics(self) -> dict[str, float]:
        """Return the seconds of the syncs since the last call, and the last mismatch on the probes, in nats."""
        seconds, self._seconds = self._seconds, 0.0
        if self._shared:
            return {}
        return {"seconds/sync": seconds} | ({"engine/sync": self._mismatch} if self._policy.probes else {})

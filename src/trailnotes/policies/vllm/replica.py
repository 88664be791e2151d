"""One engine for as long as a run lasts, started anew with the same weights when it is lost."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from trailnotes.config.model_schema import EngineConfig
from trailnotes.errors import PolicyError
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.vllm.client import EngineClient, EngineLostError
from trailnotes.policies.vllm.server import EngineServer
from trailnotes.policies.vllm.weights import WeightFiles
from trailnotes.types import Completion, Sampling, TokenIds

logger = logging.getLogger(__name__)

MAX_REBUILDS = 3  # in a row, without an answer in between

Connect = Callable[[], EngineServer]  # starts an engine, or finds out where it listens


class ProbeRecord(NamedTuple):
    """Tokens scored by the learner, to which an engine with the same weights must give the same log-probabilities."""

    rows: Sequence[tuple[TokenIds, int]]  # ids, and from where on they are scored
    logprobs: Sequence[Sequence[float]]  # nats, of the scored ones
    temperature: float


class Replica:
    """An engine that is started anew whenever it is lost; `connect` starts or finds it."""

    def __init__(self, connect: Connect, endings: StopCondition, engine: EngineConfig) -> None:
        self.num_episodes = 0  # that stay with it
        self.num_rebuilds = 0  # ever
        self.num_read = self.num_cached = 0  # tokens of prompts, and those of them that were in the cache; ever
        self._connect, self._endings, self._engine = connect, endings, engine
        self._weights: WeightFiles | None = None
        self._record: ProbeRecord | None = None
        self._client: EngineClient | None = None
        self._successor: EngineClient | None = None
        self._closed = False
        self._rebuilds_in_a_row = 0
        self._guard = threading.Lock()

    @property
    def server(self) -> EngineServer | None:
        """The server that is asked now."""
        return self._client.server if self._client else None

    def start(self) -> None:
        """Start the engine, and block until it has answered. Raises `PolicyError` where it does not start."""
        self._client = EngineClient(self._connect(), self._engine)
        try:
            self._client.wait_until_ready()
            self._client.score([((1, 2, 3), 2)], 1.0)  # a model that starts may still fail at its first request
        except EngineLostError as error:
            raise PolicyError(f"{error}") from error

    async def complete(self, prompt_ids: TokenIds, sampling: Sampling) -> Completion:
        """Sample a completion; if the engine is lost meanwhile, once more from the start.

        Raises `PolicyError` where it refuses, its numbers are not finite, or it cannot be kept alive.
        """
        while True:
            client = self._client
            if client is None or client.failure:
                client = await asyncio.to_thread(self._ensure_engine)
            with suppress(EngineLostError):
                completion, cached = await client.complete(prompt_ids, sampling, self._endings)
                self._rebuilds_in_a_row = 0
                if cached >= 0:
                    self.num_read += len(prompt_ids)
                    self.num_cached += cached
                return completion

    def load(self, weights: WeightFiles, record: ProbeRecord | None) -> float:
        """Load weights into the engine, and compare it, and every later one, with the learner's record. Blocks.

        Returns the mean difference in nats, 0 without a record. Raises as `complete`, or where it is too large.
        """
        with self._guard:  # an engine that another thread is starting has the old ones when this goes on
            self._weights, self._record = weights, record
        while True:
            client = self._ensure_engine()
            with suppress(EngineLostError):
                if client.weights is not weights:  # one that was started from now on has them already
                    client.load(weights)
                distance = self._check_probes(client, record) if record else 0.0
                self._rebuilds_in_a_row = 0
                return distance

    def score(self, rows: Sequence[tuple[TokenIds, int]], temperature: float) -> list[list[float]]:
        """Score the tokens of each row from a place on, in nats. Raises as `complete` does. Blocks."""
        while True:
            client = self._ensure_engine()
            with suppress(EngineLostError):
                return client.score(rows, temperature)

    def call(self, path: str) -> None:
        """Have the engine sleep or wake. One that is lost is replaced when it is needed, and awake. Blocks."""
        if self._client and not self._client.failure:
            with suppress(EngineLostError):
                self._client.call(path)

    def close(self) -> None:
        """End the engine, and all requests that wait for it."""
        self._closed = True
        for client in (self._client, self._successor):
            if client:
                client.close()

    def _ensure_engine(self) -> EngineClient:
        """Return an engine with the current weights, which may have to be started first. Blocks."""
        with self._guard:
            client = self._client
            while client is None or client.failure:
                failure = client.failure if client else "it was never started"
                if self._closed:
                    raise PolicyError(f"{failure}: the engines were closed")
                if self._rebuilds_in_a_row >= MAX_REBUILDS:
                    raise PolicyError(f"{failure} (it was started anew {MAX_REBUILDS} times in a row, in vain)")
                logger.warning("%s: it is started anew", failure)
                self._rebuilds_in_a_row += 1
                self.num_rebuilds += 1
                self._successor = client = EngineClient(self._connect(), self._engine)
                if self._closed:  # meanwhile
                    client.close()
                try:
                    client.wait_until_ready()
                    if self._weights:
                        client.load(self._weights)
                    if self._record:
                        self._check_probes(client, self._record)
                except EngineLostError:
                    pass  # the next round starts another
                except PolicyError:
                    client.close()
                    raise
                self._client, self._successor = client, None  # only now: until it has the weights, nobody may ask it
            return client

    def _check_probes(self, client: EngineClient, record: ProbeRecord) -> float:
        """Return the mean absolute difference in nats over all scored tokens. Raises `PolicyError` above tolerance."""
        scores = client.score(record.rows, record.temperature)
        pairs = zip(chain.from_iterable(record.logprobs), chain.from_iterable(scores), strict=True)
        distances = [abs(expected - score) for expected, score in pairs]
        distance, tolerance = math.fsum(distances) / len(distances), self._engine.max_logprob_mismatch
        if not distance <= tolerance:  # not a number, too
            version = self._weights.version if self._weights else "at its start"
            raise PolicyError(
                f"{client.server.label} has other weights than the learner (version {version}): its log-probabilities "
                f"are {distance:.3g} nats off, on average over {len(distances)} tokens, and "
                f'engine.max_logprob_mismatch = {tolerance:g}; start it anew, or set engine.name = "hf"'
            )
        return distance

"""One engine for as long as a run lasts: when its process is gone, another takes its place, with the same weights."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from trailnotes.errors import PolicyError
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.vllm.link import CompletionUpdate, EngineConnection, EngineLostError
from trailnotes.policies.vllm.weights import WeightFile
from trailnotes.types import Completion, Sampling, TokenIds

logger = logging.getLogger(__name__)

MAX_REBUILDS = 3  # in a row, without an answer in between
MAX_SEED = 1 << 63  # vLLM hands seeds to torch

Connect = Callable[
    [bool], EngineConnection
]  # starts or reaches an engine; the flag: it is to take the place of a lost one


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """Tokens that the learner has scored: what an engine with the same weights must say of them."""

    rows: Sequence[tuple[TokenIds, int]]  # ids, and from where on they are scored
    logprobs: Sequence[Sequence[float]]  # nats, of the scored ones
    temperature: float

    def distance(self, found: Sequence[Sequence[float]]) -> float:
        """Mean absolute difference in nats over all scored tokens; not finite where one is not."""
        pairs = [
            pair
            for wanted, got in zip(self.logprobs, found, strict=True)
            for pair in zip(wanted, got, strict=True)
        ]  # fmt: skip
        return math.fsum(abs(wanted - got) for wanted, got in pairs) / len(pairs)


class Replica:
    """An engine with all weights.

    Args:
        connect: starts or reaches it.
        endings: where completions end.
        tolerance: nats, see `engine.max_logprob_mismatch`.
    """

    def __init__(self, connect: Connect, endings: StopCondition, tolerance: float) -> None:
        self.num_episodes = 0  # that stay with it
        self.num_rebuilds = 0  # ever
        self.num_read = self.num_cached = 0  # tokens of prompts, and those of them that were in the cache; ever
        self._connect, self._endings, self._tolerance = connect, endings, tolerance
        self._parcel: WeightFile | None = None
        self._record: ProbeRecord | None = None
        self._given: tuple[EngineConnection, WeightFile] | None = None  # who was last sent weights, and which
        self._link: EngineConnection | None = None
        self._coming: EngineConnection | None = None  # what is to take its place
        self._closed = False
        self._in_a_row = 0
        self._guard = threading.Lock()

    @property
    def about(self) -> dict[str, Any]:
        """What the engine says of itself."""
        return self._link.about if self._link else {}

    def start_engine(self) -> None:
        """Start the engine, and do not wait for it."""
        self._link = self._connect(False)

    def wait_until_ready(self) -> None:
        """Block until the first engine can be asked. Raises `PolicyError` where it does not start."""
        assert self._link is not None
        try:
            self._link.wait_until_ready()
        except EngineLostError as error:
            raise PolicyError(f"{error}") from error

    async def complete(self, prompt_ids: TokenIds, sampling: Sampling) -> Completion:
        """Sample a completion; if the engine is lost meanwhile, once more from the start.

        Raises:
            PolicyError: the engine refuses, its numbers are not finite, or it cannot be kept alive.
        """
        while True:
            link = self._link
            if link is None or link.failure:
                link = await asyncio.to_thread(self._ensure_engine)
            try:
                completion = await self._generate_once(link, prompt_ids, sampling)
            except EngineLostError:
                continue
            self._in_a_row = 0
            return completion

    def load(self, parcel: WeightFile, record: ProbeRecord | None) -> float:
        """Take over weights, whatever it takes, and hold the engine, and every later one, to what the learner says.

        Returns:
            How far the engine's numbers are from the learner's, in nats; 0 without a record.

        Raises:
            PolicyError: further than the tolerance; or as `complete` does. Blocks.
        """
        with self._guard:  # an engine that another thread is building has been sent the old ones when this goes on
            self._parcel, self._record = parcel, record
        while True:
            link = self._ensure_engine()
            try:
                if self._given != (link, parcel):  # one that was built from now on has them already
                    self._send_weights(link, parcel)
                distance = self._check_probes(link, record) if record else 0.0
            except EngineLostError:
                continue
            self._in_a_row = 0
            return distance

    def score(self, rows: Sequence[tuple[TokenIds, int]], temperature: float) -> list[list[float]]:
        """Log-probabilities in nats of the tokens of each row from a place on. Raises as `complete` does. Blocks."""
        while True:
            link = self._ensure_engine()
            with suppress(EngineLostError):
                return _score_rows(link, rows, temperature)

    def set_sleep_state(self, name: Literal["sleep", "wake"]) -> None:
        """Put the engine to sleep, or wake it. One that is lost is replaced when it is needed, and awake. Blocks."""
        if self._link and not self._link.failure:
            with suppress(EngineLostError):
                self._link.call(name, None)

    def close(self) -> None:
        """End the engine, and whatever waits for it."""
        self._closed = True
        for link in (self._link, self._coming):
            if link:
                link.close()

    async def _generate_once(self, link: EngineConnection, prompt_ids: TokenIds, sampling: Sampling) -> Completion:
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[CompletionUpdate] = asyncio.Queue()

        def listen(item: CompletionUpdate) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(news.put_nowait, item)

        number = link.generate(prompt_ids, _build_request(sampling, self._endings), listen)
        ids: list[int] = []
        logprobs: list[float] = []
        cached = 0
        try:
            while True:
                item = await news.get()
                if item.error:
                    raise item.error
                cached = max(cached, item.cached)
                for token, logprob in zip(item.token_ids, item.logprobs, strict=True):
                    if not math.isfinite(logprob):
                        raise PolicyError("the engine's log-probabilities are not finite: its weights broke")
                    ids.append(token)
                    logprobs.append(logprob)
                    if end := self._endings.find_end(ids, sampling):
                        self.num_read += len(prompt_ids)
                        self.num_cached += cached
                        return Completion(prompt_ids, tuple(ids), tuple(logprobs), *end)
                if item.reason:
                    raise PolicyError(f"{link.label} ended a completion after {len(ids)} tokens ({item.reason})")
        finally:
            link.abort(number)

    def _ensure_engine(self) -> EngineConnection:
        """An engine with the current weights, which may have to be built first. Blocks."""
        with self._guard:
            link = self._link
            while link is None or link.failure:
                failure = link.failure if link else "it was never started"
                if self._closed:
                    raise PolicyError(f"{failure}: the engines were closed")
                if self._in_a_row >= MAX_REBUILDS:
                    raise PolicyError(f"{failure} (it was started anew {MAX_REBUILDS} times in a row, in vain)")
                logger.warning("%s: it is started anew", failure)
                self._in_a_row += 1
                self.num_rebuilds += 1
                self._coming = link = self._connect(True)
                if self._closed:  # meanwhile
                    link.close()
                with suppress(EngineLostError):
                    self._initialize_engine(link)
                self._link, self._coming = link, None  # only now: until it has the weights, nobody may ask it
            return link

    def _initialize_engine(self, link: EngineConnection) -> None:
        try:
            link.wait_until_ready()
            if self._parcel:
                self._send_weights(link, self._parcel)
            if self._record:
                self._check_probes(link, self._record)
        except PolicyError:
            link.close()
            raise

    def _send_weights(self, link: EngineConnection, parcel: WeightFile) -> None:
        if link.is_local:
            link.call("load", {**parcel.load_argument, "path": str(parcel.path)})
        else:
            link.call("load", parcel.load_argument, parcel.path)
        self._given = link, parcel

    def _check_probes(self, link: EngineConnection, record: ProbeRecord) -> float:
        distance = record.distance(_score_rows(link, record.rows, record.temperature))
        if not distance <= self._tolerance:
            version = self._parcel.version if self._parcel else "at its start"
            raise PolicyError(
                f"{link.label} has other weights than the learner (version {version}): its log-probabilities are "
                f"{distance:.3g} nats off, on average over {sum(map(len, record.logprobs))} tokens, and "
                f'engine.max_logprob_mismatch = {self._tolerance:g}; start it anew, or set engine.name = "hf"'
            )
        return distance


def _score_rows(link: EngineConnection, rows: Sequence[tuple[TokenIds, int]], temperature: float) -> list[list[float]]:
    asked = {"rows": [[list(ids), start] for ids, start in rows], "temperature": temperature}
    found: list[list[float]] = link.call("score", asked)
    return found


def _build_request(sampling: Sampling, endings: StopCondition) -> dict[str, Any]:
    """What vLLM is told. Stop texts are looked for here, as every engine of ours does: so it must tell each token."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed % MAX_SEED,
        "stop_token_ids": sorted(endings.end_ids),
        "stream": bool(sampling.stop),
    }

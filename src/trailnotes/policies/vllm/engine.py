"""One engine for as long as a run lasts: requests to its server, and another server when it is lost."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx2

from trailnotes.config.model_schema import ENGINE_KEY_VARIABLE, EngineConfig
from trailnotes.errors import PolicyError
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.vllm.server import EngineServer
from trailnotes.policies.vllm.worker.engine_worker import export_tensor
from trailnotes.storage.files import parse_json
from trailnotes.types import Completion, Sampling, TokenIds

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.2  # between two looks at a server that starts
HEALTH_TIMEOUT = 10.0  # seconds for the answer
CHUNK_TOKENS = 16  # that a completion without stop texts may bring at a time
MAX_SCORED = 64  # tokens that are scored by one request; vLLM takes 128
MAX_SEED = 1 << 63  # vLLM hands seeds to torch
COMPLETIONS = "/v1/completions"
MAX_REBUILDS = 3  # in a row, without an answer in between

T = TypeVar("T")
Connect = Callable[[], EngineServer]  # starts an engine, or finds out where it listens

logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every request


class WeightFiles(NamedTuple):
    """Weights of one version, as files that engines can read, or as tensors of this process."""

    folder: Path  # its name is that of adapters in the engine, and salt of the prefix cache: no two have the same
    version: int
    is_adapters: bool
    tensors: Mapping[str, Any] | None = None  # in place of files


class EngineLostError(Exception):
    """Loss of an engine; the text says how it ended."""


class EngineClient:
    """Client of one engine, which may be used from any thread and event loop; `server` ends with it."""

    def __init__(self, server: EngineServer, engine: EngineConfig) -> None:
        self.server = server
        self.failure = ""  # why it is lost; "" while it lives
        self.weights: WeightFiles | None = None  # those that it was given
        self._engine = engine
        self._progressed_at = time.monotonic()
        self._guard = threading.Lock()
        self._watch: socket.socket | None = None  # a connection that ends with a server elsewhere
        key = os.environ.get(ENGINE_KEY_VARIABLE, "")
        common: dict[str, Any] = {"base_url": server.url, "timeout": engine.timeout, "trust_env": False}
        common["headers"] = {"Authorization": f"Bearer {key}"} if key else {}
        # No connection is kept, since it would belong to one event loop.
        transport: dict[str, Any] = {"uds": server.socket_path, "limits": httpx2.Limits(max_keepalive_connections=0)}
        self._http = httpx2.Client(transport=httpx2.HTTPTransport(**transport), **common)
        self._async = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(**transport), **common)

    def wait_until_ready(self) -> None:
        """Block until the engine can be asked. Raises `EngineLostError` where it ends, or takes too long."""
        limit, start = self._engine.start_timeout, time.monotonic()
        while not self._is_healthy():
            if self.failure or self.server.has_ended:
                raise self._lose("")
            if time.monotonic() > start + limit:
                raise self._lose(f"did not start within engine.start_timeout = {limit:g} s")
            time.sleep(POLL_SECONDS)
        if self.server.process is None:
            url = urlsplit(self.server.url)
            try:
                self._watch = socket.create_connection((url.hostname or "", url.port or 80), HEALTH_TIMEOUT)
            except OSError:
                raise self._lose("") from None
            self._watch.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._watch.setblocking(False)

    async def complete(
        self, prompt_ids: TokenIds, sampling: Sampling, endings: StopCondition
    ) -> tuple[Completion, int]:
        """Sample a completion; return it, and how many prompt tokens were cached (-1: unknown, since it was cut short).

        Raises `PolicyError` where the engine refuses, or its numbers are not finite, and `EngineLostError` where it is
        lost, or this request has waited for others and must be repeated.
        """
        body = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
        body |= {"prompt": list(prompt_ids), "logprobs": 0, "seed": sampling.seed % MAX_SEED}
        body |= {"stop_token_ids": sorted(endings.end_ids), "stream": True, "stream_options": {"include_usage": True}}
        body["stream_interval"] = 1 if sampling.stop else CHUNK_TOKENS  # stop texts are looked for on this side
        try:
            async with self._async.stream("POST", COMPLETIONS, json=self._make_request(body)) as response:
                if response.is_error:
                    text = (await response.aread()).decode(errors="replace")
                    raise await asyncio.to_thread(self._refuse, response.status_code, text)
                completion = await self._read_completion(response, prompt_ids, sampling, endings)
        except httpx2.ReadTimeout:
            if time.monotonic() - self._progressed_at < self._engine.timeout:
                raise EngineLostError("other requests took all of the engine's time") from None
            reason = f"hangs: no token for {self._engine.timeout:g} s"
            raise await asyncio.to_thread(self._lose, reason) from None
        except httpx2.TransportError:
            raise await asyncio.to_thread(self._lose, "") from None
        self._require_same_server()
        return completion

    async def _read_completion(
        self, response: httpx2.Response, prompt_ids: TokenIds, sampling: Sampling, endings: StopCondition
    ) -> tuple[Completion, int]:
        ids: list[int] = []
        logprobs: list[float] = []
        completion: Completion | None = None
        reason = ""
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            self._progressed_at = time.monotonic()
            event = parse_json(line.removeprefix("data: "))
            if "error" in event:
                raise await asyncio.to_thread(self._refuse, 500, json.dumps(event))
            for choice in event["choices"]:
                reason = choice["finish_reason"] or reason
                for token, logprob in () if completion else _read_tokens(choice):
                    ids.append(token)
                    logprobs.append(logprob)
                    if end := endings.find_end(ids, sampling):
                        completion = Completion(prompt_ids, tuple(ids), tuple(logprobs), *end)
                        break
            if completion and not reason:
                return completion, -1
            if completion and (usage := event.get("usage")):
                return completion, (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if completion:
            return completion, -1
        raise await asyncio.to_thread(self._refuse, 500, f"it ended a completion too early ({reason})")

    def score(self, rows: Sequence[tuple[TokenIds, int]], temperature: float) -> list[list[float]]:
        """Score the tokens of each row from a place on, in nats, as the sampler does. Raises as `call`."""
        places = [(number, place) for number, (ids, start) in enumerate(rows) for place in range(start, len(ids))]
        scores: list[list[float]] = [[] for _ in rows]
        for first in range(0, len(places), MAX_SCORED):
            part = places[first : first + MAX_SCORED]
            targets = [rows[number][0][place] for number, place in part]
            prompts = [list(rows[number][0][:place]) for number, place in part]
            body = {"prompt": prompts, "max_tokens": 1, "temperature": temperature, "seed": 0}
            body |= {"logprobs": 1, "logprob_token_ids": sorted(set(targets))}
            choices = self.call(COMPLETIONS, self._make_request(body))["choices"]
            for (number, _), target, choice in zip(part, targets, choices, strict=True):
                scores[number].append(choice["logprobs"]["top_logprobs"][0][f"token_id:{target}"])
        return scores

    def load(self, weights: WeightFiles) -> None:
        """Load weights from their folder, or from this process's memory. Raises as `call`."""
        if weights.is_adapters:
            self.call("/v1/load_lora_adapter", {"lora_name": weights.folder.name, "lora_path": str(weights.folder)})
            if self.weights:
                self.call("/v1/unload_lora_adapter", {"lora_name": self.weights.folder.name})
        else:
            try:
                exported = [export_tensor(*item) for item in (weights.tensors or {}).items()]
            except RuntimeError as error:
                raise PolicyError(f"the learner's weights: {error}; set engine.shared_card = false") from error
            self.call("/pause")  # which also empties the prefix cache
            self.call("/collective_rpc", {"method": "replace_weights", "args": [str(weights.folder), exported]})
            self.call("/resume")
        self.weights = weights

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask by POST, and block until the answer comes; return its JSON, None where it is none.

        Raises `PolicyError` where the engine refuses, and `EngineLostError` where it is lost.
        """
        if not self.server.is_listening:
            raise self._lose("")
        try:
            response = self._http.post(path, json={} if body is None else body)
        except httpx2.TimeoutException:
            raise self._lose(f"did not answer {path} within {self._engine.timeout:g} s") from None
        except httpx2.TransportError:
            raise self._lose("") from None
        if response.is_error:
            raise self._refuse(response.status_code, response.text, path)
        self._require_same_server()
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return parse_json(response.content) if is_json else None

    def close(self) -> None:
        """End an engine that is our child process, and leave another alone. Twice is fine."""
        self._lose("was closed")

    def _make_request(self, body: dict[str, Any]) -> dict[str, Any]:
        """Complete a request: token ids come back, only our stop ids end it, and it uses the newest weights."""
        body = {"return_token_ids": True, "return_tokens_as_token_ids": True, "ignore_eos": True, **body}
        if self.weights:
            body["cache_salt"] = self.weights.folder.name  # so that no key of other weights is ever used
            if self.weights.is_adapters:
                body["model"] = self.weights.folder.name
        return body

    def _is_healthy(self) -> bool:
        try:
            return self.server.is_listening and self._http.get("/health", timeout=HEALTH_TIMEOUT).is_success
        except httpx2.TransportError:
            return False

    def _require_same_server(self) -> None:
        """Raise `EngineLostError` where another server has taken the place of ours, whose weights are others."""
        try:
            if self._watch is None or self._watch.recv(1):
                return
        except BlockingIOError:  # it is open
            return
        except OSError:
            pass
        raise self._lose("was replaced by another")

    def _refuse(self, status: int, text: str, path: str = "") -> Exception:
        """Return the error for a refusal; another where the engine behind the server is lost."""
        if status >= 500 and not self._is_healthy():
            return self._lose("")
        if status == 404:
            text = f"its server has no {path}: start it by trailnotes engine serve"
        with suppress(ValueError, LookupError, TypeError):  # vLLM's own message
            text = json.loads(text)["error"]["message"]
        return PolicyError(f"{self.server.label}: {' '.join(str(text).split())[:600]}")

    def _lose(self, reason: str) -> EngineLostError:
        with self._guard:
            if not self.failure:
                self.failure = f"{self.server.label} {self.server.close(reason)}"
                if self._watch:
                    self._watch.close()
        return EngineLostError(self.failure)


def _read_tokens(choice: dict[str, Any]) -> Iterator[tuple[int, float]]:
    """Read the newest tokens of a completion, with their log-probabilities; the last event may have none."""
    tokens = choice["token_ids"] or ()
    for token, logprob in zip(tokens, choice["logprobs"]["token_logprobs"] if tokens else (), strict=True):
        if logprob is None or not math.isfinite(logprob):
            raise PolicyError("the engine's log-probabilities are not finite: its weights broke")
        yield token, logprob


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
        self.client: EngineClient | None = None
        self._successor: EngineClient | None = None
        self._closed = False
        self._rebuilds_in_a_row = 0
        self._guard = threading.Lock()

    def start(self) -> None:
        """Start the engine, and block until it has answered. Raises `PolicyError` where it does not start."""
        self.client = EngineClient(self._connect(), self._engine)
        try:
            self.client.wait_until_ready()
            self.client.score([((1, 2, 3), 2)], 1.0)  # a model that starts may still fail at its first request
        except EngineLostError as error:
            raise PolicyError(f"{error}") from error

    async def complete(self, prompt_ids: TokenIds, sampling: Sampling) -> Completion:
        """Sample a completion; if the engine is lost meanwhile, once more from the start.

        Raises `PolicyError` where it refuses, its numbers are not finite, or it cannot be kept alive.
        """
        while True:
            client = self.client
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

        def load(client: EngineClient) -> float:
            if client.weights is not weights:  # one that was started from now on has them already
                client.load(weights)
            distance = self._check_probes(client, record) if record else 0.0
            self._rebuilds_in_a_row = 0
            return distance

        return self.ask(load)

    def ask(self, question: Callable[[EngineClient], T]) -> T:
        """Ask the engine, and each one that has to replace it meanwhile. Raises as `complete`. Blocks."""
        while True:
            client = self._ensure_engine()
            with suppress(EngineLostError):
                return question(client)

    def call(self, path: str) -> None:
        """Have the engine sleep or wake. One that is lost is replaced when it is needed, and awake. Blocks."""
        if self.client and not self.client.failure:
            with suppress(EngineLostError):
                self.client.call(path)

    def close(self) -> None:
        """End the engine, and all requests that wait for it."""
        self._closed = True
        for client in (self.client, self._successor):
            if client:
                client.close()

    def _ensure_engine(self) -> EngineClient:
        """Return an engine with the current weights, which may have to be started first. Blocks."""
        with self._guard:
            client = self.client
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
                self.client, self._successor = client, None  # only now: until it has the weights, nobody may ask it
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

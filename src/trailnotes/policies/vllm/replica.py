"""One engine for as long as a run lasts, rebuilt with the same weights when it is lost, and the files of weights."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from trailnotes.errors import PolicyError
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.vllm.link import CompletionUpdate, EngineConnection, EngineLostError
from trailnotes.types import Completion, Sampling, TokenIds

DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_ADAPTER = re.compile(r"\.(\w+)\.lora_([AB])\.(?:\w+\.)?weight$")  # module, side, and the adapters' name


@dataclass(frozen=True, slots=True)
class WeightFile:
    """Weights of one version, ready to be sent."""

    path: Path
    version: int
    adapters: Mapping[str, Any] | None  # adapter_config.json; None for a whole model

    @property
    def load_argument(self) -> dict[str, Any]:
        """Facts about the file that an engine needs."""
        return {"version": self.version, "adapters": self.adapters and dict(self.adapters)}


def is_adapters(weights: Mapping[str, Tensor]) -> bool:
    """Return whether these are adapters in peft's names, rather than a whole model.

    Raises:
        PolicyError: they are something of both, or nothing.
    """
    found = sum(_ADAPTER.search(name) is not None for name in weights)
    if not weights or 0 < found < len(weights):
        raise PolicyError(
            f"{found} of {len(weights)} tensors are adapters by their names: hand over a whole model, or adapters alone"
        )
    return bool(found)


def write_full_model(weights: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> None:
    """Write all weights of a model, by the names of its state dict; tied weights are written once."""
    unique: dict[str, Tensor] = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if place not in seen or not tensor.data_ptr():
            unique[name] = tensor
        seen.add(place)
    _write_safetensors(unique, path, dtype)


def write_adapters(weights: Mapping[str, Tensor], path: Path, dtype: torch.dtype, extra: Mapping[str, Any]) -> Any:
    """Write adapters, with or without the name that peft gives them in a live model (``default``).

    Args:
        weights: by peft's names.
        path: of the file.
        dtype: of the engine.
        extra: settings of the adapters that the weights do not show, ``lora_alpha`` among them.

    Returns:
        Their ``adapter_config.json``.

    Raises:
        PolicyError: their ranks differ, which one setting cannot say.
    """
    modules: set[str] = set()
    ranks: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        found = _ADAPTER.search(name)
        assert found is not None
        modules.add(found[1])
        ranks.add(tensor.shape[0 if found[2] == "A" else 1])
        plain[f"{name[: found.start()]}.{found[1]}.lora_{found[2]}.weight"] = tensor
    if len(ranks) != 1:
        raise PolicyError(f"the adapters have ranks {sorted(ranks)}: vLLM is given adapters of one rank alone")
    _write_safetensors(plain, path, dtype)
    own = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none"}
    return {**own, **extra, "r": ranks.pop(), "target_modules": sorted(modules)}


def _write_safetensors(weights: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in weights.items():
        start, end = end, end + tensor.numel() * dtype.itemsize
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in weights.values():
                whole = tensor.detach().to("cpu", dtype).contiguous()
                file.write(whole.view(-1).view(torch.uint8).numpy().data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise PolicyError(f"the weights for the engine cannot be written to {path.parent}: {error.strerror}") from error


logger = logging.getLogger(__name__)

MAX_REBUILDS = 3  # in a row, without an answer in between
MAX_SEED = 1 << 63  # vLLM hands seeds to torch

Connect = Callable[[bool], EngineConnection]  # starts or reaches an engine; the flag: it replaces a lost one


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """Tokens scored by the learner, to which an engine with the same weights must give the same log-probabilities."""

    rows: Sequence[tuple[TokenIds, int]]  # ids, and from where on they are scored
    logprobs: Sequence[Sequence[float]]  # nats, of the scored ones
    temperature: float

    def distance(self, found: Sequence[Sequence[float]]) -> float:
        """Compute the mean absolute difference in nats over all scored tokens; not finite where one is not."""
        pairs = zip(chain.from_iterable(self.logprobs), chain.from_iterable(found), strict=True)
        distances = [abs(wanted - got) for wanted, got in pairs]
        return math.fsum(distances) / len(distances)


class Replica:
    """An engine that is rebuilt whenever it is lost.

    `connect` starts or reaches it, and `tolerance` is in nats, see `engine.max_logprob_mismatch`.
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
        """Facts that the engine reports of itself."""
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
        """Load weights into the engine, and compare it, and every later one, with the learner's record. Blocks.

        Returns:
            Mean difference between engine and learner, in nats; 0 without a record.

        Raises:
            PolicyError: it exceeds the tolerance; or as `complete` does.
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
        """Score the tokens of each row from a place on, in nats. Raises as `complete` does. Blocks."""
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
        """End the engine, and all requests that wait for it."""
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

        request = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
        request |= {"seed": sampling.seed % MAX_SEED, "stop_token_ids": sorted(self._endings.end_ids)}
        request["stream"] = bool(sampling.stop)  # this side looks for stop texts, and must then see each token
        number = link.generate(prompt_ids, request, listen)
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
        """Return an engine with the current weights, which may have to be built first. Blocks."""
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
                try:
                    link.wait_until_ready()
                    if self._parcel:
                        self._send_weights(link, self._parcel)
                    if self._record:
                        self._check_probes(link, self._record)
                except EngineLostError:
                    pass  # the next round starts another
                except PolicyError:
                    link.close()
                    raise
                self._link, self._coming = link, None  # only now: until it has the weights, nobody may ask it
            return link

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

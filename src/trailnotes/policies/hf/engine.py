"""Continuous batching: completions that are requested together are decoded together, and each leaves when it ends.

Each row draws by its own settings and its own random numbers, whatever else is in the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from trailnotes.errors import PolicyError
from trailnotes.policies.hf.decoder import Decoder, Slot
from trailnotes.policies.hf.sampling import TokenSampler, Uniforms, draw_uniforms
from trailnotes.types import Completion, FinishReason, Sampling, TokenIds

Decode = Callable[[TokenIds], str]  # without special tokens

CACHE_SIZE = 65536  # decoded texts remembered
MAX_CACHED_TOKENS = 64  # of the longest of them: thoughts never come twice, and all their prefixes would fill memory


@dataclass(slots=True)
class _GenerationRequest:
    prompt_ids: TokenIds
    sampling: Sampling
    episode: str
    future: asyncio.Future[Completion]
    uniforms: Uniforms
    slot: Slot = -1
    pending: Sequence[int] = ()  # tokens that have not been through the model yet
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Engine:
    """Continuous-batching engine for completions.

    With `deterministic`, a batch starts only when every open episode has a request, and runs to its end before the
    next, so that batches never depend on timing: an open episode must ask, or be closed. The other arguments are as for
    `StopCondition`.
    """

    def __init__(
        self, decoder: Decoder, decode: Decode, end_ids: Collection[int], *, deterministic: bool, opening: str = ""
    ) -> None:
        self.decoder = decoder
        self.endings = StopCondition(decode, end_ids, opening)
        self.deterministic = deterministic
        self._slots: dict[str, Slot | None] = {}  # of the open episodes; a slot is taken at the first request
        self._waiting: dict[str, _GenerationRequest] = {}
        self._running: dict[str, _GenerationRequest] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def num_unfinished(self) -> int:
        requests = (*self._running.values(), *self._waiting.values())
        return sum(not request.future.done() for request in requests)

    def open(self, episode: str) -> None:
        """Announce an episode. Raises `PolicyError` if one of this name is open."""
        if episode in self._slots:
            raise PolicyError(f"episode {episode!r} is open already: each live episode needs a name of its own")
        self._slots[episode] = None

    def close(self, episode: str) -> None:
        slot = self._slots.pop(episode, None)
        for requests in (self._waiting, self._running):
            if episode in requests:
                requests.pop(episode).future.cancel()
        if slot is not None:
            self.decoder.release(slot)
        self._ensure_task()

    async def generate(self, prompt_ids: TokenIds, sampling: Sampling, episode: str) -> Completion:
        """Sample one completion. Raises `PolicyError` for an episode that is not open or has a request under way."""
        if episode not in self._slots:
            raise PolicyError(f"episode {episode!r} is not open: call open_episode first")
        if episode in self._waiting or episode in self._running:
            raise PolicyError(f"episode {episode!r} has a completion under way: await it first")
        if not prompt_ids:
            raise PolicyError("a prompt needs at least one token")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        uniforms = draw_uniforms(sampling.seed, sampling.max_tokens)
        request = self._waiting[episode] = _GenerationRequest(prompt_ids, sampling, episode, future, uniforms)
        self._ensure_task()
        try:
            return await future
        finally:
            for requests in (self._waiting, self._running):  # still there if it was cancelled
                if requests.get(episode) is request:
                    del requests[episode]

    def _can_admit(self) -> bool:
        ready = not self.deterministic or (not self._running and len(self._waiting) == len(self._slots))
        return bool(self._waiting) and ready

    def _ensure_task(self) -> None:
        if self._task is None and self._can_admit():
            loop = next(iter(self._waiting.values())).future.get_loop()
            self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._running or self._can_admit():
                if self._can_admit():
                    self._admit()
                self._step()
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - the boundary: those who wait must hear of it
            failed = [*self._running.values(), *self._waiting.values()]
            self._running, self._waiting = {}, {}
            self.decoder.reset_cache()
            what = error if isinstance(error, PolicyError) else f"generation failed: {type(error).__name__}: {error}"
            for request in failed:
                if not request.future.done():
                    wrapped = PolicyError(str(what))
                    wrapped.__cause__ = error
                    request.future.set_exception(wrapped)
        finally:
            for request in self._running.values():  # only if this task was cancelled
                request.future.cancel()
            self._running = {}
            self._task = None

    def _admit(self) -> None:
        """Let all waiting requests join, in the order of their names, which no timing changes."""
        names = sorted(self._waiting)
        begun = [name for name in names if self._slots[name] is None]
        # Requests that continue an ended episode, such as requests for tips, choose their slots before the others.
        for name in begun:
            self._slots[name] = self.decoder.resume(self._waiting[name].prompt_ids)
        for name in begun:
            if self._slots[name] is None:
                self._slots[name] = self.decoder.acquire()
        for episode in names:
            request, slot = self._waiting.pop(episode), self._slots[episode]
            assert slot is not None
            self._running[episode], request.slot = request, slot
            request.pending = request.prompt_ids[self.decoder.rewind(slot, request.prompt_ids) :]

    def _step(self) -> None:
        rows = [request for request in self._running.values() if not request.future.done()]
        if not rows:
            return
        num = min(self.decoder.burst, max(request.sampling.max_tokens - len(request.token_ids) for request in rows))
        given = [(request.sampling, request.uniforms[len(request.token_ids) :]) for request in rows]
        sample = TokenSampler(given, num, self.endings.end_ids)
        sampled = self.decoder.decode([(request.slot, request.pending) for request in rows], sample, num)
        for request, tokens, logprobs in zip(rows, *sampled, strict=True):
            self._append(request, tokens, logprobs)

    def _append(self, request: _GenerationRequest, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add sampled tokens to a completion, up to its end."""
        for token, logprob in zip(tokens, logprobs, strict=True):
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            if end := self.endings.find_end(request.token_ids, request.sampling):
                ids, numbers = tuple(request.token_ids), tuple(request.logprobs)
                request.future.set_result(Completion(request.prompt_ids, ids, numbers, *end))
                del self._running[request.episode]
                return
        request.pending = tokens[-1:]


def require_room(prompt_ids: TokenIds, sampling: Sampling, context_length: int) -> None:
    """Refuse a prompt whose longest completion exceeds the context. Raises `PolicyError`."""
    if len(prompt_ids) + sampling.max_tokens > context_length:
        raise PolicyError(
            f"a prompt of {len(prompt_ids)} tokens and {sampling.max_tokens} new ones exceed the context of "
            f"{context_length} tokens"
        )


class StopCondition:
    """Rule for the end of a completion, shared by all engines: an end token, a stop text, or the limit.

    `end_ids` end a turn; they belong to the ids of a completion, and not to its text. `opening` is the tag of thinking
    that every prompt ends with, "" for none; texts of completions begin with it.
    """

    def __init__(self, decode: Decode, end_ids: Collection[int], opening: str = "") -> None:
        self.end_ids = frozenset(end_ids)
        self.opening = opening
        self._decode = decode
        self._short = lru_cache(CACHE_SIZE)(decode)

    def find_end(self, sampled: Sequence[int], sampling: Sampling) -> tuple[str, FinishReason] | None:
        """Return text and finish reason if the newest of the sampled ids (one or more) ends them; else None."""
        token = sampled[-1]
        ended = token in self.end_ids
        full = len(sampled) >= sampling.max_tokens
        if not (ended or full or any(self._may_end(token, stop) for stop in sampling.stop)):
            return None
        ids = tuple(sampled[:-1] if ended else sampled)
        text, stopped = sampling.cut_at_stop(
            self.opening + (self._short if len(ids) <= MAX_CACHED_TOKENS else self._decode)(ids)
        )
        if not (ended or full or stopped):
            return None
        return text, "stop" if ended or stopped else "length"

    def _may_end(self, token: int, stop: str) -> bool:
        """Whether a stop text may end inside this token: a cheap test that spares decoding the whole each time."""
        last = stop[-1]
        return not last.isascii() or last == " " or last in self._short((token,))

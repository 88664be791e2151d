"""Any OpenAI-compatible chat endpoint as a policy: it acts, takes notes and adapts, and cannot be trained."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from trailnotes.config import Config, EndpointConfig
from trailnotes.errors import BudgetError, ConfigError, MissingExtraError, PolicyError
from trailnotes.policies.answers import Amount, Answer, Answers, Query, request_key
from trailnotes.policies.faults import (
    LONGEST_RETRY_AFTER,
    Trouble,
    explain,
    is_about_model,
    missing_model,
    passes,
    pause,
    retry_after,
    said,
)
from trailnotes.types import Completion, FinishReason, Message, Sampling, TokenIds

try:
    from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"{missing.name} is not installed: pip install 'trailnotes[openai]'") from missing

logger = logging.getLogger(__name__)
T = TypeVar("T")

BYTES_PER_TOKEN = 3  # rather too few: a prompt that is longer than estimated would not fit
TOKENS_PER_MESSAGE = 4  # that a chat template puts around each message
MAX_STOPS = 4  # of one request
LONG_WAIT = 5.0  # seconds; longer ones are announced
NO_KEY = "none"  # what is sent where there is no key: the client insists on one
_NEVER_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout")  # the transport's failures before anything was sent


class OpenAIPolicy:
    """A model behind an endpoint. Every answer is kept, and a request that was answered before is not sent again.

    Args:
        config: `endpoint`, and `rollout` for what an endpoint cannot do.
        name: of the model, as the server calls it.
        answers: file that keeps the answers; None keeps them in this process only.

    Raises:
        ConfigError: a setting that the endpoint cannot follow, or no key for one that wants it.
        RunError: `answers` is damaged.
    """

    append_only = False
    trainable = False  # no token ids, no log-probabilities

    def __init__(self, config: Config, name: str, *, answers: Path | None = None) -> None:
        self.name, self.version = name, 0
        self.endpoint = config.endpoint
        self.context_length = config.endpoint.context_tokens
        self._key = _key_of(config.endpoint)
        _check(config)
        self.answers = Answers(answers, config.endpoint)
        self._asked: dict[str, Counter[str]] = {}  # of each open episode: how often it made each request
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of the requests under way
        self._line: _Line | None = None
        self._density = 1.0  # most prompt tokens that the server counted for one of our estimate
        self._told: set[str] = set()

    def encode(self, messages: Sequence[Message]) -> TokenIds:  # noqa: ARG002
        """(): a server returns no ids."""
        return ()

    def count_tokens(self, text: str) -> int:
        """An estimate, rather too high."""
        return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)

    def open_episode(self, episode: str) -> None:
        """Announce an episode; its requests are counted from here on."""
        self._asked[episode] = Counter()

    def close_episode(self, episode: str) -> None:
        """Forget its requests, not their answers."""
        self._asked.pop(episode, None)

    @property
    def cost(self) -> float:
        """Spent by this run so far, all starts together."""
        return self.answers.cost

    def metrics(self) -> dict[str, float]:
        """What the endpoint has done for this run so far, all starts together."""
        return self.answers.metrics()

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Ask for the next assistant turn, or take the answer that is kept.

        The n-th equal request of an episode gets the n-th answer, whoever paid for it: so a run that is begun again
        gets from disk what it had.

        Raises:
            PolicyError: the episode is not open, the endpoint refuses the request, or it failed too often.
            BudgetError: the request could pass a limit. Nothing is under way then.
        """
        if episode not in self._asked:
            raise PolicyError(f"episode {episode!r} is not open: call open_episode first")
        same = request_key(self.endpoint.base_url, self.name, messages, sampling)
        key = f"{same}.{self._asked[episode][same]}"
        self._asked[episode][same] += 1
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            answer = self.answers.find(key) or await self._ask(key, messages, sampling)
        text, cut = _cut(answer.text, sampling.stop)
        usage = (answer.prompt_tokens, answer.completion_tokens)
        return Completion((), (), (), text, "stop" if cut else answer.finish_reason, usage)

    async def _ask(self, key: str, messages: Sequence[Message], sampling: Sampling) -> Answer:
        """Send the request, again where that may help."""
        line = await self._connected()
        estimate = sum(self.count_tokens(message.content) + TOKENS_PER_MESSAGE for message in messages)
        tries = 0
        async with line.slots:
            while True:
                most = Amount(math.ceil(estimate * self._density), sampling.max_tokens)
                query = Query(key, messages, sampling, most)
                try:
                    async with self._allowed(line, most):
                        answer = await _to_its_end(self._send(line, query, tries))
                except Trouble as trouble:
                    tries += 1
                    if tries > self.endpoint.max_retries:
                        raise PolicyError(self._gave_up(trouble, tries)) from None
                    await asyncio.sleep(self._pause(trouble, tries))
                    continue
                if not answer.estimated:
                    self._density = max(self._density, answer.prompt_tokens / estimate)
                return answer

    @asynccontextmanager
    async def _allowed(self, line: _Line, most: Amount) -> AsyncIterator[None]:
        """Wait until a request fits under the limits, and hold the most that it can take back meanwhile."""
        while refusal := self.answers.refusal(most):
            if not self.answers.reserved:
                raise BudgetError(refusal)
            line.freed.clear()
            await line.freed.wait()  # what is under way may end with less than was reserved for it
        self.answers.reserved.append(most)
        try:
            yield
        finally:
            self.answers.reserved.remove(most)
            line.freed.set()

    async def _send(self, line: _Line, query: Query, tries: int) -> Answer:
        """One try. An answer is kept before it is used; what may have been billed without one is counted."""
        try:
            said = await self._post(line, query)
        except Trouble as trouble:
            if trouble.billed:
                lost = trouble.reason or "lost"
                self.answers.keep(self._answer("", _Said("", "stop", None, ""), query, tries, lost), query)
            raise
        answer = self._answer(query.key, said, query, tries)
        self.answers.keep(answer, query)
        if not answer.text and answer.finish_reason == "length":
            self._tell(
                f"{self.name} used up {query.sampling.max_tokens} tokens before its first word, as models that think "
                "do: raise rollout.max_action_tokens and memory.max_write_tokens"
            )
        return answer

    async def _post(self, line: _Line, query: Query) -> _Said:
        """Send it and read what comes back; `Trouble` for what may pass, `PolicyError` for what will not."""
        try:
            async with asyncio.timeout(self.endpoint.timeout):  # the client's own limit starts anew with each byte
                answer = await line.client.chat.completions.with_raw_response.create(**self._body(query))
        except (TimeoutError, APITimeoutError) as error:
            seconds = f"no answer within endpoint.timeout = {self.endpoint.timeout:g} s"
            raise Trouble(seconds, billed=_was_sent(error)) from None
        except APIStatusError as error:
            if passes(error.status_code, error.body):
                reason = self._public(f"{error.status_code}: {said(error.body)}")
                raise Trouble(reason, wait=retry_after(error.response.headers)) from None
            raise PolicyError(await self._refusal(line, error)) from None
        except APIConnectionError as error:
            reason = self._public(f"no connection ({error.__cause__ or error})")
            raise Trouble(reason, billed=_was_sent(error)) from None
        try:
            return _read(answer.http_response.text)
        except Trouble as trouble:
            raise Trouble(self._public(trouble.reason), billed=True) from None

    def _body(self, query: Query) -> dict[str, Any]:
        """What is sent."""
        sampling, endpoint = query.sampling, self.endpoint
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [{"role": message.role, "content": _sendable(message.content)} for message in query.messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            endpoint.max_tokens_field: sampling.max_tokens,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop[:MAX_STOPS])
        if endpoint.send_seed:
            body["seed"] = sampling.seed % 2**31  # some servers hold it in 32 bits
        return {name: value for name, value in body.items() if name not in endpoint.omit}

    def _answer(self, key: str, said: _Said, query: Query, tries: int, lost: str = "") -> Answer:
        amount = said.usage
        if amount is None:
            amount = query.most if lost else Amount(query.most.prompt_tokens, self.count_tokens(said.text))
        return Answer(
            key, said.text, said.finish_reason, amount.prompt_tokens, amount.completion_tokens,
            self.answers.price(amount), said.usage is None, 0 if lost else tries, lost, said.model,
        )  # fmt: skip

    # -- when it fails

    async def _refusal(self, line: _Line, error: APIStatusError) -> str:
        status, body, url = error.status_code, error.body, self.endpoint.base_url
        if is_about_model(status, body):
            return self._public(
                missing_model(status, body, url=url, model=self.name, offered=await _models(line.client))
            )
        has_key, key_env = bool(self._key), self.endpoint.api_key_env
        return self._public(explain(status, body, url=url, model=self.name, key_env=key_env, has_key=has_key))

    def _gave_up(self, trouble: Trouble, tries: int) -> str:
        return (
            f"{self.endpoint.base_url} failed {tries} times, at last with {trouble.reason}: see that it runs, or raise "
            "endpoint.max_retries or endpoint.timeout, and run the same command again"
        )

    def _pause(self, trouble: Trouble, tries: int) -> float:
        """Seconds until the next try, announced if they are many."""
        seconds = pause(tries, trouble.wait)
        if trouble.wait is not None and trouble.wait > LONGEST_RETRY_AFTER:
            self._tell(f"{self.endpoint.base_url} asks for {trouble.wait:.0f} s of rest: it gets {seconds:.0f} s")
        level = logging.WARNING if seconds >= LONG_WAIT else logging.INFO
        logger.log(level, "%s: %s; another try in %.1f s", self.endpoint.base_url, trouble.reason, seconds)
        return seconds

    def _tell(self, text: str) -> None:
        """Warn once."""
        if text not in self._told:
            self._told.add(text)
            logger.warning("%s", text)

    def _public(self, text: str) -> str:
        """`text` without the key, which servers may repeat."""
        return text.replace(self._key, "[key]") if self._key else text

    # -- the connection

    async def _connected(self) -> _Line:
        """The connection of this event loop."""
        loop = asyncio.get_running_loop()
        if self._line is None or self._line.loop is not loop:
            client = _client(self.endpoint, self._key)
            slots = asyncio.Semaphore(self.endpoint.concurrency)
            self._line = _Line(loop, client, await anext(client), slots, asyncio.Event())
        return self._line


@dataclass(frozen=True, slots=True)
class _Line:
    """What belongs to one event loop."""

    loop: asyncio.AbstractEventLoop
    opened: AsyncIterator[AsyncOpenAI]
    client: AsyncOpenAI
    slots: asyncio.Semaphore
    freed: asyncio.Event  # set when a request ends


async def _client(endpoint: EndpointConfig, key: str) -> AsyncIterator[AsyncOpenAI]:
    """One client. A generator, since an event loop closes those that it leaves behind, and nobody else knows when."""
    client = AsyncOpenAI(
        api_key=key or NO_KEY, base_url=endpoint.base_url, timeout=endpoint.timeout, max_retries=0
    )  # its own retries know neither cut bodies nor broken JSON, and are not counted
    async with client:
        yield client


@dataclass(frozen=True, slots=True)
class _Said:
    """What matters of a server's answer."""

    text: str
    finish_reason: FinishReason
    usage: Amount | None
    model: str


def _read(text: str) -> _Said:
    """Read the body of an answer. Raises `Trouble` if it is none."""
    try:
        body = json.loads(text)
    except ValueError:
        raise Trouble("an answer that is cut or no JSON") from None
    match body:
        case {"choices": [{"message": dict() as message} as choice, *_]}:
            content = message.get("content")
        case {"error": error} if error:
            raise Trouble(f"an error in the place of an answer: {said(error)}")
        case _:
            raise Trouble("an answer without choices")
    if not isinstance(content, str | None):
        raise Trouble("an answer whose content is no text")
    usage = None
    match body:
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}}:
            usage = Amount(prompt, completion)
    reason: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
    return _Said(content or "", reason, usage, str(body.get("model") or ""))


async def _models(client: AsyncOpenAI) -> list[str]:
    """Names of the server's models; none if it does not say."""
    try:
        async with asyncio.timeout(10):
            return sorted(model.id for model in (await client.models.list()).data)
    except Exception:  # noqa: BLE001 (the boundary: whatever goes wrong, the error at hand is the one to report)
        return []


async def _to_its_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await it. Whoever is cancelled meanwhile waits for its end: what was sent is paid for, and its answer kept."""
    task = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _was_sent(error: BaseException) -> bool:
    """Whether a failed request can have reached the server."""
    return type(error.__cause__).__name__ not in _NEVER_SENT


def _cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first of `stops`, and whether there was one."""
    ends = [end for end in (text.find(stop) for stop in stops) if end >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def _sendable(text: str) -> str:
    """`text` without halves of surrogate pairs, which no UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode()


def _key_of(endpoint: EndpointConfig) -> str:
    """The key; "" for none.

    Raises:
        ConfigError: it is missing where it is surely needed, or cannot be one.
    """
    key = os.environ.get(endpoint.api_key_env, "").strip()
    if not key and "//api.openai.com" in endpoint.base_url:
        raise ConfigError(
            f"{endpoint.base_url} wants a key: export {endpoint.api_key_env}=..., or name another environment variable "
            "in endpoint.api_key_env, or another server in endpoint.base_url"
        )
    if not key.isascii() or any(map(str.isspace, key)):
        raise ConfigError(f"the environment variable {endpoint.api_key_env} holds no key: it has blanks or odd letters")
    return key


def _check(config: Config) -> None:
    """Refuse what an endpoint cannot do."""
    endpoint = config.endpoint
    if not endpoint.base_url.startswith(("http://", "https://")):
        raise ConfigError(f"endpoint.base_url = {endpoint.base_url!r} must begin with http:// or https://")
    if endpoint.max_cost and not (endpoint.price_input or endpoint.price_output):
        raise ConfigError("endpoint.max_cost needs prices: set endpoint.price_input and endpoint.price_output")
    if config.rollout.top_k:
        raise ConfigError("rollout.top_k is no parameter of OpenAI-compatible endpoints: set rollout.top_k = 0")

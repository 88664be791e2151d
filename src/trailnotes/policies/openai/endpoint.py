"""Requests to an OpenAI-compatible endpoint, sent by the official client, and the answers, kept on disk and counted."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trailnotes.config.model_schema import EndpointConfig
from trailnotes.errors import ConfigError, MissingExtraError, PolicyError, format_install_command
from trailnotes.storage.files import append_jsonl, parse_json, read_jsonl, split_after
from trailnotes.types import FinishReason, Message, Sampling, replace_surrogates
from trailnotes.web.faults import RetryableError, explain_refusal, extract_error_text, is_retryable, parse_retry_after
from trailnotes.web.wire import IDENTITY_HEADERS, NO_KEY, load_api_key, make_async_response_hook, redact_key

try:
    from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, DefaultAsyncHttpxClient
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"{missing.name} is not installed: {format_install_command('openai')}") from missing


@dataclass(frozen=True, slots=True)
class PaidAnswer:
    """Answer to one request, with its cost."""

    key: str  # of the request, see `hash_request`; "" for one of which nothing came
    text: str  # as the server wrote it
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cost: float  # at the prices of the day, in the currency of `endpoint.price_input`
    estimated: bool = False  # the tokens are our estimate: the server did not count them
    retries: int = 0  # tries before this one
    lost: str = ""  # why nothing came of it, though it may have been billed: its tokens are then the most it can be
    model: str = ""  # as the server names it


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a request, or the most that it can take."""

    prompt_tokens: int
    completion_tokens: int


class AnswerCache:
    """All answers of a run by key, with their sums, kept in `path` as one JSON object a line; None keeps no file.

    A line is on disk before its answer is used. Prompts are not in it.
    """

    def __init__(self, path: Path | None, endpoint: EndpointConfig) -> None:
        self.path, self.endpoint = path, endpoint
        self.requests = self.retries = self.lost = self.tokens_read = self.tokens_generated = 0
        self.cost = 0.0
        self.reused = 0  # answers of before this start that were asked for again
        self.reserved: list[TokenUsage] = []  # of the requests under way
        self._answers: dict[str, PaidAnswer] = {}
        self._old: frozenset[str] = frozenset()
        if path is not None:
            split_after(path)
            for record in read_jsonl(path):
                self._add_to_totals(PaidAnswer(**record))
            self._old = frozenset(self._answers)

    def find(self, key: str) -> PaidAnswer | None:
        self.reused += key in self._old
        return self._answers.get(key)

    def store(self, answer: PaidAnswer) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_jsonl(self.path, [asdict(answer)], sync=True)
        self._add_to_totals(answer)

    def compute_cost(self, amount: TokenUsage) -> float:
        prices = self.endpoint.price_input, self.endpoint.price_output
        return (prices[0] * amount.prompt_tokens + prices[1] * amount.completion_tokens) / 1_000_000

    def explain_limit(self, amount: TokenUsage) -> str:
        """Explain which limit the request could pass, with those under way; "" if it may be sent."""
        under_way = [*self.reserved, amount]
        tokens = sum(each.prompt_tokens + each.completion_tokens for each in under_way)
        spent, limit = self.tokens_read + self.tokens_generated, self.endpoint.max_tokens_total
        cost, most = sum(map(self.compute_cost, under_way)), self.endpoint.max_cost
        if limit and spent + tokens > limit:
            passed = f"endpoint.max_tokens_total = {limit}: {spent} tokens are spent, and it may take {tokens}"
        elif most and self.cost + cost > most:
            passed = f"endpoint.max_cost = {most:g}: {self.cost:.6g} is spent, and it may cost {cost:.2g}"
        else:
            return ""
        return f"the next request could pass {passed}; raise the limit and run the same command again"

    def metrics(self) -> dict[str, float]:
        names = ("requests", "retries", "lost", "tokens_read", "tokens_generated", "cost", "reused")
        return {f"endpoint/{name}": getattr(self, name) for name in names}

    def _add_to_totals(self, answer: PaidAnswer) -> None:
        self.requests += not answer.lost
        self.lost += bool(answer.lost)
        self.retries += answer.retries
        self.tokens_read += answer.prompt_tokens
        self.tokens_generated += answer.completion_tokens
        self.cost += answer.cost
        if answer.key:
            self._answers[answer.key] = answer


def hash_request(
    url: str, model: str, messages: Sequence[Message], sampling: Sampling, options: Mapping[str, Any] | None = None
) -> str:
    """Hash all that an answer depends on; the same in every process."""
    said = [(message.role, message.content) for message in messages]
    asked = [url.rstrip("/"), model, said, asdict(sampling), *([options] if options else [])]
    return hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()


MAX_STOPS = 4  # that a request may have
_UNSENT_ERRORS = ("ConnectError", "ConnectTimeout", "PoolTimeout")  # the transport's failures before anything was sent


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """Text, finish reason and usage of a server's answer."""

    text: str
    finish_reason: FinishReason
    usage: TokenUsage | None  # None: it did not say
    model: str  # as the server names it


@dataclass(frozen=True, slots=True)
class LoopClient:
    """Client and limits of one event loop."""

    loop: asyncio.AbstractEventLoop
    opened: AsyncIterator[AsyncOpenAI]
    client: AsyncOpenAI
    slots: asyncio.Semaphore  # for the requests under way
    freed: asyncio.Event  # set when one ends


class Endpoint:
    """Server of `config`, and one model there, whose chat template gets `options`; it keeps the key to itself."""

    def __init__(self, config: EndpointConfig, model: str, options: Mapping[str, Any] | None = None) -> None:
        self.config, self.model, self.options = config, model, options
        if not config.base_url.startswith(("http://", "https://")):
            raise ConfigError("endpoint.base_url must begin with http:// or https://")  # it may hold a key
        self._key = load_api_key(config)
        self._line: LoopClient | None = None

    async def get_loop_client(self) -> LoopClient:
        loop = asyncio.get_running_loop()
        if self._line is None or self._line.loop is not loop:
            opened = _open_client(self.config, self._key)
            slots = asyncio.Semaphore(self.config.concurrency)
            self._line = LoopClient(loop, opened, await anext(opened), slots, asyncio.Event())
        return self._line

    async def send(self, messages: Sequence[Message], sampling: Sampling) -> EndpointReply:
        """Send a request once. Raises `RetryableError` for what may pass, else `PolicyError`."""
        client = (await self.get_loop_client()).client
        try:
            async with asyncio.timeout(self.config.timeout):  # the client's own limit starts anew with each byte
                answer = await client.chat.completions.with_raw_response.create(**self._build_body(messages, sampling))
        except (TimeoutError, APITimeoutError) as error:
            reason = f"no answer within endpoint.timeout = {self.config.timeout:g} s"
            raise RetryableError(reason, billed=_was_sent(error)) from None
        except APIStatusError as error:
            if is_retryable(error.status_code, error.body):
                reason = redact_key(self._key, f"{error.status_code}: {extract_error_text(error.body)}")
                raise RetryableError(reason, wait=parse_retry_after(error.response.headers)) from None
            refusal = explain_refusal(
                error.status_code, error.body, url=self.config.base_url, model=self.model,
                key_env=self.config.api_key_env,
            )  # fmt: skip
            raise PolicyError(redact_key(self._key, refusal)) from None
        except APIConnectionError as error:
            reason = redact_key(self._key, f"no connection ({error.__cause__ or error})")
            raise RetryableError(reason, billed=_was_sent(error)) from None
        try:
            return _parse_reply(answer.http_response.text)
        except RetryableError as trouble:
            raise RetryableError(redact_key(self._key, trouble.reason), billed=True) from None

    def _build_body(self, messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
        config = self.config
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": each.role, "content": replace_surrogates(each.content)} for each in messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            config.max_tokens_field: sampling.max_tokens,
            "seed": sampling.seed % 2**31,  # some servers hold it in 32 bits
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop[:MAX_STOPS])
        options = {"chat_template_kwargs": self.options} if self.options else {}  # as vLLM and SGLang name it
        if extra := {**config.extra, **options}:
            body["extra_body"] = extra
        return {name: value for name, value in body.items() if name not in config.omit}


async def _open_client(config: EndpointConfig, key: str) -> AsyncIterator[AsyncOpenAI]:
    """Open one client. A generator, since an event loop closes those that it leaves behind."""
    client = AsyncOpenAI(
        api_key=key or NO_KEY, base_url=config.base_url, timeout=config.timeout, default_headers=IDENTITY_HEADERS,
        max_retries=0,  # its own retries know no broken JSON and no empty answer, and are not counted
        http_client=DefaultAsyncHttpxClient(event_hooks={"response": [make_async_response_hook(key)]}),
    )  # fmt: skip
    async with client:
        yield client


def _parse_reply(text: str) -> EndpointReply:
    try:
        body = parse_json(text)
    except ValueError:
        raise RetryableError("an answer that is cut off or not JSON") from None
    match body:
        case {"choices": [{"message": dict() as message} as choice, *_]}:
            content = message.get("content")
        case {"error": error} if error:
            raise RetryableError(f"an error in the place of an answer: {extract_error_text(error)}")
        case _:
            raise RetryableError("an answer without choices")
    if not isinstance(content, str | None):
        raise RetryableError("an answer whose content is not text")
    usage = None
    match body:
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}}:
            usage = TokenUsage(prompt, completion)
    reason: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
    return EndpointReply(content or "", reason, usage, str(body.get("model") or ""))


def _was_sent(error: BaseException) -> bool:
    return type(error.__cause__).__name__ not in _UNSENT_ERRORS

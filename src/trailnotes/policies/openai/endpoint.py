"""One request to an OpenAI-compatible endpoint: sent by the official client, and read with suspicion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from trailnotes.config.model_schema import EndpointConfig
from trailnotes.endpoint.faults import (
    AnswerTimeoutError,
    RetryableError,
    explain_missing_model,
    explain_refusal,
    extract_error_text,
    is_missing_model,
    is_retryable,
    parse_retry_after,
)
from trailnotes.endpoint.keys import NO_KEY, load_api_key, redact_key
from trailnotes.endpoint.wire import IDENTITY_HEADERS, make_async_response_hook
from trailnotes.errors import ConfigError, MissingExtraError, PolicyError, format_install_command
from trailnotes.policies.openai.answers import ChatRequest, TokenUsage
from trailnotes.storage.parsing import parse_json
from trailnotes.types import FinishReason, replace_surrogates

try:
    from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, DefaultAsyncHttpxClient
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"{missing.name} is not installed: {format_install_command('openai')}") from missing

MAX_STOPS = 4  # that a request may have
_UNSENT_ERRORS = ("ConnectError", "ConnectTimeout", "PoolTimeout")  # the transport's failures before anything was sent


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """What matters of a server's answer."""

    text: str
    finish_reason: FinishReason
    usage: TokenUsage | None  # None: it did not say
    model: str  # as the server names it


@dataclass(frozen=True, slots=True)
class LoopClient:
    """What belongs to one event loop."""

    loop: asyncio.AbstractEventLoop
    opened: AsyncIterator[AsyncOpenAI]
    client: AsyncOpenAI
    slots: asyncio.Semaphore  # for the requests under way
    freed: asyncio.Event  # set when one ends


class Endpoint:
    """The server of `config`, and one model there, whose chat template gets `options`. The key stays in here.

    Raises:
        ConfigError: an address or a key that cannot be right.
    """

    def __init__(self, config: EndpointConfig, model: str, options: Mapping[str, Any] | None = None) -> None:
        self.config, self.model, self.options = config, model, options
        if not config.base_url.startswith(("http://", "https://")):
            raise ConfigError("endpoint.base_url must begin with http:// or https://")  # it may hold a key
        self._key = load_api_key(config)
        self._line: LoopClient | None = None

    async def get_loop_client(self) -> LoopClient:
        """The connection of this event loop."""
        loop = asyncio.get_running_loop()
        if self._line is None or self._line.loop is not loop:
            opened = _open_client(self.config, self._key)
            slots = asyncio.Semaphore(self.config.concurrency)
            self._line = LoopClient(loop, opened, await anext(opened), slots, asyncio.Event())
        return self._line

    async def send(self, query: ChatRequest) -> EndpointReply:
        """Send a request, once.

        Raises:
            Trouble: it failed in a way that may pass.
            PolicyError: in a way that will not; the text names the fix.
        """
        client = (await self.get_loop_client()).client
        try:
            async with asyncio.timeout(self.config.timeout):  # the client's own limit starts anew with each byte
                answer = await client.chat.completions.with_raw_response.create(**self._build_body(query))
        except (TimeoutError, APITimeoutError) as error:
            reason = f"no answer within endpoint.timeout = {self.config.timeout:g} s"
            raise AnswerTimeoutError(reason, billed=_was_sent(error)) from None
        except APIStatusError as error:
            if is_retryable(error.status_code, error.body):
                reason = self._redact_key(f"{error.status_code}: {extract_error_text(error.body)}")
                raise RetryableError(reason, wait=parse_retry_after(error.response.headers)) from None
            raise PolicyError(self._redact_key(await self._explain_refusal(client, error))) from None
        except APIConnectionError as error:
            reason = self._redact_key(f"no connection ({error.__cause__ or error})")
            raise RetryableError(reason, billed=_was_sent(error)) from None
        try:
            return _parse_reply(answer.http_response.text)
        except RetryableError as trouble:
            raise RetryableError(self._redact_key(trouble.reason), billed=True) from None

    def _build_body(self, query: ChatRequest) -> dict[str, Any]:
        """What is sent."""
        sampling, config = query.sampling, self.config
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {"role": message.role, "content": replace_surrogates(message.content)} for message in query.messages
            ],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            config.max_tokens_field: sampling.max_tokens,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop[:MAX_STOPS])
        if config.send_seed:
            body["seed"] = sampling.seed % 2**31  # some servers hold it in 32 bits
        extra = dict(config.extra)
        if self.options:
            extra["chat_template_kwargs"] = self.options  # as vLLM and SGLang name it
        if extra:
            body["extra_body"] = extra
        return {name: value for name, value in body.items() if name not in config.omit}

    async def _explain_refusal(self, client: AsyncOpenAI, error: APIStatusError) -> str:
        status, body, url = error.status_code, error.body, self.config.base_url
        if is_missing_model(status, body):
            return explain_missing_model(status, body, url=url, model=self.model, offered=await _list_models(client))
        has_key, key_env = bool(self._key), self.config.api_key_env
        extra = self.config.extra
        return explain_refusal(status, body, url=url, model=self.model, key_env=key_env, has_key=has_key, extra=extra)

    def _redact_key(self, text: str) -> str:
        return redact_key(self._key, text)


async def _open_client(config: EndpointConfig, key: str) -> AsyncIterator[AsyncOpenAI]:
    """One client. A generator, since an event loop closes those that it leaves behind, and nobody else knows when."""
    client = AsyncOpenAI(
        api_key=key or NO_KEY,
        base_url=config.base_url,
        timeout=config.timeout,
        max_retries=0,
        default_headers=IDENTITY_HEADERS,
        http_client=DefaultAsyncHttpxClient(event_hooks={"response": [make_async_response_hook(key)]}),
    )  # its own retries know no broken JSON and no empty answer, and are not counted
    async with client:
        yield client


def _parse_reply(text: str) -> EndpointReply:
    """Read the body of an answer. Raises `RetryableError` if it is none."""
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


async def _list_models(client: AsyncOpenAI) -> list[str]:
    """Names of the server's models; none if it does not say."""
    try:
        async with asyncio.timeout(60):  # a busy machine may take long; who waits has an error to read
            return sorted(model.id for model in (await client.models.list()).data)
    except Exception:  # noqa: BLE001 (the boundary: whatever goes wrong, the error at hand is the one to report)
        return []


def _was_sent(error: BaseException) -> bool:
    """Whether a failed request can have reached the server."""
    return type(error.__cause__).__name__ not in _UNSENT_ERRORS

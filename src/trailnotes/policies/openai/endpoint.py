"""One request to an OpenAI-compatible endpoint: sent by the official client, and read with suspicion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from trailnotes.config.model_schema import EndpointConfig
from trailnotes.endpoint.faults import (
    Late,
    Trouble,
    explain,
    is_about_model,
    missing_model,
    passes,
    retry_after,
    said,
)
from trailnotes.endpoint.keys import NO_KEY, key_of, without
from trailnotes.endpoint.wire import PLAIN, guard_async
from trailnotes.errors import ConfigError, MissingExtraError, PolicyError, how_to_install
from trailnotes.policies.openai.answers import Amount, Query
from trailnotes.storage.parsing import parse_json
from trailnotes.types import FinishReason, speakable

try:
    from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, DefaultAsyncHttpxClient
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"{missing.name} is not installed: {how_to_install('openai')}") from missing

MAX_STOPS = 4  # that a request may have
_NEVER_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout")  # the transport's failures before anything was sent


@dataclass(frozen=True, slots=True)
class Said:
    """What matters of a server's answer."""

    text: str
    finish_reason: FinishReason
    usage: Amount | None  # None: it did not say
    model: str  # as the server names it


@dataclass(frozen=True, slots=True)
class Line:
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
        self._key = key_of(config)
        self._line: Line | None = None

    async def line(self) -> Line:
        """The connection of this event loop."""
        loop = asyncio.get_running_loop()
        if self._line is None or self._line.loop is not loop:
            opened = _open(self.config, self._key)
            slots = asyncio.Semaphore(self.config.concurrency)
            self._line = Line(loop, opened, await anext(opened), slots, asyncio.Event())
        return self._line

    async def send(self, query: Query) -> Said:
        """Send a request, once.

        Raises:
            Trouble: it failed in a way that may pass.
            PolicyError: in a way that will not; the text names the fix.
        """
        client = (await self.line()).client
        try:
            async with asyncio.timeout(self.config.timeout):  # the client's own limit starts anew with each byte
                answer = await client.chat.completions.with_raw_response.create(**self._body(query))
        except (TimeoutError, APITimeoutError) as error:
            reason = f"no answer within endpoint.timeout = {self.config.timeout:g} s"
            raise Late(reason, billed=_was_sent(error)) from None
        except APIStatusError as error:
            if passes(error.status_code, error.body):
                reason = self._public(f"{error.status_code}: {said(error.body)}")
                raise Trouble(reason, wait=retry_after(error.response.headers)) from None
            raise PolicyError(self._public(await self._refusal(client, error))) from None
        except APIConnectionError as error:
            reason = self._public(f"no connection ({error.__cause__ or error})")
            raise Trouble(reason, billed=_was_sent(error)) from None
        try:
            return _read(answer.http_response.text)
        except Trouble as trouble:
            raise Trouble(self._public(trouble.reason), billed=True) from None

    def _body(self, query: Query) -> dict[str, Any]:
        """What is sent."""
        sampling, config = query.sampling, self.config
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": message.role, "content": speakable(message.content)} for message in query.messages],
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

    async def _refusal(self, client: AsyncOpenAI, error: APIStatusError) -> str:
        status, body, url = error.status_code, error.body, self.config.base_url
        if is_about_model(status, body):
            return missing_model(status, body, url=url, model=self.model, offered=await _models(client))
        has_key, key_env = bool(self._key), self.config.api_key_env
        extra = self.config.extra
        return explain(status, body, url=url, model=self.model, key_env=key_env, has_key=has_key, extra=extra)

    def _public(self, text: str) -> str:
        return without(self._key, text)


async def _open(config: EndpointConfig, key: str) -> AsyncIterator[AsyncOpenAI]:
    """One client. A generator, since an event loop closes those that it leaves behind, and nobody else knows when."""
    client = AsyncOpenAI(
        api_key=key or NO_KEY,
        base_url=config.base_url,
        timeout=config.timeout,
        max_retries=0,
        default_headers=PLAIN,
        http_client=DefaultAsyncHttpxClient(event_hooks={"response": [guard_async(key)]}),
    )  # its own retries know no broken JSON and no empty answer, and are not counted
    async with client:
        yield client


def _read(text: str) -> Said:
    """Read the body of an answer. Raises `Trouble` if it is none."""
    try:
        body = parse_json(text)
    except ValueError:
        raise Trouble("an answer that is cut off or not JSON") from None
    match body:
        case {"choices": [{"message": dict() as message} as choice, *_]}:
            content = message.get("content")
        case {"error": error} if error:
            raise Trouble(f"an error in the place of an answer: {said(error)}")
        case _:
            raise Trouble("an answer without choices")
    if not isinstance(content, str | None):
        raise Trouble("an answer whose content is not text")
    usage = None
    match body:
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}}:
            usage = Amount(prompt, completion)
    reason: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
    return Said(content or "", reason, usage, str(body.get("model") or ""))


async def _models(client: AsyncOpenAI) -> list[str]:
    """Names of the server's models; none if it does not say."""
    try:
        async with asyncio.timeout(60):  # a busy machine may take long; who waits has an error to read
            return sorted(model.id for model in (await client.models.list()).data)
    except Exception:  # noqa: BLE001 (the boundary: whatever goes wrong, the error at hand is the one to report)
        return []


def _was_sent(error: BaseException) -> bool:
    """Whether a failed request can have reached the server."""
    return type(error.__cause__).__name__ not in _NEVER_SENT

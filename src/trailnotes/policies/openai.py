"""Any OpenAI-compatible chat endpoint as a policy: it acts, writes tips and adapts, and cannot be trained.

Requests are sent by the official client; all answers are kept on disk, and counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from trailnotes.config.model_schema import EndpointConfig
from trailnotes.config.schema import Config
from trailnotes.errors import BudgetError, ConfigError, MissingExtraError, PolicyError, format_install_command
from trailnotes.policies.base import OwnedPolicy, shield_until_done
from trailnotes.storage.files import append_jsonl, parse_json, read_jsonl, split_after
from trailnotes.types import Completion, FinishReason, Message, Sampling, TokenIds, replace_surrogates, strip_thinking
from trailnotes.web.faults import (
    GATEWAY_FAULTS,
    RetryableError,
    compute_wait,
    explain_refusal,
    extract_error_text,
    find_error,
    is_retryable,
    parse_retry_after,
)
from trailnotes.web.wire import (
    IDENTITY_HEADERS,
    NO_KEY,
    load_api_key,
    make_async_response_hook,
    redact_key,
    require_prices,
)

try:
    from openai import (
        APIConnectionError,
        APIStatusError,
        APITimeoutError,
        AsyncOpenAI,
        DefaultAsyncHttpxClient,
        Timeout,
    )
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"{missing.name} is not installed: {format_install_command('openai')}") from missing

logger = logging.getLogger(__name__)

BYTES_PER_TOKEN: Final = 3  # rather too few: a prompt that is longer than estimated would not fit
TOKENS_PER_MESSAGE: Final = 4  # that a chat template puts around each message
LONG_WAIT: Final = 5.0  # seconds; longer ones are announced
FIRST_TIMEOUT = 15.0  # seconds for a connection, and for the first answer; a busy machine is slow
MAX_STOPS: Final = 4  # that a request may have
SHORT_PROMPT: Final = 200  # estimated tokens, up to which what a server adds to each prompt weighs more than its text
CUT_PROMPT: Final = 4000  # estimated tokens; shorter prompts fit into what Ollama takes by default
BROKEN_OFF: Final = "error", "network_error", "abort", "insufficient_system_resource"  # finish reasons of servers
_UNSENT_ERRORS: Final = "ConnectError", "ConnectTimeout", "PoolTimeout"  # the transport's, before anything was sent


@dataclass(frozen=True, slots=True)
class PaidAnswer:
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
        self.reserved: dict[asyncio.Future[TokenUsage], TokenUsage] = {}  # of the requests under way, until they end
        self.sharing = [self]  # those that the limits cover together
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

    def share_limits(self, other: AnswerCache) -> None:
        """Have the limits cover both together; each keeps its own file and sums."""
        self.sharing = other.sharing = [self, other]
        self.reserved = other.reserved

    def explain_limit(self, amount: TokenUsage) -> str:
        """Explain which limit the request could pass, with those under way; "" if it may be sent."""
        under_way = [*self.reserved.values(), amount]
        tokens = sum(each.prompt_tokens + each.completion_tokens for each in under_way)
        spent = sum(each.tokens_read + each.tokens_generated for each in self.sharing)
        paid, limit = sum(each.cost for each in self.sharing), self.endpoint.max_tokens_total
        cost, most = sum(map(self.compute_cost, under_way)), self.endpoint.max_cost
        if limit and spent + tokens > limit:
            passed = f"endpoint.max_tokens_total = {limit}: {spent} tokens are spent, and it may take {tokens}"
        elif most and paid + cost > most:
            passed = f"endpoint.max_cost = {most:g}: {paid:.6g} is spent, and it may cost {cost:.2g}"
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


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """Text, finish reason and usage of a server's answer."""

    text: str
    finish_reason: FinishReason
    usage: TokenUsage | None  # None: it did not say
    model: str  # as the server names it
    thoughts: str = ""  # apart from the text
    is_filtered: bool = False


class Endpoint:
    """Server of `config`, and one model there, whose chat template gets `options`; it keeps the key to itself."""

    def __init__(self, config: EndpointConfig, model: str, options: Mapping[str, Any] | None = None) -> None:
        self.config, self.model, self.options = config, model, options
        if not config.base_url.startswith(("http://", "https://")):
            raise ConfigError("endpoint.base_url must begin with http:// or https://")  # it may hold a key
        self._has_answered = False
        self._key = load_api_key(config)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Make the client of this event loop, and its limits, unless they are there."""
        if self._loop is not asyncio.get_running_loop():
            self._opened = self._open_client()
            self._client = await anext(self._opened)
            self.slots = asyncio.Semaphore(self.config.concurrency)  # for the requests under way
            self._probe: asyncio.Task[str] | None = None  # its event loop may have ended
            self._loop = asyncio.get_running_loop()

    async def require_answer(self) -> None:
        """Raise `PolicyError` where a server that has not answered yet gives no answer at all within `FIRST_TIMEOUT`.

        One probe serves all that wait: a server that answers one after the other would let the rest wait for
        completions, and a silent one would cost each of them the whole timeout.
        """
        if self._has_answered:
            return
        await self.open()
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._probe_server())
        if failure := await asyncio.shield(self._probe):
            raise PolicyError(
                f"{self.config.base_url} does not answer ({redact_key(self._key, failure)}): see that a server of "
                "OpenAI's API runs there, and that endpoint.base_url has its host and port; give one that is still "
                "starting the same command again"
            )
        self._has_answered = True

    async def _probe_server(self) -> str:
        """Ask for the models, which costs nothing; return why no answer came, "" where one did.

        A completion may take long, so its silence would show nothing.
        """
        list_models = self._client.models.with_raw_response.list  # the first use imports much, before the time runs
        try:
            async with asyncio.timeout(FIRST_TIMEOUT):
                await list_models()
        except APIStatusError:
            pass  # an answer, too
        except (TimeoutError, APIConnectionError) as error:
            is_late = isinstance(error, TimeoutError | APITimeoutError)
            return f"nothing within {FIRST_TIMEOUT:g} s" if is_late else f"{error.__cause__ or error}"
        return ""

    async def send(self, messages: Sequence[Message], sampling: Sampling) -> EndpointReply:
        """Send a request once. Raises `RetryableError` for what may pass, else `PolicyError`."""
        create = self._client.chat.completions.with_raw_response.create
        try:
            async with asyncio.timeout(self.config.timeout):  # the client's own limit starts anew with each byte
                answer = await create(**self._build_body(messages, sampling))
        except (TimeoutError, APITimeoutError) as error:
            reason = f"no answer within endpoint.timeout = {self.config.timeout:g} s"
            raise RetryableError(reason, billed=_was_sent(error)) from None
        except APIStatusError as error:
            raise self._build_error(error.status_code, error.body, error.response.headers) from None
        except APIConnectionError as error:
            reason = redact_key(self._key, f"no connection ({error.__cause__ or error})")
            raise RetryableError(reason, billed=_was_sent(error)) from None
        text = answer.http_response.text
        if refused := find_error(text):
            raise self._build_error(*refused, answer.http_response.headers, billed=refused[0] >= 500)
        try:
            return _parse_reply(text)
        except RetryableError as trouble:
            raise RetryableError(redact_key(self._key, trouble.reason), billed=True) from None

    def _build_error(self, status: int, body: object, headers: Mapping[str, str], billed: bool = False) -> Exception:
        """Build the error of a refusal: `RetryableError` for one that may pass, else `PolicyError`."""
        if is_retryable(status, body):
            reason = redact_key(self._key, f"{status}: {extract_error_text(body)}")
            wait, billed = parse_retry_after(headers), billed or status in GATEWAY_FAULTS
            return RetryableError(reason, status=status, wait=wait, billed=billed)
        url, key_env = self.config.base_url, self.config.api_key_env
        refusal = explain_refusal(status, body, url=url, model=self.model, key_env=key_env)
        return PolicyError(redact_key(self._key, refusal))

    async def _open_client(self) -> AsyncIterator[AsyncOpenAI]:
        """Open one client. A generator, since an event loop closes those that it leaves behind."""
        timeout = self.config.timeout
        client = AsyncOpenAI(
            api_key=self._key or NO_KEY, base_url=self.config.base_url, default_headers=IDENTITY_HEADERS,
            timeout=Timeout(timeout, connect=min(timeout, FIRST_TIMEOUT)),
            max_retries=0,  # its own retries know no broken JSON and no empty answer, and are not counted
            http_client=DefaultAsyncHttpxClient(event_hooks={"response": [make_async_response_hook(self._key)]}),
        )  # fmt: skip
        async with client:
            yield client

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


class OpenAIPolicy(OwnedPolicy):
    """Policy that asks an endpoint. Every answer is kept, and a request that was answered before is not sent again.

    `name` is that of the model at the server. `answers` is the file of answers; None keeps them in this process only.
    """

    append_only = False

    def __init__(self, config: Config, name: str, *, answers: Path | None = None) -> None:
        self.name, self.version = name, 0
        self.config = config.endpoint
        self.context_length = self.config.context_tokens
        options = config.model.template_options
        self._unusual = options | ({"endpoint.extra": self.config.extra} if self.config.extra else {})
        require_prices(self.config)
        for price, part in (("price_input", "prompts"), ("price_output", "answers")):
            if self.config.max_cost and not getattr(self.config, price):
                logger.warning("endpoint.%s = 0: %s count as free", price, part)
        self.endpoint = Endpoint(self.config, name, options)
        self.answers = AnswerCache(answers, self.config)
        self._requests: dict[str, Counter[str]] = {}  # of each open episode: how often it made each request
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of the requests under way
        self._density = 1.0  # most prompt tokens that the server counted for one of our estimate
        self._surplus = 0  # most that it counted beyond our estimate of a short one, such as a preamble of its own
        self._warnings: set[str] = set()  # those given

    def encode(self, messages: Sequence[Message]) -> TokenIds:  # noqa: ARG002
        return ()

    def count_tokens(self, text: str) -> int:
        """Estimate the tokens of `text`, rather too high."""
        return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)

    def open_episode(self, episode: str) -> None:
        self._requests[episode] = Counter()

    def close_episode(self, episode: str) -> None:
        self._requests.pop(episode, None)

    def metrics(self) -> dict[str, float]:
        return self.answers.metrics()

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Ask for the next assistant turn, or take the answer that is kept.

        The n-th equal request of an episode gets the n-th answer to it, so a run that is started again reads its
        answers from disk. Raises `PolicyError` where the endpoint refuses or failed too often, and `BudgetError` before
        a request that could pass a limit.
        """
        if episode not in self._requests:
            raise PolicyError(f"episode {episode!r} is not open: call open_episode first")
        same = self._hash_request(messages, sampling)
        key = f"{same}.{self._requests[episode][same]}"
        self._requests[episode][same] += 1
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            answer = self.answers.find(key) or await self._ask(key, messages, sampling)
        text, cut = sampling.cut_at_stop(answer.text)
        usage = (answer.prompt_tokens, answer.completion_tokens)
        return Completion((), (), (), text, "stop" if cut else answer.finish_reason, usage)

    def _hash_request(self, messages: Sequence[Message], sampling: Sampling) -> str:
        """Hash all that an answer depends on; the same in every process."""
        turns = [(message.role, message.content) for message in messages]
        request = [self.config.base_url.rstrip("/"), self.name, turns, asdict(sampling)]
        request += [self._unusual] if self._unusual else []
        return hashlib.blake2b(json.dumps(request).encode(), digest_size=16).hexdigest()

    async def _ask(self, key: str, messages: Sequence[Message], sampling: Sampling) -> PaidAnswer:
        estimate = sum(self.count_tokens(message.content) + TOKENS_PER_MESSAGE for message in messages)
        await self.endpoint.open()
        tries = 0
        await self.endpoint.require_answer()
        async with self.endpoint.slots:
            while True:
                most = TokenUsage(math.ceil(estimate * self._density) + self._surplus, sampling.max_tokens)
                try:
                    async with self._reserve_budget(most):
                        answer = await shield_until_done(self._send_once(key, messages, sampling, most, tries))
                except RetryableError as trouble:
                    tries += 1
                    if tries > self.config.max_retries:
                        raise PolicyError(self._explain_failure(trouble.reason, tries)) from None
                    seconds = compute_wait(tries, trouble.wait, trouble.status)
                    level = logging.WARNING if seconds >= LONG_WAIT else logging.INFO
                    logger.log(level, "%s: %s; another try in %.1f s", self.config.base_url, trouble.reason, seconds)
                    await asyncio.sleep(seconds)
                    continue
                if not answer.estimated:
                    self._compare_counts(estimate, answer.prompt_tokens)
                return answer

    def _compare_counts(self, estimate: int, counted: int) -> None:
        """Learn how far the server's count of a prompt may pass our estimate, and warn where it is far below."""
        if estimate <= SHORT_PROMPT:
            self._surplus = max(self._surplus, counted - estimate)
        else:
            self._density = max(self._density, counted / estimate)
        if estimate > CUT_PROMPT and counted < estimate / 4:
            text = "%s counts %d tokens of a prompt of some %d: it may cut prompts (Ollama: set OLLAMA_CONTEXT_LENGTH)"
            self._warn_once(text, self.config.base_url, counted, estimate)

    def _warn_once(self, text: str, *values: object) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            logger.warning(text, *values)

    def _explain_failure(self, reason: str, tries: int) -> str:
        url = self.config.base_url
        if reason.startswith("429"):
            return (
                f"{url} refuses requests by its rate limit, {tries} times in a row ({reason}): lower "
                "endpoint.concurrency, or run the same command again later"
            )
        return (
            f"{url} failed {tries} times, at last with {reason}: see that it runs, lower endpoint.concurrency if it "
            "answers one request after the other, or raise endpoint.timeout, and run the same command again"
        )

    @asynccontextmanager
    async def _reserve_budget(self, most: TokenUsage) -> AsyncIterator[None]:
        """Wait until a request fits under the limits, and reserve the most that it can take."""
        while refusal := self.answers.explain_limit(most):
            if not self.answers.reserved:
                raise BudgetError(refusal)
            await asyncio.wait(self.answers.reserved, return_when=asyncio.FIRST_COMPLETED)  # it may take less
        ended = asyncio.get_running_loop().create_future()
        self.answers.reserved[ended] = most
        try:
            yield
        finally:
            ended.set_result(self.answers.reserved.pop(ended))

    async def _send_once(
        self, key: str, messages: Sequence[Message], sampling: Sampling, most: TokenUsage, tries: int
    ) -> PaidAnswer:
        """Send a request once. An answer is kept before it is used; a lost one that may have been billed is counted."""
        try:
            reply = await self.endpoint.send(messages, sampling)
        except RetryableError as trouble:
            if trouble.billed:
                self.answers.store(PaidAnswer(
                    "", "", "stop", most.prompt_tokens, most.completion_tokens, self.answers.compute_cost(most),
                    estimated=True, lost=trouble.reason,
                ))  # fmt: skip
            raise
        amount = reply.usage or TokenUsage(most.prompt_tokens, self.count_tokens(reply.text + reply.thoughts))
        answer = PaidAnswer(
            key, reply.text, reply.finish_reason, amount.prompt_tokens, amount.completion_tokens,
            self.answers.compute_cost(amount), estimated=reply.usage is None, retries=tries, model=reply.model,
        )  # fmt: skip
        self.answers.store(answer)
        if reply.is_filtered:
            self._warn_once("%s broke an answer off by its content filter; what came of it is used", self.name)
        elif not strip_thinking(answer.text) and (answer.text or reply.finish_reason != "stop"):
            self._warn_once(
                "%s thought until its answer ended (%s): raise rollout.max_action_tokens and memory.max_write_tokens "
                '(length), add "stop" to endpoint.omit (stop; answers are cut all the same), or set '
                "model.template_options = { enable_thinking = false }", self.name, answer.finish_reason,
            )  # fmt: skip
        return answer


def _parse_reply(text: str) -> EndpointReply:
    try:
        body = parse_json(text)
    except ValueError:
        raise RetryableError("an answer that is cut off or not JSON") from None
    match body:
        case {"choices": [{"message": dict() as message} as choice, *_]}:
            content, ended = message.get("content"), choice.get("finish_reason")
        case {"error": error} if error:
            raise RetryableError(f"an error in the place of an answer: {extract_error_text(error)}")
        case _:
            raise RetryableError("an answer without choices")
    if trouble := choice.get("error") or (ended in BROKEN_OFF and ended):
        raise RetryableError(f"an answer that broke off: {extract_error_text(trouble)}")
    if isinstance(content, list):  # Mistral's reasoning models send their thoughts and the answer as parts
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(map(str, texts))
    if not isinstance(content, str | None):
        raise RetryableError("an answer whose content is not text")
    usage = None
    match body:
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion), **others}}:
            total = others.get("total_tokens")  # the only count of xAI and Gemini that has hidden thoughts
            usage = TokenUsage(prompt, max(completion, total - prompt) if isinstance(total, int) else completion)
    reason: FinishReason = "length" if ended in ("length", "model_length") else "stop"
    thoughts = str(message.get("reasoning") or message.get("reasoning_content") or "")
    model = str(body.get("model") or "")
    return EndpointReply(content or "", reason, usage, model, thoughts, ended == "content_filter")


def _was_sent(error: BaseException) -> bool:
    return type(error.__cause__).__name__ not in _UNSENT_ERRORS

"""Any OpenAI-compatible chat endpoint as a policy: it acts, writes tips and adapts, and cannot be trained."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from trailnotes.config.schema import Config
from trailnotes.errors import BudgetError, ConfigError, PolicyError
from trailnotes.policies.base import OwnedPolicy
from trailnotes.policies.openai.endpoint import AnswerCache, Endpoint, LoopClient, PaidAnswer, TokenUsage, hash_request
from trailnotes.types import Completion, Message, Sampling, TokenIds, strip_thinking
from trailnotes.web.faults import RetryableError, compute_wait

logger = logging.getLogger(__name__)
T = TypeVar("T")

BYTES_PER_TOKEN = 3  # rather too few: a prompt that is longer than estimated would not fit
TOKENS_PER_MESSAGE = 4  # that a chat template puts around each message
LONG_WAIT = 5.0  # seconds; longer ones are announced


class OpenAIPolicy(OwnedPolicy):
    """Policy that asks an endpoint. Every answer is kept, and a request that was answered before is not sent again.

    `name` is that of the model at the server. `answers` is the file of answers; None keeps them in this process only.
    """

    append_only = False

    def __init__(self, config: Config, name: str, *, answers: Path | None = None) -> None:
        self.name, self.version = name, 0
        self.config = config.endpoint
        self.context_length = self.config.context_tokens
        if self.config.max_cost and not (self.config.price_input or self.config.price_output):
            raise ConfigError("endpoint.max_cost needs prices: set endpoint.price_input and endpoint.price_output")
        self.options = config.model.template_options
        self._unusual = self.options | ({"endpoint.extra": self.config.extra} if self.config.extra else {})
        self.endpoint = Endpoint(self.config, name, self.options)
        self.answers = AnswerCache(answers, self.config)
        self._asked: dict[str, Counter[str]] = {}  # of each open episode: how often it made each request
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of the requests under way
        self._density = 1.0  # most prompt tokens that the server counted for one of our estimate
        self._told: set[str] = set()

    def encode(self, messages: Sequence[Message]) -> TokenIds:  # noqa: ARG002
        return ()

    def count_tokens(self, text: str) -> int:
        """Estimate the tokens of `text`, rather too high."""
        return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)

    def open_episode(self, episode: str) -> None:
        self._asked[episode] = Counter()

    def close_episode(self, episode: str) -> None:
        self._asked.pop(episode, None)

    def metrics(self) -> dict[str, float]:
        return self.answers.metrics()

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Ask for the next assistant turn, or take the answer that is kept.

        The n-th equal request of an episode gets the n-th answer to it, so a run that is started again reads its
        answers from disk. Raises `PolicyError` where the endpoint refuses or failed too often, and `BudgetError` before
        a request that could pass a limit.
        """
        if episode not in self._asked:
            raise PolicyError(f"episode {episode!r} is not open: call open_episode first")
        same = hash_request(self.config.base_url, self.name, messages, sampling, self._unusual)
        key = f"{same}.{self._asked[episode][same]}"
        self._asked[episode][same] += 1
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            answer = self.answers.find(key) or await self._ask(key, messages, sampling)
        text, cut = sampling.cut_at_stop(answer.text)
        usage = (answer.prompt_tokens, answer.completion_tokens)
        return Completion((), (), (), text, "stop" if cut else answer.finish_reason, usage)

    async def _ask(self, key: str, messages: Sequence[Message], sampling: Sampling) -> PaidAnswer:
        estimate = sum(self.count_tokens(message.content) + TOKENS_PER_MESSAGE for message in messages)
        line, tries = await self.endpoint.get_loop_client(), 0
        async with line.slots:
            while True:
                most = TokenUsage(math.ceil(estimate * self._density), sampling.max_tokens)
                try:
                    async with self._reserve_budget(most, line):
                        answer = await _shield_until_done(self._send_once(key, messages, sampling, most, tries))
                except RetryableError as trouble:
                    tries += 1
                    if tries > self.config.max_retries:
                        raise PolicyError(
                            f"{self.config.base_url} failed {tries} times, at last with {trouble.reason}: see that it "
                            "runs, lower endpoint.concurrency if it answers one request after the other, or raise "
                            "endpoint.timeout, and run the same command again"
                        ) from None
                    seconds = compute_wait(tries, trouble.wait)
                    level = logging.WARNING if seconds >= LONG_WAIT else logging.INFO
                    logger.log(level, "%s: %s; another try in %.1f s", self.config.base_url, trouble.reason, seconds)
                    await asyncio.sleep(seconds)
                    continue
                if not answer.estimated:
                    self._density = max(self._density, answer.prompt_tokens / estimate)
                return answer

    @asynccontextmanager
    async def _reserve_budget(self, most: TokenUsage, line: LoopClient) -> AsyncIterator[None]:
        """Wait until a request fits under the limits, and reserve the most that it can take."""
        while refusal := self.answers.explain_limit(most):
            if not self.answers.reserved:
                raise BudgetError(refusal)
            line.freed.clear()
            await line.freed.wait()  # what is under way may end with less than is held back for it
        self.answers.reserved.append(most)
        try:
            yield
        finally:
            self.answers.reserved.remove(most)
            line.freed.set()

    async def _send_once(
        self, key: str, messages: Sequence[Message], sampling: Sampling, most: TokenUsage, tries: int
    ) -> PaidAnswer:
        """Send a request once. An answer is kept before it is used; a lost one that may have been billed is counted."""
        try:
            said = await self.endpoint.send(messages, sampling)
        except RetryableError as trouble:
            if trouble.billed:
                self.answers.store(PaidAnswer(
                    "", "", "stop", most.prompt_tokens, most.completion_tokens, self.answers.compute_cost(most),
                    estimated=True, lost=trouble.reason,
                ))  # fmt: skip
            raise
        amount = said.usage or TokenUsage(most.prompt_tokens, self.count_tokens(said.text))
        answer = PaidAnswer(
            key, said.text, said.finish_reason, amount.prompt_tokens, amount.completion_tokens,
            self.answers.compute_cost(amount), estimated=said.usage is None, retries=tries, model=said.model,
        )  # fmt: skip
        self.answers.store(answer)
        if not answer.text and answer.finish_reason == "length":
            self._warn_once(
                f"{self.name} used up {sampling.max_tokens} tokens before its first word, as models that think "
                "do: raise rollout.max_action_tokens and memory.max_write_tokens"
            )
        if answer.text and answer.finish_reason == "stop" and sampling.stop and not strip_thinking(answer.text):
            self._warn_once(
                f"{self.name} was stopped while it was thinking: a server looks for rollout.stop there too; add "
                '"stop" to endpoint.omit (answers are cut all the same), or set model.template_options = '
                "{ enable_thinking = false }"
            )
        return answer

    def _warn_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning("%s", text)


async def _shield_until_done(coroutine: Coroutine[Any, Any, T]) -> T:
    """Shield a coroutine from cancellation, and wait for its end: a request that was sent is paid for."""
    task = asyncio.ensure_future(coroutine)
    # Of the exception that a cancelled caller leaves, asyncio would print a traceback.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise

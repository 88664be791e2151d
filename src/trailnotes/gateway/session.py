"""One session of a foreign agent: seen from the run an environment, whose observations are the agent's requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trailnotes.envs.base import wrap_env_errors
from trailnotes.errors import EnvError
from trailnotes.gateway import requests
from trailnotes.gateway.requests import ChatPrompt, ChatTurn, DescribeTools, ModelCall, ModelReply, RequestRefused
from trailnotes.types import MAX_MAGNITUDE, Completion, Observation, Task

MAX_WAITING: Final = 64  # requests of one session that wait at a time
MAX_TOKEN_CHARS: Final = 64  # of a token of a whole context, on average: far above what tokenizers reach
MAX_REPORT_CHARS: Final = 32_768  # of the text of a report
MAX_FAULT_CHARS: Final = 300  # of what is wrong with one
_OVER: Final = "the episode is over: rollout.max_steps is reached, or the conversation fills the context"


class Report(BaseModel):
    """What an agent, or a scorer, says of how it went."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    score: float | None = None  # so far; None: as before
    success: bool | None = None  # None: whether the highest score is reached
    max_score: float | None = Field(default=None, gt=0)  # None: as before, and 1 at first
    reward: float | None = None  # for what was done since the last report; None: the gain in score
    text: str = ""  # what there was to see at the end
    done: bool = True
    truncated: bool = False  # cut off from outside, e.g. by a step limit of the agent's own


def parse_report(body: Mapping[str, Any]) -> Report:
    """Parse a report; raises `RequestRefused` for an unknown field or one of another type."""
    try:
        return Report.model_validate({name: value for name, value in body.items() if value is not None})
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise RequestRefused(f"this is no report ({faults[:MAX_FAULT_CHARS]})") from None


StartAgent = Callable[["Session"], Any]  # returns the running agent, which `close` stops
Score = Callable[[Task, list[dict[str, str]]], Any]


class Session:
    """An episode of one agent.

    The run calls `reset` and `answer`; the server calls `ask` and `report` for the agent, and the launcher `end` when
    the agent has ended. Requests that come at once are answered one after the other.

    Args:
        key: names the session in addresses.
        timeout: seconds to the first request, and from each answer to the next request or report.
        start: starts the agent on `reset`; None: it comes by itself.
        scorer: scores the episode when it has ended, whatever the agent reports; it runs in a thread.
        context_tokens: what a request may hold at most: one that is far too long is refused by its length, before any
            tokenizer reads it; 0 leaves that to the run.
    """

    def __init__(
        self, key: str, timeout: float, start: StartAgent | None = None, scorer: Score | None = None,
        context_tokens: int = 0,
    ) -> None:  # fmt: skip
        self.key, self.task = key, Task(key, "gateway")
        self.loop = asyncio.get_running_loop()
        self.num_answered = 0
        self.describe_tools: DescribeTools | None = None  # of the model, where it has a form of its own for tools
        self._timeout, self._start, self._scorer = timeout, start, scorer
        self._max_chars = context_tokens * MAX_TOKEN_CHARS
        self._agent: Any = None
        self._waiting: asyncio.Queue[tuple[ChatPrompt, asyncio.Future[Completion]] | None] = asyncio.Queue()
        self._now: asyncio.Future[Completion] | None = None  # the request that the run answers
        self._asked: dict[ChatPrompt, asyncio.Future[Completion]] = {}
        self._said: list[ChatTurn] = []  # the newest conversation, with its answer
        self._sampled: dict[tuple[int | None, str], str] = {}  # see `render_conversation`
        self._reward, self._report, self._failure, self._over = 0.0, Report(max_score=1.0, done=False), "", False
        self._cut = False  # no further request is answered
        self._clock: asyncio.Timeout | None = None  # while the agent is waited for

    @property
    def has_reported(self) -> bool:
        return self._report.done

    async def ask(self, call: ModelCall, *, again: bool = False) -> ModelReply:
        """Have the run answer a request; `again`: the client repeats one whose answer it may have missed."""
        said = requests.render_conversation(call, self._sampled, self.describe_tools)
        self._require_live()
        if self._max_chars and (length := sum(len(text) for _, text in said.turns)) > self._max_chars:
            raise RequestRefused(f"{length:,} characters do not fit into the context", 413, "context_length_exceeded")
        if self._cut:
            raise RequestRefused(_OVER, 400, "episode_over")
        future = self._asked.get(said) if again else None
        if future is None:
            if self._waiting.qsize() >= MAX_WAITING:
                raise RequestRefused(f"{MAX_WAITING} requests of this session wait already", 429, "too_many_requests")
            future = self._asked[said] = self.loop.create_future()
            self._waiting.put_nowait((said, future))
        completion = await asyncio.shield(future)
        reply = requests.make_reply(call, completion)
        for place in (requests.hash_turns(said.turns), None):
            self._sampled[place, requests.identify(reply.message)] = completion.text
        return reply

    def report(self, report: Report) -> None:
        """Take a report; the first that is `done` ends the episode, after which all are refused."""
        self._require_live()
        if self._scorer is not None:  # which alone says how it went
            report = Report(text=report.text, done=report.done, truncated=report.truncated)
        self._keep(report, self._report)
        if self._clock is not None:
            self._clock.reschedule(self.loop.time() + self._timeout)
        if report.done:
            self._finish()

    def _keep(self, report: Report, before: Report) -> None:
        known, most = before.score or 0.0, report.max_score or before.max_score or 1.0
        score = known if report.score is None else report.score
        reward = self._reward + (score - known if report.reward is None else report.reward)
        if not abs(reward) <= MAX_MAGNITUDE:
            raise RequestRefused(f"the rewards of an episode must have a sum of at most {MAX_MAGNITUDE:g} in size")
        success = score >= most if report.success is None else report.success
        self._report = report.model_copy(update={"score": score, "max_score": most, "success": success})
        self._reward = reward

    def end(self, failure: str = "") -> None:
        """Say that the agent has ended, and what it failed of; after a report that counts for nothing."""
        if not self._over:
            self._failure = failure
            self._finish()

    def _finish(self) -> None:
        self._over = True
        self._waiting.put_nowait(None)

    def _require_live(self) -> None:
        if self._over:
            raise RequestRefused("this session has reported its end", 409, "session_ended")

    async def reset(self, task: Task) -> Observation:
        """Start the agent on `task`, and wait for its first request; raises `EnvError` where none comes."""
        self.task = task
        try:
            self._agent = self._start(self) if self._start else None
        except OSError as error:
            raise EnvError(f"the agent cannot be started ({error})") from error
        return await self._observe()

    async def answer(self, completion: Completion) -> Observation:
        assert self._now is not None, "a request is answered once"
        self._said.append(("assistant", completion.text))
        self.num_answered += 1
        self._now.set_result(completion)
        self._now = None
        return await self._observe()

    async def cut(self, asked: Observation) -> Observation:
        """End the episode at the request `asked`, which is refused: what the agent then reports still counts.

        It has the time of a step for that. A scorer, where there is one, looks at what was said until then.
        """
        self._cut = True
        self._refuse_waiting()
        if self._scorer is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeout):
                    while await self._waiting.get() is not None:
                        pass
        await self._score()
        return replace(self._make_observation(text=asked.text, truncated=True), request=asked.request)

    async def step(self, action: str) -> Observation:
        """Answer with a text that no model sampled."""
        return await self.answer(Completion((), (), (), action))

    def close(self) -> None:
        """Refuse what is still asked, and end the agent."""
        self._over = True
        self._refuse_waiting()
        if self._agent is not None:
            self._agent.stop()

    def _refuse_waiting(self) -> None:
        waiting = [self._now] if self._now else []
        ended = False
        while not self._waiting.empty():
            item = self._waiting.get_nowait()
            ended |= item is None
            waiting += [item[1]] if item else []
        if ended:
            self._waiting.put_nowait(None)
        for future in waiting:
            if not future.done():
                future.set_exception(RequestRefused(_OVER, 400, "episode_over"))
                future.exception()  # the agent may be gone, and nobody else fetches it

    async def _observe(self) -> Observation:
        try:
            async with asyncio.timeout(self._timeout) as self._clock:
                asked = await self._waiting.get()
        except TimeoutError:
            if not self.num_answered:
                raise EnvError(f"the agent asked for nothing within env.timeout = {self._timeout:g} s") from None
            await self._score()
            return self._make_observation(text="", truncated=True)
        finally:
            self._clock = None
        if asked is None:
            return await self._observe_end()
        (said, newest), self._now = asked
        kept = 0
        while kept < min(len(said) - 1, len(self._said)) and said[kept] == self._said[kept]:
            kept += 1
        self._said = list(said)
        request = {"kept": kept, "messages": [list(message) for message in said[kept:]]}
        return self._make_observation(text=newest, request=request)

    async def _observe_end(self) -> Observation:
        if self._failure:
            raise EnvError(self._failure)
        if not self.num_answered:
            raise EnvError("the agent ended without one request to the model: is it given the address of its session?")
        if self._scorer is None and (self._report.score is None or not self._report.done):
            raise EnvError(
                "the agent ended without a report: call trailnotes.session().report(score=...), or set "
                "env.options.scorer"
            )
        await self._score()
        cut = self._report.truncated
        return self._make_observation(text=self._report.text[:MAX_REPORT_CHARS], terminated=not cut, truncated=cut)

    async def _score(self) -> None:
        if self._scorer is None:
            return
        messages = [{"role": role, "content": text} for role, text in self._said]
        with wrap_env_errors("env.options.scorer"):
            answer = await asyncio.to_thread(self._scorer, self.task, messages)
            found = parse_report(answer if isinstance(answer, Mapping) else {"score": float(answer)})
        rest = {"text": found.text or self._report.text, "done": self._report.done}
        self._reward = 0.0
        self._keep(found.model_copy(update=rest | {"truncated": self._report.truncated}), Report())

    def _make_observation(self, **facts: Any) -> Observation:
        reward, self._reward = self._reward, 0.0
        report, done = self._report, "request" not in facts
        return Observation(
            reward=reward, score=report.score or 0.0, max_score=report.max_score or 1.0,
            success=bool(report.success) and done, **facts,
        )  # fmt: skip

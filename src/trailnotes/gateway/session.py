"""One session of a foreign agent, which is an environment to the run: its observations are the agent's requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trailnotes.envs.base import wrap_env_errors
from trailnotes.errors import EnvError
from trailnotes.gateway import requests
from trailnotes.gateway.requests import ChatPrompt, ChatTurn, DescribeTools, ModelCall, ModelReply, RequestRefused
from trailnotes.types import MAX_MAGNITUDE, Completion, Observation, Sampling, Task, require_score_within

MAX_WAITING: Final = 64  # requests of one session that wait at a time
MAX_REPORTS: Final = 1000  # between two requests
MAX_STRETCH: Final = 10  # times `env.timeout` between two requests, however many reports there are
MAX_MESSAGES: Final = 4096  # of a request
MAX_TOKEN_CHARS: Final = 32  # a text with more for each token of the context is refused without being tokenized
MAX_REPORT_CHARS: Final = 32_768  # of the text of a report
MAX_FAULT_CHARS: Final = 300  # of what is wrong with one
_OVER: Final = "the episode is over: rollout.max_steps is reached, or the conversation fills the context"


class Report(BaseModel):
    """The outcome of an episode, as an agent or a scorer reports it."""

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


StartAgent = Callable[["Session"], Callable[[], None] | None]  # returns what stops it, None for one that nothing can
Score = Callable[[Task, list[dict[str, str]]], Any]


@dataclass(slots=True, eq=False)
class _Request:
    """A request to the model, and those that wait for its answer."""

    prompt: ChatPrompt
    facts: dict[str, Any]  # further fields of `Observation.request`
    answer: asyncio.Future[Completion]
    num_clients: int = 0
    delivered: bool = False


class Session:
    """An episode of one agent.

    The run calls `reset` and `answer`; the server calls `ask` and `report` for the agent, and the launcher `end` when
    the agent has ended. Requests that come at once are answered one after the other.

    Args:
        key: names the session in addresses.
        timeout: seconds to the first request, and from each answer to the next request or report.
        start: starts the agent on `reset`; None: it comes by itself, and requests may set how they are sampled.
        scorer: scores the episode when it has ended, whatever the agent reports; it runs in a thread.
    """

    def __init__(self, key: str, timeout: float, start: StartAgent | None = None, scorer: Score | None = None) -> None:
        self.key, self.task = key, Task(key, "gateway")
        self.loop = asyncio.get_running_loop()
        self.num_answered = 0
        self.describe_tools: DescribeTools | None = None  # of the model, where it has a form of its own for tools
        self.decode: requests.Decode | None = None  # of a model that is served, if its log-probabilities are known
        self.sampling, self.max_prompt_tokens = Sampling(), 2**20  # until `run_episode` sets its own
        self.kept: asyncio.Future[RequestRefused | None] | None = None  # of a server: None once the outcome is on disk
        self._timeout, self._start, self._scorer = timeout, start, scorer
        self._stop: Callable[[], None] | None = None
        self._requests: dict[Hashable, _Request] = {}
        self._queue: deque[_Request] = deque()
        self._changed = asyncio.Event()  # there is another request, or the end
        self._now: _Request | None = None  # the one that the run answers
        self._turns: list[ChatTurn] = []  # the newest conversation, with its answer
        self._sampled: dict[tuple[bytes | None, str], str] = {}  # see `render_conversation`
        self._reward, self._report, self._failure = 0.0, Report(max_score=1.0, done=False), ""
        self._refusal = ""  # of further requests
        self._over = False
        self._clock: asyncio.Timeout | None = None  # while the agent is waited for
        self._latest, self._num_reports = 0.0, 0  # when that wait ends at the latest, and reports since its beginning

    @property
    def has_reported(self) -> bool:
        return self._report.done

    @property
    def is_unused(self) -> bool:
        """Tell whether the agent has neither sent a request nor reported."""
        return not self._requests and not self._num_reports

    @property
    def takes_requests(self) -> bool:
        return not self._over and not self._refusal

    async def ask(self, call: ModelCall, *, again: bool = False, trained: bool = True, number: int = 0) -> ModelReply:
        """Have the run answer a request.

        The same request is one step while it is unanswered, or where its clients left before the answer. It leaves the
        queue with its last client.

        Args:
            call: the request.
            again: its client says that it repeats one, whose answer it may have missed.
            trained: whether a run trains on the answer.
            number: of this answer, among all that the request wants.
        """
        facts = self._check_call(call, number)
        prompt = requests.render_conversation(call, self._sampled, self.describe_tools)
        self._require_fit(sum(len(text) for _, text in prompt.turns) / MAX_TOKEN_CHARS)
        if self._refusal:
            raise RequestRefused(self._refusal, 400, "episode_over")
        self._require_live()
        system = prompt.turns[0][1] if prompt.turns[0][0] == "system" else ""
        key = system, prompt.place, call.stop, call.sampling, number
        request = self._requests.get(key)
        if request is None or (request.delivered and not again):
            if len(self._queue) >= MAX_WAITING:
                raise RequestRefused(f"{MAX_WAITING} requests of this session wait already", 429, "too_many_requests")
            facts |= {} if trained else {"trained": False}
            request = self._requests[key] = _Request(prompt, facts, self.loop.create_future())
            self._queue.append(request)
            self._changed.set()
        request.num_clients += 1
        try:
            completion = await asyncio.shield(request.answer)
        finally:
            request.num_clients -= 1
            if not request.num_clients and request in self._queue:
                self._queue.remove(request)
                del self._requests[key]
        request.delivered = True
        reply = requests.make_reply(call, completion, self.decode)
        for place in (prompt.place, None):
            self._sampled[place, requests.identify(reply.message)] = completion.text
        return reply

    def _require_fit(self, least_tokens: float) -> None:
        if least_tokens > self.max_prompt_tokens:
            raise RequestRefused(
                f"the conversation does not fit a context of {self.max_prompt_tokens:,} tokens", 400,
                "context_length_exceeded",
            )  # fmt: skip

    def _check_call(self, call: ModelCall, number: int) -> dict[str, Any]:
        """Return how a call wants to be sampled; refuses what training cannot sample by, and too many messages."""
        self._require_fit(len(call.messages))
        if len(call.messages) > MAX_MESSAGES:
            raise RequestRefused(f"a request has at most {MAX_MESSAGES:,} messages")
        if call.logprobs and self.decode is None:
            raise RequestRefused("logprobs are kept for training and not sent, or the model gives none")
        changes = dict(call.sampling)
        if "seed" in changes:
            changes["seed"] += number
        if "max_tokens" in changes:
            changes["max_tokens"] = min(changes["max_tokens"], self.sampling.max_tokens)
        if call.stop:  # what is sampled must end where the agent's text does
            changes["stop"] = (*self.sampling.stop, *call.stop)
        if self._start is not None:
            if call.num_answers > 1:
                raise RequestRefused("n must be 1 in training: each answer is an action of one episode")
            for name, default in (("temperature", 1.0), ("top_p", 1.0), ("seed", None)):
                if changes.pop(name, default) not in {default, getattr(self.sampling, name)}:
                    raise RequestRefused(f"{name} is set by the run, which trains on what it samples: leave it out")
        return {"sampling": changes} if changes else {}

    def report(self, report: Report) -> None:
        """Take a report; the first that is `done` ends the episode, after which all are refused."""
        self._require_live()
        if self._num_reports >= MAX_REPORTS and not report.done:
            raise RequestRefused(f"{MAX_REPORTS} reports came since the last request", 429, "too_many_requests")
        if self._scorer is not None:  # which alone says how it went
            report = Report(text=report.text, done=report.done, truncated=report.truncated)
        self._keep(report, self._report)
        self._num_reports += 1
        if self._clock is not None:
            with contextlib.suppress(RuntimeError):  # it has just run out; a report that is done still counts
                self._clock.reschedule(min(self.loop.time() + self._timeout, self._latest))
        if report.done:
            self.end()

    def _keep(self, report: Report, before: Report) -> None:
        last = before.score or 0.0
        most = report.max_score or before.max_score or 1.0
        score = report.score
        if score is None:
            score = max(last, most) if report.success else last
        reward = self._reward + (score - last if report.reward is None else report.reward)
        if not max(abs(reward), abs(score), most) <= MAX_MAGNITUDE:
            raise RequestRefused(
                f"score, max_score and the sum of the rewards of an episode are at most {MAX_MAGNITUDE:g} in size"
            )
        try:
            require_score_within(score, most)
        except ValueError as error:
            raise RequestRefused(str(error)) from None
        success = score >= most if report.success is None else report.success
        self._report = report.model_copy(update={"score": score, "max_score": most, "success": success})
        self._reward = reward

    def end(self, failure: str = "") -> None:
        """End the session with its agent, which has failed by `failure`; after a report that counts for nothing."""
        if not self._over:
            self._failure, self._over = failure, True
            self._changed.set()

    def _require_live(self) -> None:
        if self._over:
            raise RequestRefused("this session has reported its end, or the run has ended it", 409, "session_ended")

    async def reset(self, task: Task) -> Observation:
        """Start the agent on `task`, and wait for its first request; raises `EnvError` where none comes."""
        self.task = task
        try:
            self._stop = self._start(self) if self._start else None
        except OSError as error:
            raise EnvError(f"the agent cannot be started ({error})") from error
        return await self._observe()

    async def answer(self, completion: Completion) -> Observation:
        assert self._now is not None, "a request is answered once"
        self._turns.append(("assistant", completion.text))
        self.num_answered += 1
        self._now.answer.set_result(completion)
        self._now = None
        return await self._observe()

    async def cut(self, unanswered: Observation) -> Observation:
        """Refuse a request and all further ones, and wait for the report or the end; a scorer needs no report."""
        self._refuse()
        with contextlib.suppress(TimeoutError):
            async with self._limit_wait():
                while not self._over and self._scorer is None:
                    await self._wait_for_change()
        await self._score()
        return replace(self._make_observation(text=unanswered.text, truncated=True), request=unanswered.request)

    async def step(self, action: str) -> Observation:
        """Answer with a text that no model sampled."""
        return await self.answer(Completion((), (), (), action))

    def close(self, refusal: RequestRefused | None = None) -> None:
        """Refuse all requests, those that wait with `refusal` (by default the episode is over), and end the agent."""
        self._over = True
        self._refuse(refusal)
        if self._stop is not None:
            self._stop()

    def _refuse(self, refusal: RequestRefused | None = None) -> None:
        refusal = refusal or RequestRefused(_OVER, code="episode_over")
        self._refusal = str(refusal)
        for request in [*self._queue, *([self._now] if self._now else [])]:
            if not request.answer.done():
                request.answer.set_exception(refusal)
                request.answer.exception()  # its clients may have gone
        self._queue.clear()
        self._now = None

    @contextlib.asynccontextmanager
    async def _limit_wait(self) -> AsyncIterator[None]:
        """Limit a wait to `timeout` after the last report, and `MAX_STRETCH` times that altogether."""
        self._latest, self._num_reports = self.loop.time() + MAX_STRETCH * self._timeout, 0
        try:
            async with asyncio.timeout(self._timeout) as self._clock:
                yield
        finally:
            self._clock = None

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _observe(self) -> Observation:
        try:
            async with self._limit_wait():
                while not self._queue and not self._over:
                    await self._wait_for_change()
        except TimeoutError:
            if not self.num_answered:
                raise EnvError(f"the agent asked for nothing within env.timeout = {self._timeout:g} s") from None
            await self._score()
            return self._make_observation(text="", truncated=True)
        if not self._queue:
            return await self._observe_end()
        self._now = request = self._queue.popleft()
        turns, newest, _ = request.prompt
        kept = 0
        while kept < min(len(turns) - 1, len(self._turns)) and turns[kept] == self._turns[kept]:
            kept += 1
        self._turns = list(turns)
        facts = {"kept": kept, "messages": [list(turn) for turn in turns[kept:]], **request.facts}
        return self._make_observation(text=newest, request=facts)

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
        messages = [{"role": role, "content": text} for role, text in self._turns]
        with wrap_env_errors("env.options.scorer"):
            answer = await asyncio.to_thread(self._scorer, self.task, messages)
            report = parse_report(answer if isinstance(answer, Mapping) else {"score": float(answer)})
            rest = {"text": report.text or self._report.text, "done": self._report.done}
            self._reward = 0.0
            self._keep(report.model_copy(update=rest | {"truncated": self._report.truncated}), Report())

    def _make_observation(self, **facts: Any) -> Observation:
        reward, self._reward = self._reward, 0.0
        report, done = self._report, "request" not in facts
        return Observation(
            reward=reward, score=report.score or 0.0, max_score=report.max_score or 1.0,
            success=bool(report.success) and done, **facts,
        )  # fmt: skip

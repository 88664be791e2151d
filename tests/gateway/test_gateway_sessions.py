"""One session, without a server: what is one step, what is refused, and which tokens are trained."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small import small_config
from trailnotes.gateway import requests, session
from trailnotes.gateway.requests import RequestRefused, parse_chat_call, render_conversation
from trailnotes.gateway.session import Report, Session
from trailnotes.learner.samples import build_samples
from trailnotes.memory import open_memory
from trailnotes.policies.chat import cache_ids
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.episode import run_beside_loop, run_episode
from trailnotes.types import (
    MODES,
    Completion,
    Message,
    Mode,
    Observation,
    Sampling,
    Task,
    Tip,
    TokenIds,
    Trajectory,
    TrajectoryGroup,
)

Chat = list[dict[str, str]]
ROLLOUT = {"max_steps": 40, "max_action_tokens": 64, "max_context_tokens": 5000, "stop": ()}


class StrictPolicy(ScriptedPolicy):
    """Refuses conversations whose roles do not alternate, as chat templates do, and notes how it samples."""

    def __init__(self) -> None:
        super().__init__(lambda messages: f"answer {len(self.sampled)}")
        self.sampled: list[Sampling] = []

    def encode(self, messages: Sequence[Message]) -> TokenIds:
        turns = [message.role for message in messages if message.role != "system"]
        if not turns or turns != (["user", "assistant"] * len(turns))[: len(turns)]:
            raise ValueError(f"roles {turns}")
        return super().encode(messages)

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        await asyncio.sleep(0)
        self.sampled.append(sampling)
        return await super().generate(messages, sampling, episode)


def play(
    agent: Callable[[Session], Awaitable[Any]], policy: ScriptedPolicy | None = None, *, tips: Sequence[Tip] = (),
    mode: Mode | None = None, leave_room: bool = False, trained: bool = True, timeout: float = 20.0, **rollout: Any,
) -> Trajectory:  # fmt: skip
    """Play the episode of a coroutine that uses its session directly; by default with the tips that there are."""
    config = small_config(rollout=ROLLOUT | rollout, memory={"leave_room": leave_room, "top_k": 2, "threshold": -1.0})

    async def run() -> Trajectory:
        agents: list[asyncio.Future[Any]] = []

        def start(opened: Session) -> None:
            agents.append(asyncio.ensure_future(agent(opened)))

        with open_memory(None, config.memory) as memory:
            memory.add(tips)
            opened = Session("one", timeout, start if trained else None)
            if not trained:
                agents.append(asyncio.ensure_future(agent(opened)))
            episode = await run_episode(
                policy or StrictPolicy(), opened, Task("one", "gateway"),
                mode or ("on_policy_tips" if tips else "plain"), memory, config, member=0, seed=0,
            )  # fmt: skip
            opened.close()
            await asyncio.gather(*agents)
            return episode

    return asyncio.run(run())


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def ask(opened: Session, messages: Chat, **more: Any) -> str:
    body = {name: more.pop(name) for name in list(more) if name not in {"again", "trained"}}
    return (await opened.ask(parse_chat_call({"messages": messages, **body}), **more)).content


# -- conversations

TEXTS = st.sampled_from(["a", "b", "look left", "x" * 40])
MOVES = st.lists(
    st.tuples(st.sampled_from(["extend", "fork", "fresh", "edit", "drop", "parallel"]), st.integers(0, 5), TEXTS),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(MOVES, st.sampled_from(MODES), st.booleans(), st.booleans())
def test_every_sampled_token_is_trained_once_in_any_conversations(
    moves: list[tuple[str, int, str]], mode: Mode, leave_room: bool, system: bool
) -> None:
    async def agent(opened: Session) -> None:
        head: Chat = [{"role": "system", "content": "be brief"}] if system else []
        chat = list(head)
        for number, (move, place, text) in enumerate(moves):
            if move in {"fresh", "parallel"}:
                chat = list(head)
            elif move == "fork":
                chat = chat[: place - place % 2 + len(head)]
            elif move == "drop" and len(chat) > len(head) + 1:
                del chat[len(head) : len(head) + 2]
            elif move == "edit" and len(chat) > len(head):
                chat[place % len(chat)] = {**chat[place % len(chat)], "content": text}
            texts = [f"{text} {number} {each}" for each in range(3 if move == "parallel" else 1)]
            answers = await asyncio.gather(*(ask(opened, [*chat, user(each)]) for each in texts))
            chat += [user(texts[0]), {"role": "assistant", "content": answers[0]}]
        opened.report(Report(score=1.0))

    tips = [Tip("one", "look left", "a", 0.0), Tip("one", "mind the gap", "b", 0.0)]
    episode = play(agent, tips=tips, mode=mode, leave_room=leave_room)
    assert (episode.outcome, episode.score) == ("terminated", 1.0)
    rows = build_samples([TrajectoryGroup(episode.task, (episode,))], [[1.0]])
    trained = [i for row in rows for i, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
    assert trained == [i for step in episode.steps for i in step.completion.token_ids]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system", "tool"]), st.text(max_size=3)), max_size=9))
def test_turns_alternate_and_hold_all_texts(messages: list[tuple[str, str]]) -> None:
    prompt = render_conversation(
        parse_chat_call({"messages": [*({"role": r, "content": t} for r, t in messages), user("end")]}), {}
    )
    roles = [role for role, _ in prompt.turns if role != "system"]
    assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
    whole = "\n".join(text for _, text in prompt.turns)
    assert all((text.strip() if role == "system" else text) in whole for role, text in messages)
    assert prompt.newest == "end"


def test_rendering_hashes_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashing = Mock(**{"copy.return_value": hashlib.blake2b()})
    monkeypatch.setattr(requests.hashlib, "blake2b", lambda **_: hashing)

    def count(turns: int) -> int:
        hashing.update.reset_mock()
        chat = [user("a"), {"role": "assistant", "content": "b"}] * turns
        render_conversation(parse_chat_call({"messages": [*chat, user("end")]}), {})
        return sum(len(call.args[0]) for call in hashing.update.call_args_list)

    assert 0 < count(1000) < 11 * count(100)


# -- requests that are refused


def test_what_cannot_fit_is_refused_before_any_tokenizer() -> None:
    async def agent(opened: Session) -> None:
        parts: Any = [{"role": "user", "content": [{"type": "text", "text": "x" * 200_000}]}]
        for chat in ([user("x" * 200_000)], [user("")] * 5000, parts):
            with pytest.raises(RequestRefused, match="fit"):
                await ask(opened, chat)
        await ask(opened, [user("a")])
        opened.report(Report(score=1.0))

    class Policy(StrictPolicy):
        def count_tokens(self, text: str) -> int:
            assert len(text) < 1000
            return super().count_tokens(text)

    assert len(play(agent, Policy()).steps) == 1


def test_long_texts_are_not_remembered_and_are_tokenized_in_a_thread() -> None:
    encoded: list[int] = []
    encode = cache_ids(lambda text: (encoded.append(len(text)), (1,))[1])
    for text in ("short", "short", "x" * 100_000, "x" * 100_000):
        encode(text)
    assert encoded == [5, 100_000, 100_000]

    async def find_thread(size: int) -> threading.Thread:
        request = {"kept": 0, "messages": [["user", "x" * size]]}
        return await run_beside_loop(Observation("", request=request), threading.current_thread)

    assert asyncio.run(find_thread(10)) is threading.main_thread()
    assert asyncio.run(find_thread(100_000)) is not threading.main_thread()


@pytest.mark.parametrize(
    ("body", "trained", "named"),
    [
        ({"n": 2}, True, "n must"), ({"n": 2.5}, False, "n must"), ({"logprobs": True}, True, "logprobs"),
        ({"top_logprobs": 2}, False, "top_logprobs"), ({"temperature": 0.5}, True, "temperature"),
        ({"seed": 1}, True, "seed"), ({"top_p": 0.5}, True, "top_p"),
        ({"temperature": 1e-300}, False, "temperature"), ({"temperature": "hot"}, False, "OpenAI"),
        ({"seed": 2**64}, False, "seed"),
        ({"logit_bias": {"1": 1}}, False, "logit_bias"), ({"presence_penalty": 1}, False, "presence_penalty"),
        ({"frequency_penalty": 1}, True, "frequency_penalty"), ({"tool_choice": "required"}, False, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, False, "tool_choice"),
        ({"max_tokens": -1}, False, "max_tokens"), ({"max_tokens": 0}, False, "max_tokens"),
        ({"n": 0}, False, "n must"), ({"stop": ["x"] * 65}, False, "64"), ({"stop": [""]}, True, "stop"),
    ],
)  # fmt: skip
def test_sampling_that_cannot_be_is_refused(body: dict[str, Any], trained: bool, named: str) -> None:
    async def agent(opened: Session) -> None:
        with pytest.raises(RequestRefused, match=named):
            await ask(opened, [user("a")], **body)
        await ask(opened, [user("a")], temperature=1, top_p=1)
        opened.report(Report(score=1.0))

    assert len(play(agent, trained=trained).steps) == 1


def test_agents_set_their_sampling_when_served_and_only_the_length_when_trained() -> None:
    async def agent(opened: Session) -> None:
        await ask(opened, [user("a")], **served, max_tokens=3)
        await ask(opened, [user("b")], max_completion_tokens=10_000)
        opened.report(Report(score=1.0))

    for served in ({"temperature": 0.5, "top_p": 0.9, "seed": 7}, {}):
        policy = StrictPolicy()
        episode = play(agent, policy, trained=not served)
        first, second = policy.sampled
        assert (first.max_tokens, second.max_tokens) == (3, 64)
        assert all(getattr(first, name) == value for name, value in served.items())
        assert second.temperature == 1.0
        assert episode.steps[0].completion.finish_reason == "length"


@pytest.mark.parametrize("trained", [True, False])
def test_a_stop_of_the_agent_ends_what_is_sampled(trained: bool) -> None:
    prompts: list[str] = []

    def script(messages: Sequence[Message]) -> str:
        prompts.append("|".join(message.content for message in messages))
        return "Action: look\nObservation: a key; Final: none"

    async def agent(opened: Session) -> None:
        call = parse_chat_call({"messages": [user("a")], "stop": "\nObservation:"})
        reply = await opened.ask(call)
        assert (reply.content, reply.finish_reason) == ("Action: look", "stop")
        assert list(requests.iter_chat_events([reply]))[1].count('"finish_reason": "stop"') == 1
        await ask(opened, [user("a"), {"role": "assistant", "content": reply.content}, user("b")])
        opened.report(Report(score=1.0))

    policy = ScriptedPolicy(script)
    episode = play(agent, policy, trained=trained, stop=("; Final:",))
    stopped, unstopped = (step.completion for step in episode.steps)
    assert (stopped.text, unstopped.text) == ("Action: look", "Action: look\nObservation: a key")
    assert prompts == ["a", "a|Action: look|b"]
    assert policy.decode(stopped.token_ids) == "Action: look", "what the agent never saw is not trained"


def test_calls_that_the_agent_excludes_are_no_training_rows() -> None:
    async def agent(opened: Session) -> None:
        for number, trained in enumerate((True, False, True)):
            await ask(opened, [user(str(number))], trained=trained)
        opened.report(Report(score=1.0))

    episode = play(agent)
    rows = build_samples([TrajectoryGroup(episode.task, (episode,))], [[1.0]])
    assert [sum(row.loss_mask) for row in rows] == [len(episode.steps[i].completion.token_ids) for i in (0, 2)]


# -- one step or two


def test_the_same_request_is_one_step_until_it_is_answered() -> None:
    async def agent(opened: Session) -> None:
        first = await asyncio.gather(*(ask(opened, [user("a")]) for _ in range(3)))
        assert first == ["answer 1"] * 3
        assert await ask(opened, [user("a")], again=True) == "answer 1"
        assert await ask(opened, [user("a")]) == "answer 2", "asked anew after its answer, it is another step"
        opened.report(Report(score=1.0))

    assert len(play(agent).steps) == 2


def test_a_client_that_leaves_cancels_its_request_or_gets_its_answer_later() -> None:
    async def agent(opened: Session) -> None:
        calls = [asyncio.ensure_future(ask(opened, [user(text)])) for text in "abc"]
        await asyncio.sleep(0)
        calls[2].cancel()  # still in the queue
        await calls[1]
        opened.report(Report(score=1.0))

    assert [step.observation.text for step in play(agent).steps] == ["a", "b"]

    async def leave_early(opened: Session) -> None:
        call = asyncio.ensure_future(ask(opened, [user("a")]))
        await policy.started.wait()
        call.cancel()
        policy.go_on.set()
        assert await ask(opened, [user("a")]) == "answer 1"
        opened.report(Report(score=1.0))

    class SlowPolicy(StrictPolicy):
        def __init__(self) -> None:
            super().__init__()
            self.started, self.go_on = asyncio.Event(), asyncio.Event()

        async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
            self.started.set()
            await self.go_on.wait()
            return await super().generate(messages, sampling, episode)

    policy = SlowPolicy()
    assert len(play(leave_early, policy).steps) == 1


# -- reports


@pytest.mark.parametrize("filled", [False, True])
def test_a_report_after_the_last_step_or_a_full_context_counts(filled: bool) -> None:
    async def agent(opened: Session) -> None:
        for _ in range(0 if filled else 2):
            await ask(opened, [user("a")])
        opened.report(Report(score=0.25, done=False))
        await ask(opened, [user("b")])
        for text in ("x" * 6000 if filled else "c", "d"):
            with pytest.raises(RequestRefused, match="the episode is over"):
                await ask(opened, [user(text)])
        await asyncio.sleep(0.1)
        opened.report(Report(score=1.0))

    episode = play(agent, max_steps=40 if filled else 3)
    assert (episode.outcome, episode.score, episode.success) == ("truncated", 1.0, True)
    assert episode.context_full == filled
    assert sum(step.reward for step in episode.steps) == (0.75 if filled else 1.0)


@pytest.mark.parametrize("done", [False, True])
def test_a_report_in_the_instant_in_which_the_wait_ends_counts(done: bool) -> None:
    """Both are due when a blocked event loop goes on: first the time limit, then the report."""

    async def agent(opened: Session) -> None:
        await ask(opened, [user("a")])
        await asyncio.sleep(0)
        reported = asyncio.Event()

        def report() -> None:
            opened.report(Report(score=0.5, done=done))
            reported.set()

        ends = opened._clock.when()
        opened.loop.call_at(ends + 1e-3, report)
        time.sleep(0.3)  # noqa: ASYNC251 - as a policy does that generates in this thread
        await reported.wait()

    episode = play(agent, timeout=0.2)
    assert (episode.outcome, episode.score) == ("truncated", 0.5)


def test_progress_reports_prolong_an_episode_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_STRETCH", 3)
    monkeypatch.setattr(session, "MAX_REPORTS", 4)
    refused: list[RequestRefused] = []

    async def agent(opened: Session) -> None:
        await ask(opened, [user("a")])
        for _ in range(60):
            await asyncio.sleep(0.1)
            try:
                opened.report(Report(score=0.5, done=False))
            except RequestRefused as error:
                refused.append(error)
                if error.status == 409:
                    break

    episode = play(agent, timeout=1.0)
    assert (episode.outcome, episode.score) == ("truncated", 0.5)
    assert {error.status for error in refused} == {429, 409}

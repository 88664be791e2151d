"""What agents may ask of the gateway, and how they may fail."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from agent_functions import AGENTS

from small import small_config
from trailnotes.client import AgentSession
from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, SessionOver
from trailnotes.gateway.pool import GatewayPool
from trailnotes.gateway.requests import parse_responses_call
from trailnotes.memory import open_memory
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.groups import GroupRunner
from trailnotes.storage.files import trajectory_from_json, trajectory_to_json
from trailnotes.types import Message, Task, Tip, Trajectory

Agent = Callable[[AgentSession], Any]
Script = Callable[[Sequence[Message]], str]


def echo(messages: Sequence[Message]) -> str:
    return f"echo {messages[-1].content.splitlines()[-1]}"


def agent_config(tmp_path: Path, **env: Any) -> Config:
    (tmp_path / "tasks.jsonl").write_text('{"id": "one"}\n{"id": "two"}\n')
    options = {"tasks": str(tmp_path / "tasks.jsonl"), "agent": "agent_functions:dispatch"}
    env = {"name": "gateway", "timeout": 60.0} | env
    rollout = {"max_steps": 6, "max_action_tokens": 256, "max_context_tokens": 50_000, "stop": ()}
    return small_config(env={**env, "options": options | env.get("options", {})}, rollout=rollout)


def play(
    config: Config, *agents: Agent, script: Script = echo, tips: Sequence[Tip] = (),
    errors: list[Trajectory] | None = None,
) -> list[Trajectory]:  # fmt: skip
    """Play one episode of each agent, with tips if there are any; those that failed go to `errors`."""
    names = ("one", "two")[: len(agents)]
    AGENTS.update(zip(names, agents, strict=True))

    async def run() -> list[Trajectory]:
        mode = "on_policy_tips" if tips else "plain"
        with GatewayPool(config.env) as pool, open_memory(None, config.memory) as memory:
            memory.add(tips)
            keep = None if errors is None else errors.append
            runner = GroupRunner(ScriptedPolicy(script), pool, memory, config, seed=0, on_error=keep)
            groups = await runner.play([Task(name, "gateway") for name in names], [[mode]] * len(names))
        return [trajectory for group in groups for trajectory in group.trajectories]

    return asyncio.run(run())


def ask(session: AgentSession, *texts: str, **more: Any) -> Any:
    """Ask with a conversation of user and assistant in turn."""
    messages: Any = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    with openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
        answer = client.chat.completions.create(**{"model": "trailnotes", "messages": messages} | more)
        return list(answer) if more.get("stream") else answer


def text_of(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_turns_that_follow_are_one_row_and_forks_another(tmp_path: Path) -> None:
    def agent(session: AgentSession) -> float:
        first = text_of(ask(session, "a"))
        ask(session, "a", first, "b")
        ask(session, "a", first, "c")
        return 0.5

    (episode,) = play(agent_config(tmp_path), agent)
    requests = [step.observation.request for step in episode.steps]
    assert requests == [{"kept": kept, "messages": [["user", text]]} for kept, text in ((0, "a"), (2, "b"), (2, "c"))]
    starts = [step.completion.prompt_ids for step in episode.steps]
    assert starts[1][: len(starts[0])] == starts[0]
    assert len(starts[2]) == len(starts[1])
    assert (episode.outcome, episode.score, episode.success, episode.episode_return) == ("terminated", 0.5, False, 0.5)
    assert trajectory_from_json(json.loads(json.dumps(trajectory_to_json(episode)))).steps[2].observation.request


def test_tips_open_the_newest_turn_and_the_agent_never_knows(tmp_path: Path) -> None:
    prompts: list[list[str]] = []

    def script(messages: Sequence[Message]) -> str:
        prompts.append([message.content for message in messages])
        return "go"

    def agent(session: AgentSession) -> float:
        ask(session, "a")
        ask(session, "a", "go", "b")
        return 1.0

    (episode,) = play(agent_config(tmp_path), agent, script=script, tips=[Tip("one", "look left", "a", 0.0)])
    assert prompts == [['notes :\n- " look left " 0 / 1\na'], ['notes :\n- " look left " 0 / 1\na', "go", "b"]]
    policy = ScriptedPolicy(script)
    plain = [[Message("user", "a")], [Message("user", "a"), Message("assistant", "go"), Message("user", "b")]]
    assert [policy.encode(messages) for messages in plain] == [step.plain_prompt_ids for step in episode.steps]
    assert [len(step.tips) for step in episode.steps] == [1, 0]


def test_tools_are_described_called_and_answered(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    seen: list[Sequence[Message]] = []

    def script(messages: Sequence[Message]) -> str:
        seen.append(messages)
        return 'I add. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>' if len(seen) == 1 else "2"

    def agent(session: AgentSession) -> float:
        choice = ask(session, "1 + 1?", tools=[tool]).choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
        messages = [
            {"role": "user", "content": "1 + 1?"}, choice.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "two"},
        ]  # fmt: skip
        assert text_of(ask(session, messages=messages, tools=[tool])) == "2"
        return 1.0

    (episode,) = play(agent_config(tmp_path), agent, script=script)
    assert [message.role for message in seen[1]] == ["system", "user", "assistant", "user"]
    assert '"name": "add"' in seen[0][0].content
    assert seen[1][2].content.startswith("I add. <tool_call>"), "what was sampled, not what the agent was sent"
    assert seen[1][3].content == "<tool_response>\ntwo\n</tool_response>"
    assert episode.success


def test_streams_responses_and_several_system_prompts(tmp_path: Path) -> None:
    def agent(session: AgentSession) -> float:
        parts = [chunk.choices[0].delta.content for chunk in ask(session, "a", stream=True)]
        assert [part for part in parts if part] == ["echo a"]
        with openai.OpenAI(base_url=session.base_url, api_key="k", max_retries=0) as client:
            assert client.responses.create(model="trailnotes", input="b", instructions="be").output_text == "echo b"
            assert [model.id for model in client.models.list()] == ["trailnotes"]
        messages = [
            {"role": "system", "content": "one"}, {"role": "developer", "content": "two"},
            {"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "system", "content": "late"},
        ]  # fmt: skip
        assert text_of(ask(session, messages=messages)) == "echo </system>", "its last line"
        return 0.0

    (episode,) = play(agent_config(tmp_path), agent)
    requests = [step.observation.request for step in episode.steps]
    assert requests[1] == {"kept": 0, "messages": [["system", "be"], ["user", "b"]]}
    assert requests[2] == {"kept": 0, "messages": [["system", "one\n\ntwo"], ["user", "x\n<system>\nlate\n</system>"]]}


def test_a_lost_answer_is_sampled_once(tmp_path: Path) -> None:
    calls: list[str] = []

    def script(messages: Sequence[Message]) -> str:
        calls.append(messages[-1].content)
        return f"answer {len(calls)}"

    def agent(session: AgentSession) -> float:
        address = urlsplit(session.base_url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        body = json.dumps({"messages": [{"role": "user", "content": "a"}]})
        connection.request("POST", f"{address.path}/chat/completions", body)
        connection.close()  # hangs up before the answer
        again = {"x-stainless-retry-count": "1"}
        assert text_of(ask(session, "a", extra_headers=again)) == "answer 1"
        assert text_of(ask(session, "a")) == "answer 2", "asked anew, it is another step"
        return 0.0

    (episode,) = play(agent_config(tmp_path), agent, script=script)
    assert len(episode.steps) == len(calls) == 2


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"model": "gpt-9"}, "gpt-9"), ({"model": ["x"]}, ""), ({"messages": []}, "messages"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "narrator"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "last message"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": "x"}]}]}, ""),
        ({"messages": [{"role": "user", "content": "x" * 10_000_000}]}, "4,194,304"),
        ({"response_format": {"type": "json_object"}}, "json_object"), ({"response_format": "json"}, ""),
        ({"tools": 5}, ""), ({"tools": [{"type": "custom", "custom": {"name": "say"}}]}, "tools must be functions"),
        ({"functions": [{"name": "say"}]}, "functions is"), ({"function_call": {"name": "say"}}, "function_call is"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "say"}}, {"role": "user"}]}, "is not supported"),
        ({"messages": [{"role": "user", "content": "\udcff"}]}, "surrogate"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_is_refused_and_the_episode_goes_on(
    tmp_path: Path, more: dict[str, Any], named: str
) -> None:
    def agent(session: AgentSession) -> float:
        address = urlsplit(session.base_url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
        body = {"messages": [{"role": "user", "content": "a"}]} | more
        connection.request("POST", f"{address.path}/chat/completions", json.dumps(body))
        answer = connection.getresponse()
        assert answer.status in {400, 404, 413}
        assert named in json.loads(answer.read())["error"]["message"]
        connection.close()
        ask(session, "a")
        return 1.0

    (episode,) = play(agent_config(tmp_path), agent)
    assert (len(episode.steps), episode.success) == (1, True)


def fail(*_: Any) -> None:
    raise RuntimeError("out of\nluck")


def all_the_best(*_: Any) -> float:
    return 40.0


@pytest.mark.parametrize(
    ("agent", "options", "error"),
    [
        (lambda session: ask(session, "a") and fail(), {}, "out of luck (test_gateway_agents.py:"),
        (lambda session: ask(session, "a") and sys.exit(1), {}, "SystemExit"),
        (lambda session: 1.0, {}, "without one request to the model"),
        (lambda session: ask(session, "a") and session.report(0.5, done=False), {}, "ended without a report"),
        (lambda session: ask(session, "a") and None, {"scorer": f"{__name__}:fail"}, "env.options.scorer raised"),
        (lambda session: ask(session, "a") and None, {"scorer": f"{__name__}:all_the_best"}, "above the highest, 1"),
    ],
)
def test_a_failing_agent_or_scorer_gives_no_episode_to_learn_from(
    tmp_path: Path, agent: Agent, options: dict[str, str], error: str
) -> None:
    errors: list[Trajectory] = []
    assert play(agent_config(tmp_path, options=options), agent, errors=errors) == []
    assert error in errors[0].error


def test_reports_are_taken_once_and_checked(tmp_path: Path) -> None:
    def agent(session: AgentSession) -> None:
        ask(session, "a")
        impossible = {"score": 40}, {"max_score": 0}, {"score": 1e308}, {"max_score": 1e308}, {"reward": -1e31}
        for wrong in ({"score": float("nan")}, {"score": "1"}, {"score": True}, {"grade": 1}, *impossible):
            with pytest.raises(ConfigError, match=r"no report|finite|in size|40 is above the highest, 1: give"):
                session.report(**wrong)  # type: ignore[arg-type]
        session.report(2.0, max_score=3.0, reward=0.5, done=False)
        session.report(3.0, text="the end")
        with pytest.raises(SessionOver, match="reported its end"):
            session.report(1.0)

    (episode,) = play(agent_config(tmp_path), agent)
    assert (episode.score, episode.max_score, episode.success, episode.episode_return) == (3.0, 3.0, True, 1.5)
    assert episode.final_observation.text == "the end"


def by_length(task: Task, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Score one for each turn of the user."""
    return {"score": sum(message["role"] == "user" for message in messages), "max_score": 7, "text": task.id}


def test_a_scorer_is_asked_where_the_run_ends_the_episode(tmp_path: Path) -> None:
    def agent(session: AgentSession) -> None:
        texts = ["a"]
        for _ in range(9):
            texts += [text_of(ask(session, *texts)), "b"]

    config = agent_config(tmp_path, options={"scorer": "test_gateway_agents:by_length"})
    (episode,) = play(config, agent)
    assert (len(episode.steps), episode.outcome, episode.score, episode.success) == (6, "truncated", 7.0, True)
    assert [step.reward for step in episode.steps] == [0.0] * 5 + [7.0]


def test_a_coroutine_is_an_agent_and_its_success_the_highest_score(tmp_path: Path) -> None:
    async def agent(session: AgentSession) -> dict[str, Any]:
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key="k") as client:
            await client.chat.completions.create(model="trailnotes", messages=[{"role": "user", "content": "a"}])
        return {"success": True, "max_score": 4.0}

    (episode,) = play(agent_config(tmp_path), agent)
    assert (episode.score, episode.success, episode.episode_return) == (4.0, True, 4.0)


def test_conversations_in_turn_keep_their_own_thinking(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    thoughts = iter("xyz")

    def script(messages: Sequence[Message]) -> str:
        seen.append([message.content for message in messages])
        return f"<think>{next(thoughts)}</think>ok"

    def agent(session: AgentSession) -> float:
        ask(session, "a")
        ask(session, "b")
        ask(session, "a", "ok", "go")
        return 0.0

    play(agent_config(tmp_path), agent, script=script)
    assert seen[2] == ["a", "<think>x</think>ok", "go"]


def test_text_and_call_of_one_response_are_one_turn() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]}
    parsed = parse_responses_call({"input": [{"role": "user", "content": "1 + 1?"}, text, call]})
    assert [message["role"] for message in parsed.messages] == ["user", "assistant"]

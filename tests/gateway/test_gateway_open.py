"""Sessions that agents begin by themselves: what has been reported is kept, and no name begins two."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import openai
import pytest
from test_gateway_agents import agent_config, echo
from test_gateway_sessions import StrictPolicy

from trailnotes.client import session
from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.errors import BudgetError, ConfigError, Interrupted, MemoryStoreError, PolicyError
from trailnotes.gateway.requests import ModelCall, RequestRefused, parse_chat_call
from trailnotes.gateway.server import GatewayServer
from trailnotes.gateway.session import Report
from trailnotes.memory import open_memory
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.runs.directory import RunLock
from trailnotes.runs.serving import OpenGateway
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Task
from trailnotes.web.serving import open_listener

CALL = parse_chat_call({"messages": [{"role": "user", "content": "a"}]})


class OneAtATime(ScriptedPolicy):  # refuses an episode that is open, as the engines do
    def open_episode(self, episode: str) -> None:
        assert episode not in self.open_episodes
        super().open_episode(episode)


async def test_each_report_before_the_end_is_recorded_and_gets_a_tip(tmp_path: Path) -> None:
    config = agent_config(tmp_path)
    with open_memory(None, config.memory) as memory:
        policy = OneAtATime(echo)
        gateway = OpenGateway(policy, memory, config, tmp_path / "episodes.jsonl", 0.0)
        sessions = [gateway.find("", f"task {number}") for number in range(20)]
        await asyncio.gather(*(session.ask(CALL) for session in sessions))
        for session in sessions[:-1]:
            session.report(Report(score=1.0, truncated=session is sessions[0]))
        await gateway.close()
        written = [tip for number in range(20) for tip in memory.search(f"task {number}", "a", 5)]
        assert (len(written), policy.open_episodes) == (19, set())
    outcomes = [line["outcome"] for line in read_jsonl(tmp_path / "episodes.jsonl")]
    assert sorted(outcomes) == ["error", *["terminated"] * 18, "truncated"]


@asynccontextmanager
async def serve(
    config: Config, path: Path, memory: Any = None, token: str = "", script: Any = echo
) -> AsyncIterator[tuple[OpenGateway, str]]:
    """An open gateway with its address; its episodes are in `path`."""
    gateway = OpenGateway(ScriptedPolicy(script), memory, config, path, 0.0)
    listener = open_listener("127.0.0.1", 0)
    server = GatewayServer(gateway.find, listener, token=token, find_default=gateway.find_default)
    await server.start()
    yield gateway, server.url
    server.stop()
    await gateway.close()


def test_the_first_answer_ends_as_the_others_do_and_a_restart_draws_anew(tmp_path: Path) -> None:
    policy, config = StrictPolicy(), agent_config(tmp_path)
    rollout = config.rollout.model_copy(update={"max_action_tokens": 900, "stop": ("b",)})
    config = config.model_copy(update={"rollout": rollout})
    call = parse_chat_call({"messages": [{"role": "user", "content": "a"}], "max_tokens": 512, "stop": "c"})

    async def run() -> None:
        gateway = OpenGateway(policy, None, config, tmp_path / "episodes.jsonl", 0.0)
        await gateway.find("", "tea").ask(call)
        await gateway.close()

    for _ in range(2):
        asyncio.run(run())
    assert [(sampling.max_tokens, sampling.stop) for sampling in policy.sampled] == [(512, ("b", "c"))] * 2
    assert policy.sampled[0].seed != policy.sampled[1].seed


async def test_a_report_is_on_disk_before_it_is_acknowledged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, path = agent_config(tmp_path), tmp_path / "episodes.jsonl"
    path.write_bytes(b'{"whole": 1}\n{"ha')  # by a gateway that was killed

    async def play(gateway: OpenGateway, url: str, *calls: ModelCall) -> None:
        opened = await asyncio.to_thread(session, "tea", gateway=url)
        for call in calls:
            await gateway.find(opened.url.rpartition("/")[2]).ask(call)
        await asyncio.to_thread(opened.report, 1.0)

    with open_memory(None, config.memory) as memory:
        async with serve(config, path, memory) as (gateway, url):
            for number in range(5):
                await play(gateway, url, CALL)
                assert len([*read_jsonl(path)]) == 1 + number + 1
                assert len(memory.store.load_attempts("tea", 9, without="")) == number + 1
            with pytest.raises(ConfigError, match=r"the report is not kept, since .*without one request"):
                await play(gateway, url)
            idle: Any = gateway.find("idle", "tea")
            idle.report(Report(score=1.0))
            assert (await idle.kept).status == 422, "no retry helps a client that requested nothing"
            path.unlink()
            path.mkdir()
            with pytest.raises(ConfigError, match="the report is not kept"):
                await play(gateway, url, CALL)
            late: Any = gateway.find("late", "tea")
            late._timeout, gateway._keep = 0.01, lambda _, late: late.report(Report(score=1.0))
            await late.ask(CALL)
            assert (await late.kept).status == 500, "the report is refused, since the episode has ended without it"
            assert "the run has ended it" in caplog.text


async def test_sessions_without_a_request_are_evicted_first(tmp_path: Path) -> None:
    async with serve(agent_config(tmp_path, max_envs=3), tmp_path / "episodes.jsonl") as (gateway, _):
        honest = gateway.find("honest", "tea")
        await honest.ask(CALL)
        for number in range(20):
            gateway.find(f"idle {number}", "tea")
            await asyncio.sleep(0)
        assert gateway.find("honest") is honest
        for number in (18, 19):
            await gateway.find(f"idle {number}").ask(CALL)
        with pytest.raises(RequestRefused, match="no such session"):
            gateway.find("idle 0")
        with pytest.raises(RequestRefused, match="3 sessions are alive"):
            gateway.find("late", "tea")


async def test_a_client_that_names_no_session_plays_one_after_the_other(tmp_path: Path) -> None:
    config = agent_config(tmp_path)
    async with (
        serve(config, tmp_path / "episodes.jsonl") as (_, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
    ):
        ask: Any = partial(client.chat.completions.create, model="trailnotes")
        for number in range(2 * config.rollout.max_steps - 1):
            answer = await ask(messages=[{"role": "user", "content": str(number)}])
            assert answer.choices[0].message.content == f"echo {number}"
        # Two answers of which the last is the first of another session, with the log-probability of each byte.
        several = await ask(messages=[{"role": "user", "content": "a"}], n=2, logprobs=True)
        assert [choice.index for choice in several.choices] == [0, 1]
        assert several.usage.completion_tokens == 2 * len("echo a ")
        for choice in several.choices:
            assert "".join(each.token for each in choice.logprobs.content) == choice.message.content == "echo a"
        parts = [part async for part in await ask(messages=[{"role": "user", "content": "a"}], n=2, stream=True)]
        assert [part.choices[0].delta.content for part in parts] == ["echo a", None] * 2
        assert [bool(part.usage) for part in parts] == [False] * 3 + [True]
        assert (await client.models.retrieve("trailnotes")).id == "trailnotes"
        with pytest.raises(openai.BadRequestError, match="fit"):
            await ask(messages=[{"role": "user", "content": "x" * 2_000_000}])
    assert [line["task"]["id"] for line in read_jsonl(tmp_path / "episodes.jsonl")] == ["default"] * 3


@pytest.mark.parametrize("error", [PolicyError("the endpoint is down"), BudgetError("endpoint.max_cost is reached")])
async def test_a_model_that_fails_is_no_fault_of_the_request(tmp_path: Path, error: Exception) -> None:
    script = Mock(side_effect=error)
    async with (
        serve(agent_config(tmp_path), tmp_path / "episodes.jsonl", script=script) as (_, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=2) as client,
    ):
        with pytest.raises(openai.InternalServerError, match=str(error)) as caught:
            await client.chat.completions.create(model="trailnotes", messages=[{"role": "user", "content": "a"}])
    assert (caught.value.status_code, caught.value.code, caught.value.type) == (502, "model_failed", "server_error")
    assert script.call_count == 1, "the client was told that no retry helps"


async def test_a_session_needs_the_token_and_a_task(tmp_path: Path) -> None:
    async with serve(agent_config(tmp_path), tmp_path / "episodes.jsonl", token="secret") as (_, url):
        with pytest.raises(ConfigError, match="Say the token"):
            await asyncio.to_thread(session, "tea", gateway=url)
        with pytest.raises(ConfigError, match="a session needs a task"):
            await asyncio.to_thread(session, gateway=url, token="secret")
        assert await asyncio.to_thread(session, "tea", gateway=url, token="secret")


async def test_a_task_that_json_cannot_hold_is_shown(tmp_path: Path) -> None:
    async with serve(agent_config(tmp_path), tmp_path / "episodes.jsonl") as (gateway, url):
        gateway.find("one", "tea").task = Task("tea", "gateway", options={"x": float("nan"), "half": "\ud800"})
        half = await asyncio.to_thread(httpx.post, f"{url}/sessions", content=b'{"task": "\xed\xa0\x80"}')
        one = await asyncio.to_thread(httpx.get, f"{url}/sessions/one")
        assert (half.status_code, one.json()["options"]) == (400, {"x": None, "half": "\ud800"})


def test_a_signal_during_a_request_ends_the_loop() -> None:
    async def run() -> None:
        await GatewayServer(Mock(side_effect=Interrupted(15)), listener).start()
        with socket.create_connection(listener.getsockname()) as client:
            client.send(b"GET /sessions/one HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await asyncio.sleep(20)

    with open_listener("127.0.0.1", 0) as listener, pytest.raises(Interrupted):
        asyncio.run(run())


@pytest.mark.parametrize("place", ["author", "memory"])
async def test_no_client_writes_a_line_of_the_log_and_no_default_session_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    config = agent_config(tmp_path)
    with open_memory(None, config.memory) as memory:
        gateway: Any = OpenGateway(ScriptedPolicy(echo), memory, config, tmp_path / "episodes.jsonl", 0.0)
        fails = MemoryStoreError("the disk is full") if place == "memory" else PolicyError("no answer")
        target = "trailnotes.runs.serving.write_tips" if place == "author" else "trailnotes.memory.TipMemory.add"
        monkeypatch.setattr(target, Mock(side_effect=fails))
        for number in range(9):
            session = gateway.find_default(f"{number}\nERROR: all is lost")
            await session.ask(CALL)
            session.report(Report(score=1.0))
            await session.kept
        await asyncio.gather(*gateway._playing)
        assert not gateway._defaults
        broken: Any = ScriptedPolicy(Mock(side_effect=PolicyError("broken")))
        gateway = OpenGateway(broken, None, config, tmp_path / "episodes.jsonl", 0.0)
        with pytest.raises(RequestRefused, match="broken"):
            await gateway.find_default("x\nERROR: all is lost").ask(CALL)
        await gateway.close()
    assert [message.count("\n") for message in caplog.messages] == [0] * (9 + 9 + 2)


async def test_a_name_belongs_to_one_session(tmp_path: Path) -> None:
    async with serve(agent_config(tmp_path), tmp_path / "episodes.jsonl") as (gateway, _):
        session: Any = gateway.find("mine", "coffee")
        assert gateway.find("mine") is gateway.find("mine", "coffee") is session
        await session.ask(CALL)
        session.report(Report(score=1.0))
        gateway._memory = Mock(register_unknown_task=Mock(side_effect=MemoryStoreError("the disk is full")))
        with pytest.raises(MemoryStoreError):
            gateway.find("lost", "tea")
        for name, task, message in (("mine", "tea", "'coffee'"), ("a/b", "tea", "no /"), ("lost", "", "no such")):
            with pytest.raises(RequestRefused, match=message):
                gateway.find(name, task)
    with pytest.raises(RequestRefused, match="it is over"):
        gateway.find("mine", "coffee")


@pytest.mark.parametrize(
    ("words", "fix"),
    [("--algorithm.author start", "set policy or extract"), ("--memory.scope family", "set task, env or all"),
     ("--algorithm.show_tips other", "set own")],
)  # fmt: skip
def test_unfit_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, fix: str) -> None:
    assert main(["gateway", "smoke", "--out", str(tmp_path / "out"), *words.split()]) == 2
    assert fix in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_endpoint_that_does_not_answer_is_noticed_before_any_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trailnotes.runs.serving.serve_agents", Mock(side_effect=AssertionError))
    model = ["--model", "openai:m", "--endpoint.base_url", "http://127.0.0.1:9/v1"]
    assert main(["gateway", "smoke", "--port", "0", "--out", str(tmp_path), *model]) == 2
    assert "127.0.0.1:9/v1 does not answer" in capsys.readouterr().err


def test_two_gateways_do_not_share_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RunLock(tmp_path / "lock")
    assert main(["gateway", "smoke", "--port", "0", "--out", str(tmp_path)])
    assert "in use by process" in capsys.readouterr().err
    lock.release()

"""Agents that are commands, and a gateway that agents come to by themselves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from test_gateway_agents import agent_config, play

from children import alive, wait_for
from trailnotes.client import AgentSession, session
from trailnotes.commands import main
from trailnotes.errors import ConfigError
from trailnotes.memory import open_memory
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Trajectory

AGENT = """
import json, os, sys, time, trailnotes, urllib.request
session = trailnotes.session()
request = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": session.task["id"]}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"  # by hand: a process imports openai for seconds
answer = json.load(urllib.request.urlopen(url, json.dumps(request).encode()))["choices"][0]["message"]["content"]
"""


def command(tmp_path: Path, lines: str, **env: Any) -> Any:
    (tmp_path / "agent.py").write_text(AGENT + lines)
    options = {"agent": "", "command": [sys.executable, str(tmp_path / "agent.py")]}
    return agent_config(tmp_path, options=options, **env)


def test_a_command_gets_its_session_and_reports(tmp_path: Path) -> None:
    lines = """
import stat
is_pipe = stat.S_ISFIFO(os.fstat(1).st_mode)  # which keeps no more than its end
session.report(float(is_pipe), text=answer)
"""
    (episode,) = play(command(tmp_path, lines), lambda _: None)
    assert (episode.score, episode.final_observation.text) == (1.0, "echo one")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("sys.exit('no\\x1b[2J luck')", "the agent exited with status 1: no?[2J luck"),
        ("", "ended without a report"),
        ("os.kill(os.getpid(), 9)", "the agent died of SIGKILL"),
        ("print('x' * 5_000_000); sys.exit('the end')", "x the end"),
        ("sys.exit(os.environ['SOME_API_KEY'] + ' ' + os.environ['SOME_SECRET'])", "1: [SOME_API_KEY] [SOME_SECRET] ("),
    ],
)
def test_the_error_of_a_failed_command_holds_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, message: str
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sesame-0123456789")
    monkeypatch.setenv("SOME_SECRET", "sesame-0123456789-and-more")
    errors: list[Trajectory] = []
    play(command(tmp_path, lines, timeout=60.0), lambda _: None, errors=errors)
    assert message in errors[0].error


@pytest.mark.long
def test_a_command_that_never_ends_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trailnotes.gateway.pool.GRACE_S", 0.1)
    lines = f"""
import openai, subprocess
child = subprocess.Popen(["sleep", "600"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
try:
    messages = [{{"role": "user", "content": "on"}}]
    while True:
        openai.OpenAI(max_retries=0).chat.completions.create(model="trailnotes", messages=messages)
except openai.APIStatusError:
    time.sleep(600)
"""
    (episode,) = play(command(tmp_path, lines, timeout=8.0), lambda _: None)
    assert (episode.outcome, len(episode.steps)) == ("truncated", 6)
    wait_for(lambda: not alive(int((tmp_path / "child").read_text())))


def test_a_command_that_ends_leaves_no_child_behind(tmp_path: Path) -> None:
    lines = f"""
import subprocess
for name, detached in (("child", False), ("stray", True)):
    child = subprocess.Popen(["sleep", "600"], start_new_session=detached)
    open({str(tmp_path)!r} + "/" + name, "w").write(str(child.pid))
session.report(1.0)
"""
    (episode,) = play(command(tmp_path, lines, timeout=60.0), lambda _: None)
    assert episode.score == 1.0
    pids = [int((tmp_path / name).read_text()) for name in ("child", "stray")]
    wait_for(lambda: not any(map(alive, pids)))


def test_a_trainer_that_ends_at_once_leaves_no_child_behind(tmp_path: Path) -> None:
    trainer = f"""
import asyncio, pathlib, time, types
from trailnotes.gateway import pool
from trailnotes.types import Task
loop, child, pool.GRACE_S = asyncio.new_event_loop(), pathlib.Path({str(tmp_path)!r}, "child"), 0.1
loop.close()
session = types.SimpleNamespace(task=Task("one", "gateway"), loop=loop)
agent = pool.AgentProcess(["/bin/sh", "-c", f"sleep 600 & echo $! > {{child}}; wait"], session, "http://127.0.0.1:1/one")
while not (child.exists() and child.read_text()):
    time.sleep(0.01)
agent.stop()
"""
    subprocess.run([sys.executable, "-c", trainer], check=True, timeout=60)
    assert not alive(int((tmp_path / "child").read_text()))


def test_a_missing_program_or_function_is_named_before_anything_starts(tmp_path: Path) -> None:
    for options, message in (
        ({"agent": "", "command": ["no-such-agent"]}, "no program 'no-such-agent'"),
        ({"agent": "no_such_module:play"}, "must name module:function"),
        ({"agent": "agent_functions:OPTIONS"}, "is no function"),
        ({"agent": ""}, "needs a command, or an agent"),
        ({"command": ["true"]}, "and not both"),
    ):
        with pytest.raises(ConfigError, match=message):
            play(agent_config(tmp_path, options=options), lambda _: None)


@pytest.fixture
def gateway(start_model: Path, tmp_path: Path) -> Any:
    """A running `trailnotes gateway`: its address and its directory."""
    settings = [
        *("demo", "--model.path", str(start_model), "--model.device", "cpu"),
        *("--algorithm.name", "empo2-tips", "--rollout.style", "terse", "--memory.top_k", "1"),
        *("--memory.order", '["worth"]', "--rollout.max_action_tokens", "4", "--rollout.max_context_tokens", "256"),
    ]
    out = tmp_path / "gateway"
    process = subprocess.Popen(
        [sys.executable, "-m", "trailnotes", "gateway", "--port", "0", "--out", str(out), *settings],
        stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    ready = process.stdout.readline()
    assert ready.startswith("ready: http://127.0.0.1:"), ready
    yield ready.split()[1], out
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    process.stdout.close()


def ask(opened: AgentSession, text: str, **more: Any) -> str:
    with openai.OpenAI(base_url=opened.base_url, api_key=opened.api_key) as client:
        messages: Any = [{"role": "user", "content": text}]
        return str(client.chat.completions.create(model="trailnotes", messages=messages, **more).choices[0])


def test_an_open_gateway_remembers_what_agents_report(gateway: tuple[str, Path]) -> None:
    url, out = gateway
    opened = [session("tea", gateway=url) for _ in range(4)]
    for number, each in enumerate(opened):
        ask(each, "you are in a kitchen")
        each.report(number / 4, text="the end")
    headers = {"x-trailnotes-session": "mine", "x-trailnotes-task": "coffee"}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", default_headers=headers) as client:
        messages: Any = [{"role": "user", "content": "a"}]
        client.chat.completions.create(model="trailnotes", messages=messages)
    AgentSession(f"{url}/sessions/mine", {}).report(1.0)
    wait_for(lambda: (out / "episodes.jsonl").exists() and len([*read_jsonl(out / "episodes.jsonl")]) == 5)
    episodes = [*read_jsonl(out / "episodes.jsonl")]
    assert sorted((episode["task"]["id"], episode["score"]) for episode in episodes) == [
        ("coffee", 1.0), *(("tea", number / 4) for number in range(4)),
    ]  # fmt: skip
    with open_memory(out / "memory.db") as memory:
        wait_for(lambda: len(memory.store.load_attempts("tea", 9, without="")) == 4)
        earned = [value for _, value in memory.store.load_attempts("tea", 9, without="")]
        assert sorted(earned) == [0.0, 0.25, 0.5, 0.75]
    ask(session("tea", gateway=url), "you are in a kitchen")
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    with client, pytest.raises(openai.NotFoundError, match="no POST /chat/completions here"):
        client.chat.completions.create(model="trailnotes", messages=messages)


SERVERS = {
    "memory serve over stdio": ["memory", "serve", "{}"],
    "memory serve": ["memory", "serve", "{}", "--port", "0"],
    "view": ["view", "{}", "--port", "0"],
    "envs serve": ["envs", "serve", "waymarks-simulator", "--port", "0", "--env.options.actions", "true"],
}
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "somebody", "version": "1"}}


@pytest.mark.parametrize("words", SERVERS.values(), ids=SERVERS)
def test_a_server_with_a_client_ends_by_sigterm(tmp_path: Path, words: list[str]) -> None:
    open_memory(tmp_path / "memory.db").close()
    command = [sys.executable, "-m", "trailnotes", *(word.format(tmp_path) for word in words)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with ExitStack() as stack:
        process: Any = stack.enter_context(subprocess.Popen(command, text=True, **pipes))
        if "--port" in words:
            address = urlsplit(process.stdout.readline().split()[1])
            client = socket.create_connection((address.hostname or "", address.port or 0), timeout=20)
            stack.enter_context(client).send(b"GET / HTTP/1.1\r\nhost: localhost\r\n")  # a request that goes on
        else:
            request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
            process.stdin.write(f"{json.dumps(request)}\n")
            process.stdin.flush()
            assert '"id":1' in process.stdout.readline().replace(" ", "")
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(("words", "named"), [(["--public"], "token"), ([], "other machines")])
def test_a_public_gateway_needs_a_token(tmp_path: Path, capsys, monkeypatch, words: list[str], named: str) -> None:
    monkeypatch.delenv("TRAILNOTES_GATEWAY_TOKEN", raising=False)
    assert main(["gateway", "demo", *words, "--host", "0.0.0.0", "--out", str(tmp_path / "out")])
    assert named in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_no_session_outside_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAILNOTES_SESSION", raising=False)
    for words, message in (
        ({}, "no gateway has started this process"), ({"gateway": "file:///etc"}, "begins with http"),
        ({"gateway": "http://127.0.0.1:9"}, "cannot be reached"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            session("tea", **words)

"""What we serve keeps the OpenEnv protocol: several sessions at once, with limits, and our own client plays it back."""

from __future__ import annotations

import asyncio
import functools
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from odd_envs import Puppet
from trailnotes.config.schema import EnvConfig
from trailnotes.envs import check_env, make_env
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.types import Task
from trailnotes_worlds.openenv.env import OpenEnvClient
from trailnotes_worlds.openenv.server import ServedTasks, ServerSession

pytest.importorskip("websockets", reason="the extra openenv is not installed")
pytest.importorskip("uvicorn", reason="the extra openenv is not installed")


NAME = "waymarks-simulator"


def talk(
    messages: Sequence[str | dict[str, Any] | None], name: str = "odd_envs:Puppet", games: ServedTasks | None = None
) -> list[Any]:
    """What one session answers, message by message, with environments in this process."""

    async def session() -> list[Any]:
        with EnvPool(EnvConfig(name=name, num_workers=0)) as pool:
            visitor = ServerSession(pool, games or ServedTasks(Puppet.tasks("train")))
            texts = [json.dumps(each) if isinstance(each, dict) else each for each in messages]
            answers = [await visitor.handle_message(text) for text in texts]
            await visitor.release_env()
            return answers

    return asyncio.run(session())


def step(action: str) -> dict[str, Any]:
    return {"type": "step", "data": {"action": action}}


RESET = {"type": "reset", "data": {"seed": 1}}


def test_an_episode_in_the_words_of_the_protocol() -> None:
    start, middle, end, state, over = talk([RESET, step("hello"), step("end"), {"type": "state"}, {"type": "close"}])
    assert start["type"] == "observation"
    assert start["data"]["reward"] is None
    assert start["data"]["observation"] == {
        "text": "hello train-1 1 {}", "instruction": "obey", "actions": ("pid", "end"), "success": False,
        "truncated": False, "score": 0.0, "max_score": 2.0, "task": "train-1",
    }  # fmt: skip
    assert (middle["data"]["reward"], middle["data"]["done"]) == (0.5, False)
    assert (end["data"]["reward"], end["data"]["done"], end["data"]["observation"]["success"]) == (2.0, True, True)
    assert (state["type"], state["data"]["step_count"], state["data"]["task"]) == ("state", 2, "train-1")
    assert over is None


def test_no_seed_of_one_split_is_a_game_of_another() -> None:
    of_one = ServedTasks(Puppet.tasks("test"))
    assert [of_one.choose_task({"seed": seed}).id for seed in (0, 4, 2_000_000)] == ["test-0", "test-1", "test-2"]
    games = ServedTasks([*Puppet.tasks("train"), *Puppet.tasks("test")])
    ours = [task for split in ("train", "test") for task in OpenEnvClient.tasks(split, url="http://host")]
    assert all(games.choose_task({"seed": task.seed}).split == task.split for task in ours)
    assert games.choose_task({"seed": 2_000_004}).id == "test-1"
    assert {games.choose_task({}).split for _ in range(40)} == {"train"}
    (answer,) = talk([{"type": "reset", "data": {"seed": 1_000_000}}], games=games)
    assert answer["data"]["message"].endswith("is of split validation, which is not served: there are train, test")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("garbage", "INVALID_JSON"),
        (None, "INVALID_JSON"),
        ("[1]", "UNKNOWN_TYPE"),
        ({"type": "mcp", "data": {}}, "UNKNOWN_TYPE"),
        ({"type": "reset", "data": []}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"task": "no such"}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"message": "hi"}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"action": "hi", "more": 1}}, "VALIDATION_ERROR"),
    ],
)
def test_what_is_no_request_is_answered_and_the_episode_goes_on(message: Any, code: str) -> None:
    _, refused, on = talk([RESET, message, step("hello")])
    assert (refused["type"], refused["data"]["code"]) == ("error", code)
    assert on["data"]["observation"]["text"] == "hello"


def test_a_session_outlives_a_failed_environment() -> None:
    _, failed, on, again, hello = talk([RESET, step("raise it"), step("hello"), RESET, step("hello")])
    assert failed["data"]["code"] == "EXECUTION_ERROR"
    assert "ValueError: two lines it" in failed["data"]["message"]
    assert on["data"]["code"] == "EXECUTION_ERROR"
    assert (again["type"], hello["data"]["observation"]["text"]) == ("observation", "hello")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [
        sys.executable, "-m", "trailnotes", "envs", "serve", NAME, "--split", "all", "--port", "0", "--sessions", "3",
        "--env.options.actions", "true", "--env.num_workers", "1",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = process.stdout.readline()
            assert ready.endswith("(120 tasks of splits train, validation, test)\n")
            yield ready.removeprefix("ready: ").split()[0]
        finally:
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate()
    assert (process.returncode, said) == (0, "the server has ended\n")


def opened(address: str, **headers: str) -> ClientConnection:
    return connect(f"ws{address.removeprefix('http')}/ws", additional_headers=headers, proxy=None, close_timeout=0.2)


def asked(connection: ClientConnection, message: dict[str, Any]) -> Any:
    connection.send(json.dumps(message))
    return json.loads(connection.recv(timeout=60))


@contextmanager
def let_in(address: str) -> Iterator[ClientConnection]:
    """A session, once the server has seen those of before go."""
    until, is_in = time.monotonic() + 60, False
    while not is_in:
        with opened(address) as connection:
            with suppress(ConnectionClosed):
                is_in = asked(connection, {"type": "state"})["type"] == "state"
            if is_in:
                yield connection
        assert time.monotonic() < until


def test_our_client_plays_the_same_game_over_the_wire(address: str) -> None:
    over, here = make_env("openenv", url=address), make_env(NAME, actions=True)
    (task,) = [task for task in here.tasks("train") if task.id.endswith("route/amber/train-3")]
    seed = [each.id for each in here.tasks("train")].index(task.id)
    theirs, ours = over.reset(Task("t", "openenv", seed)), here.reset(task)
    assert theirs == ours
    assert ours.actions
    while not ours.done:
        action = (ours.actions or ("wait",))[0]
        theirs, ours = over.step(action), here.step(action)
        assert theirs == replace(ours, actions=ours.actions or None)
    over.close()
    here.close()


def test_it_keeps_the_contract_both_ways(address: str) -> None:
    assert check_env(functools.partial(OpenEnvClient, url=address)) == ()


def test_sessions_are_apart_and_no_more_than_are_allowed(address: str) -> None:
    with let_in(address) as one, let_in(address) as two, let_in(address) as three:
        first, second = (asked(each, {"type": "reset", "data": {"seed": n}}) for n, each in enumerate((one, two)))
        assert first["data"]["observation"]["task"] != second["data"]["observation"]["task"]
        assert asked(three, step("look"))["data"]["code"] == "EXECUTION_ERROR"
        with opened(address) as fourth:
            full = json.loads(fourth.recv(timeout=60))
        assert full["data"] == {
            "message": "all sessions of this server are taken", "code": "CAPACITY_REACHED", "active_sessions": 3,
            "max_sessions": 3,
        }  # fmt: skip
        assert asked(one, {"type": "state"})["data"]["step_count"] == 0
    env = make_env("openenv", url=address)  # waits until the server has seen them go
    assert env.reset(Task("t", "openenv", 0)).text
    env.close()


def test_pages_of_other_sites_and_other_names_are_not_let_in(address: str) -> None:
    """A browser opens a WebSocket to this machine for any page; it says for which."""
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        with pytest.raises(InvalidStatus, match="HTTP 403"):
            opened(address, **headers)
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as door, pytest.raises(InvalidStatus, match="HTTP 403"):
        connect("ws://evil.example/ws", sock=door, proxy=None)
    request = urllib.request.Request(f"{address}/health", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="421"):
        urllib.request.urlopen(request, timeout=60)


WORDS = st.text(max_size=4)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
JSON = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(WORDS, SCALARS, max_size=2)


def mostly(**known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with some of these keys, and with anything in their places."""
    return st.fixed_dictionaries({}, optional={name: each | JSON for name, each in known.items()})


MESSAGE = mostly(
    type=st.sampled_from(["reset", "step", "state", "close"]),
    data=mostly(seed=st.integers(), task=WORDS, action=WORDS, episode_id=WORDS),
)


@given(st.lists((MESSAGE | JSON).map(json.dumps) | WORDS | st.none(), max_size=4))
@settings(max_examples=15, deadline=None)
def test_any_message_is_answered_in_the_protocol(messages: list[str | None]) -> None:
    for answer in talk(messages):
        if answer is not None:
            assert answer["type"] in {"observation", "state", "error"}
            json.dumps(answer, allow_nan=False)

"""Both directions against the official package, which has an environment of its own: it brings 100 others along.

``python -m venv VENV && VENV/bin/pip install openenv-core==0.3.0`` (or ``openenv``, under which name it goes on), then
``TRAILNOTES_TEST_OPENENV=VENV/bin/python pytest packages/worlds/tests/openenv``.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("websockets", reason="the extra openenv is not installed")

from trailnotes.envs import check_env
from trailnotes.errors import EnvError
from trailnotes.types import Task
from trailnotes_worlds.openenv.env import OpenEnvClient

PYTHON = os.environ.get("TRAILNOTES_TEST_OPENENV", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="TRAILNOTES_TEST_OPENENV names no python that has openenv-core")

SERVER = """
import sys, uvicorn
from pydantic import Field
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

class Say(Action):
    message: str = Field(min_length=1)

class Heard(Observation):
    echoed: str

class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        self.seed, self.steps = seed, 0
        return Heard(echoed=f"seed {seed}")

    def step(self, action, timeout_s=None, **more):
        if action.message == "raise":
            raise ValueError("on purpose")
        self.steps += 1
        over = self.steps == 3
        return Heard(echoed=action.message, done=over, reward=float(over and self.seed % 2))

    @property
    def state(self):
        return State(step_count=self.steps)

app = create_fastapi_app(Echo, Say, Heard, max_concurrent_envs=2)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""
CLIENT = """
import asyncio, json, sys
from openenv.core import GenericEnvClient
from openenv.cli._validation import validate_running_environment

async def played(url, seed):
    seen = []
    async with GenericEnvClient(base_url=url) as env:
        result = await env.reset(seed=seed)
        while True:
            seen.append([result.observation, result.reward, result.done])
            if result.done:
                return seen, await env.state()
            result = await env.step({"action": result.observation["actions"][0]})

async def both(url):
    return await asyncio.gather(played(url, 0), played(url, 1))

url = sys.argv[1]
print(json.dumps({"played": asyncio.run(both(url)), "report": validate_running_environment(url, 60.0)}))
"""


@pytest.fixture(scope="module")
def official() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with subprocess.Popen([PYTHON, "-c", SERVER, str(port)]) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def test_our_client_plays_their_server(official: str) -> None:
    options = {"url": official, "success_return": 1, "instruction": "say three words"}
    env = OpenEnvClient(**options, timeout=240.0, connect_timeout=120.0)
    start = env.reset(Task("t", "openenv", 7))
    empty, *_, last = [env.step(action) for action in ("", "one", "two", "three")]
    assert (start.text, last.text, last.reward, last.success) == ("seed 7", "three", 1.0, True)
    assert empty.text == "There is no such action: it must be String should have at least 1 character."
    env.reset(Task("t", "openenv", 8))
    with pytest.raises(EnvError, match=r"error \(EXECUTION_ERROR\): on purpose"):
        env.step("raise")
    env.close()
    assert check_env(functools.partial(OpenEnvClient, **options)) == ()


def test_their_client_and_their_validator_accept_our_server() -> None:
    words = ["envs", "serve", "waymarks-simulator", "--port", "0", "--env.options.actions", "true"]
    with subprocess.Popen([sys.executable, "-m", "trailnotes", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            address = process.stdout.readline().removeprefix("ready: ").split()[0]
            found: dict[str, Any] = json.loads(subprocess.check_output([PYTHON, "-c", CLIENT, address], text=True))
        finally:
            process.terminate()
    tasks = {played[0][0]["task"] for played, _ in found["played"]}
    assert len(tasks) == 2
    for played, state in found["played"]:
        assert played[0][1:] == [None, False]
        assert played[-1][2] is True
        assert state["step_count"] == len(played) - 1
    assert [each["id"] for each in found["report"]["criteria"] if not each["passed"]] == []
    assert found["report"]["passed"]

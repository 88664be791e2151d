"""Whatever comes over the wire is read or refused, on both sides, and never anything else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the extra openenv is not installed")

from odd_envs import Puppet
from trailnotes.config.schema import EnvConfig
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import EnvError
from trailnotes_worlds.openenv.reading import parse_observation
from trailnotes_worlds.openenv.server import OpenEnvService, ServerSettings
from trailnotes_worlds.openenv.sessions import ServedTasks, ServerSession

WORDS = st.text(max_size=4)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
JSON = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(WORDS, SCALARS, max_size=2)


def mostly(**known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with some of these keys, and with anything in their places."""
    return st.fixed_dictionaries({}, optional={name: each | JSON for name, each in known.items()})


OBSERVATION = mostly(
    text=WORDS, instruction=WORDS, actions=st.lists(WORDS, max_size=2), success=st.booleans(), score=st.floats(),
    max_score=st.floats(), truncated=st.booleans(), board=WORDS,
)  # fmt: skip
MESSAGE = mostly(
    type=st.sampled_from(["reset", "step", "state", "close"]),
    data=mostly(seed=st.integers(), task=WORDS, action=WORDS, episode_id=WORDS),
)


@given(mostly(observation=OBSERVATION, reward=st.floats(), done=st.booleans()), st.sampled_from(["auto", "board"]))
@settings(max_examples=30, deadline=None)
def test_an_answer_is_read_or_refused(data: dict[str, Any], field: str) -> None:
    try:
        answer = parse_observation(data, "server", field, "auto")
    except EnvError:
        return
    json.dumps([answer.reward, answer.score], allow_nan=False)
    answer.text.encode()
    assert answer.actions is None or all(answer.actions)
    assert answer.score is None or answer.score[0] <= answer.score[1]


@given(st.lists((MESSAGE | JSON).map(json.dumps) | WORDS | st.none(), max_size=4))
@settings(max_examples=15, deadline=None)
def test_any_message_is_answered_in_the_protocol(messages: list[str | None]) -> None:
    async def session() -> list[Any]:
        with EnvPool(EnvConfig(name="odd_envs:Puppet", num_workers=0)) as pool:
            visitor = ServerSession(pool, ServedTasks(Puppet.tasks("train")))
            answers = [await visitor.handle_message(message) for message in messages]
            await visitor.release_env()
            return answers

    for answer in asyncio.run(session()):
        if answer is not None:
            assert answer["type"] in {"observation", "state", "error"}
            json.dumps(answer, allow_nan=False)


class Quiet:
    """A connection over which nothing comes."""

    def __init__(self) -> None:
        self.headers = {"host": "localhost"}
        self.said: list[Any] = []

    async def accept(self) -> None:
        self.said.append("accepted")

    async def receive(self) -> None:
        await asyncio.Event().wait()

    async def send_text(self, text: str) -> None:
        self.said.append(json.loads(text)["data"]["code"])

    async def close(self, code: int = 1000) -> None:
        self.said.append(code)


def test_a_session_over_which_nothing_comes_is_ended() -> None:
    quiet: Any = Quiet()

    async def session() -> None:
        with EnvPool(EnvConfig(name="odd_envs:Puppet", num_workers=0)) as pool:
            settings_ = ServerSettings("puppet", "obeys", None, sessions=1, idle_s=0.01)
            await OpenEnvService(pool, ServedTasks(Puppet.tasks("train")), settings_).session(quiet)

    asyncio.run(session())
    assert quiet.said == ["accepted", "SESSION_ERROR", 1001]

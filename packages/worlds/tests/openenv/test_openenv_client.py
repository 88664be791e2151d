"""The client plays any server that keeps the protocol; of any other it says what is wrong, and one episode is lost."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("websockets", reason="the extra openenv is not installed")

from websockets.sync.server import ServerConnection

from scripted_server import PAGES, counting, observation, serving
from trailnotes.envs import get_env_identity, list_env_tasks
from trailnotes.errors import EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.openenv.env import OpenEnvClient
from trailnotes_worlds.openenv.reading import ActionForm

TASK = Task("t", "openenv", 7)
Message = dict[str, Any]


def client(url: str, **options: Any) -> OpenEnvClient:
    return OpenEnvClient(url=url, **{"timeout": 20.0, "connect_timeout": 2.0, **options})


def played(env: OpenEnvClient, *actions: str) -> list[Observation]:
    try:
        return [env.reset(TASK), *[env.step(action) for action in actions]]
    finally:
        env.close()


def saying(*answers: str | bytes) -> Callable[[ServerConnection, Message], None]:
    """A script whose every step has these answers, after a reset as it should be."""

    def script(connection: ServerConnection, message: Message) -> None:
        for answer in [observation("start")] if message["type"] == "reset" else answers:
            connection.send(answer)

    return script


def test_an_episode_is_what_the_server_says() -> None:
    with serving() as url:
        start, first, _, last = played(client(url, success_return=1), "hello", "there", "\ud800")
    assert (start.text, start.instruction, start.max_score) == ("seed 7", "Count to three.", 1.0)
    assert (first.text, first.reward, first.done) == ("hello", 0.0, False)
    assert (last.text, last.reward, last.terminated, last.success, last.score) == ("?", 1.0, True, True, 1.0)


def test_done_is_not_success() -> None:
    """Without a rule nothing is a success; a server that says `success` needs none."""
    with serving() as url:
        assert not played(client(url), "a", "b", "c")[-1].success
        assert not played(client(url, success_return=2), "a", "b", "c")[-1].success
    with serving(saying(observation("x", 0, True, success=True))) as url:
        assert played(client(url), "a")[-1].success
    with serving(saying(observation("x", 5, True, success=False))) as url:
        assert not played(client(url, success_return=1), "a")[-1].success
    with serving(saying(observation("x", 5, True, truncated=True))) as url:
        cut = played(client(url, success_return=1), "a")[-1]
    assert (cut.truncated, cut.terminated, cut.success) == (True, False, False)


def test_scores_are_shares_of_the_highest_of_the_reset() -> None:
    """Of a server that tells scores only in steps, and of one whose successes cost more than they bring."""
    with serving(saying(observation("x", score=40, max_score=100))) as url:
        half = played(client(url), "a")[-1]
    assert (half.score, half.max_score, half.success) == (0.4, 1.0, False)
    with serving(saying(observation("x", -1, True, success=True))) as url:
        won = played(client(url, max_return=1.0), "a")[-1]
    assert (won.score, won.max_score, won.success) == (1.0, 1.0, True)


@pytest.mark.parametrize(
    ("schema", "wish", "text", "made"),
    [
        (PAGES["/schema"]["action"], "auto", "hi", {"message": "hi"}),
        (PAGES["/schema"]["action"], "depth", "3", {"depth": 3}),
        (PAGES["/schema"]["action"], "depth", "three", None),
        (PAGES["/schema"]["action"], "json", '{"a": 1}', {"a": 1}),
        (PAGES["/schema"]["action"], "json", "hi", None),
        (PAGES["/schema"]["action"], "json", '{"a": NaN}', None),
        ({}, "auto", '{"type": "list_tools"}', {"type": "list_tools"}),
        ({"properties": {"a": {"type": "string"}, "b": {}}}, "auto", "hi", None),
        ({"properties": {"code": {}}}, "auto", "1", {"code": "1"}),
        ({"properties": {"move": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}, "auto", "1", {"move": 1}),
    ],
)
def test_an_action_becomes_what_the_server_wants(schema: Any, wish: str, text: str, made: Any) -> None:
    assert ActionForm.from_schema(schema, wish, {}).build_action(text) == made


def test_a_refused_action_does_not_end_the_episode() -> None:
    refusal = json.dumps({"type": "error", "data": {"code": "VALIDATION_ERROR", "errors": [{"msg": "too  bold"}]}})
    with serving(saying(refusal)) as url:
        env = client(url)
        _, refused, again = played(env, "jump", "jump")
        assert refused.text == again.text == "There is no such action: it must be too bold."
        (_, unsent) = played(client(url, action_field="depth"), "jump")
    assert unsent.text == "There is no such action: it must be of type integer."
    assert (unsent.reward, unsent.done) == (0.0, False)


def test_splits_share_no_seed_and_no_secret_is_in_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"url": "https://host.example:8000/echo/", "reset": {"level": 2}}
    listed = {split: list_env_tasks("openenv", split, options) for split in ("train", "test")}
    assert listed["train"][0].id == "openenv/host.example:8000/echo?level=2/0"
    assert not {task.seed for task in listed["train"]} & {task.seed for task in listed["test"]}
    named = list_env_tasks("openenv", "train", {**options, "game": "echo"})
    assert named[0].id == "openenv/echo?level=2/0"
    assert get_env_identity("openenv", options)["game"] == "host.example:8000/echo?level=2"
    assert get_env_identity("openenv", options | {"max_return": 3.0})["max_return"] == 3.0


def test_redirects_are_not_followed() -> None:
    """A redirect might lead into the network of whoever plays."""
    asked = []

    def elsewhere(connection: ServerConnection, message: Message) -> None:
        asked.append(message)
        counting(connection, message)

    with serving(elsewhere) as other, serving(pages=PAGES | {"elsewhere": f"ws{other.removeprefix('http')}"}) as url:
        env = client(f"{url}/moved", timeout=5.0)
        with pytest.raises(EnvError, match=r"no OpenEnv server can be reached .* HTTP 302"):
            env.reset(TASK)
    assert not asked


def test_a_token_is_sent_and_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def script(connection: ServerConnection, message: Message) -> None:
        assert connection.request
        seen.append(connection.request.headers.get("Authorization"))
        connection.send("garbage")

    monkeypatch.setenv("WORLD_TOKEN", "s3cret")
    with serving(script) as url, pytest.raises(EnvError) as caught:
        client(url, token_env="WORLD_TOKEN").reset(TASK)
    assert seen == ["Bearer s3cret"]
    assert "s3cret" not in str(caught.value)


LIES = {
    "that is no JSON": "garbage",
    'outside the protocol: \'{"type"': '{"type": "observation"}',
    "a request with 'state', not an observation": '{"type": "state", "data": {}}',
    "without an observation": '{"type": "observation", "data": {"observation": [], "done": false}}',
    "reward 'nan'": observation(reward=float("nan")),
    "error (EXECUTION_ERROR): it broke": json.dumps(
        {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "it\n broke"}}
    ),
    "error (?[31m): ?]0;owned? gone": json.dumps(
        {"type": "error", "data": {"code": "\x1b[31m", "message": "\x1b]0;owned\a gone"}}
    ),
    "success with a score of 0": observation(done=True, success=True, score=0, max_score=1),
}


@pytest.mark.parametrize("said", LIES)
def test_answers_outside_the_protocol(said: str) -> None:
    with serving(saying(LIES[said])) as url:
        env = client(url)
        env.reset(TASK)
        with pytest.raises(EnvError) as caught:
            env.step("a")
        with pytest.raises(EnvError, match="the episode is over"):
            env.step("a")
        env.close()
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_reset_after_a_lost_connection() -> None:
    dying = threading.Event()

    def script(connection: ServerConnection, message: Message) -> None:
        if dying.is_set():
            dying.clear()
            connection.socket.shutdown(socket.SHUT_RDWR)
        else:
            counting(connection, message)

    with serving(script) as url:
        env = client(url, connect_timeout=5.0)
        env.reset(TASK)
        dying.set()
        with pytest.raises(EnvError, match="has closed the connection"):
            env.step("a")
        assert env.reset(TASK).text == "seed 7"
        dying.set()  # a connection that is gone when the next episode begins is no failure
        assert env.reset(TASK).text == "seed 7"
        env.close()

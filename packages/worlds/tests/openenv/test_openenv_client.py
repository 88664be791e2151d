"""The client plays any server that keeps the protocol; of any other it says what is wrong, and one episode is lost."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("websockets", reason="the extra openenv is not installed")

from websockets.sync.server import ServerConnection

from liars import PAGES, counting, observation, serving
from trailnotes.config.schema import Config, EnvConfig, RolloutConfig
from trailnotes.envs import check_env, get_env_identity, list_env_tasks, make_env
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import ConfigError, EnvError
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.groups import run_groups
from trailnotes.types import Observation, Task
from trailnotes_worlds.openenv.connection import ServerAddress
from trailnotes_worlds.openenv.env import OpenEnvClient
from trailnotes_worlds.openenv.reading import ActionForm

TASK = Task("t", "openenv", 7)
Message = dict[str, Any]


def client(url: str, **options: Any) -> OpenEnvClient:
    return OpenEnvClient(url=url, **{"timeout": 20.0, "connect_timeout": 0.2, **options})


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


# -- servers that keep the protocol


def test_it_keeps_the_contract() -> None:
    with serving() as url:
        assert check_env(functools.partial(OpenEnvClient, url=url, success_return=1)) == ()


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


def test_scores_are_the_servers_where_it_has_them_else_returns() -> None:
    with serving(saying(observation("x", 3, score=2, max_score=4))) as url:
        assert [each.score for each in played(client(url, max_return=4), "a")] == [0.0, 2.0]
    with serving(saying(observation("x", 3, score=17))) as url:
        assert [each.score for each in played(client(url, max_return=4), "a", "a")] == [0.0, 3.0, 4.0]


def test_what_is_shown_is_the_only_text_or_what_is_named_or_everything() -> None:
    two = observation("x", None, False, prompt="y", cards=[1, 2], seen=None)
    with serving(saying(two)) as url:
        assert played(client(url), "a")[-1].text == "said: x\nprompt: y\ncards: [1, 2]"
        assert played(client(url, observation_field="said", instruction="go"), "a")[-1].text == "x"
        with pytest.raises(EnvError, match=r"without env\.options\.observation_field = 'board', but with \['said'"):
            played(client(url, observation_field="board"))


def test_admissible_actions_are_found_under_their_usual_names() -> None:
    with serving(saying(observation("x", legal_actions=[0, 2]), observation("late"))) as url:
        assert played(client(url, instruction="go"), "a")[-1].actions == ("0", "2")
    with serving(saying(observation("x", moves=["up"], actions="many"))) as url:
        assert played(client(url), "a")[-1].actions is None
        assert played(client(url, actions_field="moves"), "a")[-1].actions == ("up",)


@pytest.mark.parametrize(
    ("schema", "wish", "text", "made"),
    [
        (PAGES["/schema"]["action"], "auto", "hi", {"message": "hi"}),
        (PAGES["/schema"]["action"], "depth", "3", {"depth": 3}),
        (PAGES["/schema"]["action"], "depth", "three", None),
        (PAGES["/schema"]["action"], "depth", "true", None),
        (PAGES["/schema"]["action"], "json", '{"a": 1}', {"a": 1}),
        (PAGES["/schema"]["action"], "json", "hi", None),
        (PAGES["/schema"]["action"], "json", '{"a": NaN}', None),
        ({}, "auto", '{"type": "list_tools"}', {"type": "list_tools"}),
        ({"properties": {"a": {"type": "string"}, "b": {}}}, "auto", "hi", None),
        ({"properties": {"code": {}}}, "auto", "1", {"code": "1"}),
        ({"properties": {"move": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}, "auto", "1", {"move": 1}),
        ({}, "message", "hi", {"message": "hi"}),
    ],
)
def test_an_action_becomes_what_the_server_wants(schema: Any, wish: str, text: str, made: Any) -> None:
    assert ActionForm.from_schema(schema, wish, {}).build_action(text) == made


def test_other_fields_of_an_action_are_the_same_in_each() -> None:
    schema = {"properties": {"game": {"type": "string"}, "move": {"enum": ["up", "down"], "type": "string"}}}
    form = ActionForm.from_schema(schema, "auto", {"game": "maze"})
    assert form.build_action("up") == {"game": "maze", "move": "up"}
    assert form.choices == ("up", "down")


def test_an_action_that_cannot_be_sent_or_is_refused_is_answered_and_the_game_goes_on() -> None:
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


def test_a_server_that_serves_another_split_is_refused() -> None:
    about = PAGES | {"/metadata": {"description": "Count.", "splits": ["train"]}}
    with serving(pages=about) as url:
        env = client(url)
        assert env.reset(TASK).text == "seed 7"
        with pytest.raises(ConfigError, match=r"serves the split train, and t is of test: serve all of them"):
            env.reset(Task("t", "openenv", 7, "test"))
        env.close()


def test_nobody_is_asked_that_a_server_names() -> None:
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


def test_a_token_is_sent_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "localhost:8000"}, "is no address of a server: write http://HOST:PORT"),
        ({"url": "ftp://host"}, "is no address of a server"),
        ({"url": "http://host:port"}, "cannot be read"),
        ({"url": "http://me:pw@host"}, "must hold no name, password or query"),
        ({"url": "http://host/?token=pw"}, "must hold no name, password or query"),
        ({"url": 8000}, "env.options.url = 8000 must be a text"),
        ({"url": "http://host", "timeout": 0}, "timeout = 0: both must be above 0"),
        ({"url": "http://host", "token_env": "NO_SUCH_TOKEN"}, "the environment variable NO_SUCH_TOKEN holds no token"),
        ({"url": "http://host", "connect_timeout": 51}, "connect_timeout = 51, timeout = 50: both must be"),
        ({"url": "http://host", "max_return": 0}, "must be above 0"),
        ({"url": "http://host", "token_env": 3}, "env.options.token_env = 3 must be a text"),
        ({"url": "http://host", "action_field": 3}, "env.options.action_field = 3 must be a text"),
        ({"url": "http://host", "reset": 3}, "env.options.reset = 3 must be a table of names and values"),
        ({"url": "http://host", "action_rest": ["a"]}, "env.options.action_rest = ['a'] must be a table"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env("openenv", **options)
    assert said in str(caught.value)
    assert "pw" not in str(caught.value)


def test_addresses() -> None:
    assert ServerAddress.parse_url("wss://host/base/").socket == "wss://host/base/ws"
    assert ServerAddress.parse_url("http://[::1]:80").socket == "ws://[::1]:80/ws"
    assert ServerAddress.parse_url("http://[::1]:80").is_local
    assert not ServerAddress.parse_url("http://127.0.0.1.example").is_local


# -- servers that do not


LIES = {
    "that is no JSON": "garbage",
    "outside the protocol: '[1]'": "[1]",
    'outside the protocol: \'{"type"': '{"type": "observation"}',
    "a request with 'state', not an observation": '{"type": "state", "data": {}}',
    "without an observation": '{"type": "observation", "data": {"observation": [], "done": false}}',
    "done = 'yes'": observation(done="yes"),
    "reward 'lots'": observation(reward="lots"),
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
def test_what_is_outside_the_protocol_is_named_on_one_line(said: str) -> None:
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


def test_an_episode_that_is_over_at_its_start_is_refused() -> None:
    script = saying(observation(done=True))
    with serving(lambda connection, _: script(connection, {"type": "step"})) as url, pytest.raises(EnvError) as caught:
        client(url).reset(TASK)
    assert "says at reset that the episode is over" in str(caught.value)


def test_an_observation_of_a_megabyte_is_taken_and_one_without_end_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(saying(observation("é" * (1 << 20)))) as url:
        assert len(played(client(url), "a")[-1].text) == 1 << 20
        monkeypatch.setattr("trailnotes_worlds.openenv.connection.MAX_MESSAGE_BYTES", 1 << 16)
        with pytest.raises(EnvError, match="has closed the connection"):
            played(client(url), "a")


def test_a_server_that_hangs_is_left_after_the_time_limit() -> None:
    with serving(saying()) as url:
        env = client(url, timeout=0.3)
        env.reset(TASK)
        with pytest.raises(EnvError, match=r"did not answer within env\.options\.timeout"):
            env.step("a")


def test_a_server_that_is_killed_costs_the_episode_and_the_next_reset_finds_it_again() -> None:
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


def test_a_session_that_was_idle_too_long_is_opened_again() -> None:
    late = json.dumps({"type": "error", "data": {"code": "SESSION_ERROR", "message": "idle for too long"}})
    idle = threading.Event()

    def script(connection: ServerConnection, message: Message) -> None:
        if idle.is_set():
            idle.clear()
            connection.send(late)
        else:
            counting(connection, message)

    with serving(script) as url:
        env = client(url)
        env.reset(TASK)
        idle.set()
        assert env.reset(TASK).text == "seed 7"
        env.close()
    with (
        serving(lambda connection, _: connection.send(late)) as url,
        pytest.raises(EnvError, match="idle for too long"),
    ):
        client(url).reset(TASK)  # a new session is not idle


def test_a_server_that_comes_late_is_waited_for_and_one_that_never_comes_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(EnvError, match=rf"no OpenEnv server can be reached at 127\.0\.0\.1:{port}"):
        client(f"http://127.0.0.1:{port}").reset(TASK)
    answers: list[str] = []
    env = client(f"http://127.0.0.1:{port}", connect_timeout=20.0)
    waiting = threading.Thread(target=lambda: answers.append(env.reset(TASK).text))
    waiting.start()
    with serving(port=port):
        waiting.join()
        env.close()
    assert answers == ["seed 7"]


def test_a_server_without_free_sessions_says_what_to_set() -> None:
    full = json.dumps({"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "1 of 1"}})
    with serving(lambda connection, _: connection.send(full)) as url, pytest.raises(EnvError) as caught:
        client(url).reset(TASK)
    assert "set env.max_envs to the number of sessions that it allows" in str(caught.value)


def test_what_is_no_websocket_is_named() -> None:
    with serving() as url, pytest.raises(EnvError, match=r"no OpenEnv server can be reached at .*HTTP 404"):
        client(f"{url}/elsewhere").reset(TASK)


def test_a_server_without_pages_needs_an_instruction() -> None:
    pages = {"/schema": b"\xff garbage", "/metadata": [1]}
    with serving(pages=pages) as url:
        with pytest.raises(ConfigError, match=r"env\.options\.instruction is missing"):
            client(url).reset(TASK)
        start, first = played(client(url, instruction="count", action_field="message"), "a")
    assert (start.instruction, first.text) == ("count", "a")


def test_the_run_goes_on_where_episodes_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trailnotes.rollout.groups.MAX_REPLACEMENTS", 0)
    """Every other episode breaks off, and the others are played to their end."""
    begun = []

    def script(connection: ServerConnection, message: Message) -> None:
        if message["type"] == "reset":
            begun.append(message["data"]["seed"])
        if message["type"] == "step" and len(begun) % 2:
            connection.socket.shutdown(socket.SHUT_RDWR)
        else:
            counting(connection, message)

    with serving(script) as url:
        env = EnvConfig(name="openenv", options={"url": url, "num_train": 2}, num_workers=0)
        config = Config(env=env, rollout=RolloutConfig(max_steps=4))
        policy = ScriptedPolicy(lambda messages: "on", name="on")
        tasks = list_env_tasks("openenv", "train", env.options)
        with EnvPool(env) as pool:
            groups = asyncio.run(run_groups(policy, pool, tasks, [["plain"] * 4] * 2, None, config, seed=0))
    outcomes = [each.outcome for group in groups for each in group.trajectories]
    assert outcomes == ["terminated"] * 4
    assert len(begun) == 8

"""Simulators that die, hang, are interrupted or inherited; and none that outlives us. Real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import escape_new_line, get_command_part, unescape_new_line

from children import alive, children_of, wait_for
from trailnotes.config.schema import EnvConfig
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.java.gateway import decode_value, encode_value
from trailnotes_worlds.scienceworld.client import FaultTolerantGame, ScienceWorldClient, ScienceWorldSimulator
from trailnotes_worlds.scienceworld.env import ScienceWorldEnv

TASK = Task("scienceworld/boil/0", "scienceworld", options={"task": "boil", "variation": 0})
ACTIONS = ["teleport to kitchen", "open cupboard", "pick up orange", "0", "wait1", "look around", "inventory"]
WATERING = "teleportAction,selfWateringFlowerPots"


@pytest.fixture(scope="module")
def env() -> Iterator[ScienceWorldEnv]:
    env = ScienceWorldEnv(action_correction="ordered", actions="templates")
    yield env
    env.close()


@pytest.fixture(scope="module")
def undisturbed(env: ScienceWorldEnv) -> list[Observation]:
    return [env.reset(TASK), *(env.step(action) for action in ACTIONS)]


def without_restarts(observation: Observation) -> tuple[object, ...]:
    info = {key: value for key, value in observation.info.items() if key != "restarts"}
    return (observation.text, observation.reward, observation.score, observation.actions, info)


@pytest.mark.long
def test_an_episode_goes_on_after_its_simulator_was_killed(
    env: ScienceWorldEnv, undisturbed: list[Observation]
) -> None:
    again = [env.reset(TASK)]
    for place, action in enumerate(ACTIONS):
        if place == 4:
            os.kill(env._game._client.simulator.pid, signal.SIGKILL)
        again.append(env.step(action))
    assert [o.info.get("restarts", 0) for o in again] == [0] * 5 + [1] + [0] * 2
    assert [without_restarts(o) for o in again] == [without_restarts(o) for o in undisturbed]


@pytest.mark.long
def test_an_interrupted_call_is_not_answered_by_the_next_one(
    env: ScienceWorldEnv, undisturbed: list[Observation]
) -> None:
    env.reset(TASK)
    client = env._game._client

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            client.simulator.call("sleep", 60_000, of="java.lang.Thread")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not client.alive
    wait_for(lambda: not alive(client.simulator.pid))
    assert without_restarts(env.step(ACTIONS[0])) == without_restarts(undisturbed[1])


HOST = """
import os, sys, threading
from trailnotes_worlds.scienceworld.client import ScienceWorldClient
made = []
thread = threading.Thread(target=lambda: made.append(ScienceWorldClient()))
thread.start()
thread.join()
client = made[0]
print(client.simulator.pid, flush=True)
if not os.fork():  # a child that ends in the ordinary way, with the simulator among its variables
    assert not client.alive
    client.close()
    sys.exit(0)
assert os.wait()[1] == 0
assert client.simulator.call("getTaskNames")  # neither the thread's end nor the child's touched it
"""


@pytest.mark.long
def test_a_simulator_ends_with_its_interpreter() -> None:
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", HOST]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr) == (0, "")
    wait_for(lambda: not alive(int(ended.stdout)))


def read_command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@pytest.mark.long
async def test_a_killed_worker_takes_its_stopped_simulator_along() -> None:
    found: list[int] = []
    with EnvPool(EnvConfig(name="scienceworld", num_workers=1, timeout=240.0)) as pool:
        async with pool.lease() as lease:
            await lease.reset(TASK)
            worker = next(pid for pid in children_of(os.getpid()) if "workers.main" in read_command(pid))
            java = next(pid for pid in children_of(worker) if "java" in read_command(pid))
            found.append(java)
            os.kill(java, signal.SIGSTOP)
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(EnvError, match="SIGKILL"):
                await lease.step("look around")
    wait_for(lambda: not alive(found[0]))


@pytest.mark.long
def test_games_of_one_process_know_nothing_of_each_other() -> None:
    """Interleaved, each gives the text of a process of its own, whatever begins between, and lists actions in one."""
    setups = [(*task, WATERING) for task in (("boil", 0), ("find-animal", 1), ("power-component", 2))]
    actions = [*ACTIONS, "close drain", "activate sink", "move bowl to sink", "pour bowl in sink", "look at sink"]
    *games, other = (FaultTolerantGame(shared=True) for _ in range(4))
    begun = [game.begin(*setup) for game, setup in zip(games, setups, strict=True)]
    answers = []
    for action in actions:
        other.begin(*setups[0])  # water made later must not get the number of older water
        answers.append([game.step(action) for game in games])
    assert len({game._get_client().simulator.pid for game in games}) == 1
    listed = [game.valid_actions() for game in games]
    assert len({game._get_client().simulator.pid for game in games}) == 3
    assert [game.valid_actions() for game in games] != listed, "names are drawn"
    for i, (setup, game) in enumerate(zip(setups, games, strict=True)):
        alone = ScienceWorldClient()
        alone.load(*setup)
        assert alone.step("look around") == begun[i]
        assert [alone.step(action) for action in actions] == [column[i] for column in answers]
        assert alone.valid_actions() == listed[i]
        alone.close()
        game.close()
    other.close()


@pytest.mark.long
def test_a_game_that_draws_at_random_gets_a_process_of_its_own() -> None:
    """Bees that are let out fly as they do where no other game draws between.

    So does a game whose flower pots have to be watered: the simulator keeps that for all games of a process.
    """
    setup = ("find-animal", 0, f"openDoors,{WATERING}")
    actions = ["teleport to greenhouse", "open bee hive", *["wait1", "look around"] * 3]
    first, second = FaultTolerantGame(shared=True), FaultTolerantGame(shared=True)
    alone = ScienceWorldClient()
    alone.load(*setup)
    begun = [first.begin(*setup), second.begin(*setup)]
    assert begun == [alone.step("look around")] * 2
    for action in actions:
        answer = alone.step(action)
        assert first.step(action) == second.step(action) == answer
    assert first._get_client().simulator.pid != second._get_client().simulator.pid
    grown, dry = FaultTolerantGame(shared=True), FaultTolerantGame(shared=True)
    grown.begin("grow-plant", 0, WATERING)
    dry.begin("find-animal", 0, "teleportAction")
    assert grown._get_client().simulator._num_games == dry._get_client().simulator._num_games == 1
    for game in (alone, first, second, grown, dry):
        game.close()


@pytest.fixture(scope="module")
def simulator() -> Iterator[ScienceWorldSimulator]:
    """A real one, started amid options and files that must not reach it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1m -Duser.language=de")
    patch.setenv("_JAVA_OPTIONS", "-Xmx1m")
    with Path(__file__).open() as file:
        os.set_inheritable(file.fileno(), True)
        made = ScienceWorldSimulator()
    patch.undo()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'no such option' >&2; exit 3", "it exited with status 3; its last words: no such option"),
        ("kill -9 $$", "it died of SIGKILL"),
        ("echo There is insufficient memory >&2; exit 1", "its last words: There is insufficient memory"),
        ("echo hello; echo world; sleep 60", "it is not Java: it said 'hello'"),
        ("exec >&-; sleep 60", "it closed its output"),
        ("echo 1; echo token; sleep 60", "port 1 cannot be reached"),
        ("sleep 60", "it said nothing within 0.2 s"),
    ],
)
def test_a_program_that_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    java, numbers = tmp_path / "java", tmp_path / "pid"
    java.write_text(f"#!/bin/sh\necho $$ > {numbers}\n{script}\n")
    java.chmod(0o755)
    if "within" in words:
        monkeypatch.setattr("trailnotes_worlds.java.simulator.START_LIMIT", 0.2)
    passing = "SIGKILL" in words or "memory" in words
    with pytest.raises(EnvError if passing else ConfigError, match="Java could not be started") as caught:
        ScienceWorldSimulator(str(java), timeout=0.2)
    assert words in str(caught.value)
    assert ("Java 11 or newer is needed" in str(caught.value)) is not passing
    assert not numbers.exists() or not alive(int(numbers.read_text() or 0)), "it may be ended before it writes"


def test_a_java_that_is_slow_to_answer_is_no_wrong_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    monkeypatch.setattr("trailnotes_worlds.java.simulator.START_LIMIT", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        java.write_text(f"#!/bin/sh\necho {server.getsockname()[1]}\necho token\nsleep 60\n")
        java.chmod(0o755)
        with pytest.raises(EnvError, match="no answer within timeout = 2 s"):
            ScienceWorldSimulator(str(java), timeout=0.2)


texts = st.text(st.characters(exclude_categories=["Cs"]))


@settings(deadline=None)
@given(texts | st.integers(-(2**31), 2**31 - 1) | st.booleans() | st.none())
def test_arguments_are_written_as_py4j_writes_them(value: str | int | bool | None) -> None:
    assert encode_value(value) == get_command_part(value)[:-1]


@settings(deadline=None)
@given(texts)
def test_text_is_read_as_py4j_reads_it(text: str) -> None:
    line = encode_value(text)
    assert "\n" not in line
    assert "\r" not in line
    assert decode_value(line) == text == (unescape_new_line(escape_new_line(text)) or "")


@pytest.mark.long
def test_calls_carry_values_both_ways(simulator: ScienceWorldSimulator) -> None:
    word = 'ö \\n "\u2028\n\r\t\x00 \U0001f6aa'
    assert simulator.call("join", "-", simulator.call("getTaskNames"), of="java.lang.String").count("boil") == 1
    assert simulator.call("valueOf", True, of="java.lang.String") == "true"
    assert simulator.call("max", -3, 2, of="java.lang.Math") == 2
    builder = simulator._gateway.create("java.lang.StringBuilder", word)
    assert simulator.call("toString", of=builder) == word
    simulator.release(builder)
    with pytest.raises(EnvError, match=builder.id):
        simulator.call("toString", of=builder)

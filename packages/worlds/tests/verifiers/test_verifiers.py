"""Task sets of verifiers keep our contract; the package has an environment of its own, since its pins fight with ours.

``python -m venv VENV && VENV/bin/pip install -e . -e './packages/worlds[verifiers,openenv]'``, then
``TRAILNOTES_TEST_VERIFIERS=VENV/bin/python pytest packages/worlds/tests/verifiers``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
PYTHON = os.environ.get("TRAILNOTES_TEST_VERIFIERS", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="TRAILNOTES_TEST_VERIFIERS names no python that has verifiers")

GUESS = """
import itertools
import verifiers.v1 as vf

class Data(vf.TaskData):
    secret: int

class Guess(vf.Task[Data]):
    pass

class Numbers(vf.Taskset[Guess, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for seed in itertools.count():
            yield Guess(Data(prompt="Guess a number below 7.", system_prompt="Say a number.", secret=seed % 7))

class GameConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class Game(vf.Env[GameConfig]):
    async def run(self, task, agents):
        won = 0.0
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn()
            for _ in range(3):
                if segment.last_reply == "crash":
                    raise ValueError("on purpose")
                if segment.last_reply == "exit":
                    raise SystemExit(3)
                if segment.last_reply == str(task.data.secret):
                    won = 1.0
                    break
                segment = await talk.turn("no, another one")
        talk.trace.record_reward("won", won)

__all__ = ["Numbers", "Game"]
"""
MACHINE = """
import verifiers.v1 as vf

class Build(vf.Task[vf.TaskData]):
    NEEDS_CONTAINER = True

    async def setup(self, trace, runtime):
        pass

    @vf.reward
    async def built(self, runtime) -> float:
        return 1.0

class Builds(vf.Taskset[Build, vf.TasksetConfig]):
    def load(self):
        return [Build(vf.TaskData(prompt=f"build {n}")) for n in range(3)]

__all__ = ["Builds"]
"""
PLAY = """
import functools, json
from trailnotes.envs import check_env, list_env_tasks, make_env
from trailnotes_worlds.verifiers.env import VerifiersEnv
from trailnotes.errors import TrailnotesError

def attempt(call, *arguments, **options):
    try:
        return call(*arguments, **options)
    except TrailnotesError as error:
        return f"{type(error).__name__}: {error}"

def describe(each):
    return each if isinstance(each, str) else [each.text, each.reward, each.terminated, each.success, each.score]

results = {}
for name in ("capitals", "guess"):
    results[f"check {name}"] = check_env(functools.partial(VerifiersEnv, taskset=name))
    results[f"splits {name}"] = {split: [task.id for task in list_env_tasks("verifiers", split, {"taskset": name})]
                               for split in ("train", "validation", "test")}
(task, *_) = list_env_tasks("verifiers", "train", {"taskset": "capitals"})
for answer in ("Madrid", "It is Madrid", "Rome", "no idea"):
    env = make_env("verifiers", taskset="capitals")
    start, end = env.reset(task), env.step(answer)
    results[f"answer {answer}"] = [start.instruction, describe(start), describe(end), attempt(env.step, "again")]
    env.close()
env = VerifiersEnv(taskset="guess")
(task, *_) = VerifiersEnv.tasks("test", taskset="guess")
results["won"] = [describe(env.reset(task)), describe(env.step("3")), describe(env.step("0"))]
results["instruction"] = env.reset(task).instruction
results["crash"] = attempt(env.step, "crash")
env.reset(task)
results["exit"] = attempt(env.step, "exit")
env.reset(task)
results["again"] = describe(env.reset(task))
env.close()
results["machine"] = attempt(VerifiersEnv(taskset="machine").reset, VerifiersEnv.tasks("train", taskset="machine")[0])
results["nothing"] = attempt(VerifiersEnv.tasks, "train", taskset="no_such_taskset")
results["few"] = attempt(VerifiersEnv.tasks, "train", taskset="capitals", config={"countries": 2})
results["config"] = attempt(VerifiersEnv.tasks, "train", taskset="capitals", config={"depth": 2})
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tasksets")
    for name, source in {"guess": GUESS, "machine": MACHINE}.items():
        (folder / f"{name}.py").write_text(source)
    places = (ROOT / "src", ROOT / "examples", folder)
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}


@pytest.fixture(scope="module")
def results(surroundings: dict[str, str]) -> dict[str, Any]:
    printed = subprocess.check_output([PYTHON, "-c", PLAY], env=surroundings, text=True)
    output: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return output


def test_they_keep_the_contract(results: dict[str, Any]) -> None:
    assert results["check capitals"] == results["check guess"] == []


def test_a_question_has_its_own_rewards_weighted_and_summed(results: dict[str, Any]) -> None:
    instruction, start, right, after = results["answer Madrid"]
    assert instruction == "Answer what you are asked."
    assert start == ["What is the capital of Spain?", 0.0, False, False, 0.0]
    assert right == ["The episode is over.", 1.5, True, True, 1.0]
    assert after.startswith("EnvError: the episode is over")
    assert results["answer It is Madrid"][2][1:] == [1.0, True, True, 1.0]
    assert results["answer Rome"][2][1:] == [0.5, True, False, 0.5]
    assert results["answer no idea"][2][1:] == [0.0, True, False, 0.0]


def test_a_game_in_turns_is_played_turn_by_turn(results: dict[str, Any]) -> None:
    assert results["instruction"] == "Say a number."
    assert results["won"] == [
        ["Guess a number below 7.", 0.0, False, False, 0.0],
        ["no, another one", 0.0, False, False, 0.0],
        ["The episode is over.", 1.0, True, True, 1.0],
    ]
    assert results["crash"] == "EnvError: Game raised ValueError: on purpose"
    assert results["exit"] == "EnvError: Game raised SystemExit: 3"
    assert results["again"][0] == "Guess a number below 7."


def test_no_task_is_on_two_sides(results: dict[str, Any]) -> None:
    assert results["splits capitals"] == {
        "test": ["verifiers/capitals/0"],
        "validation": ["verifiers/capitals/1"],
        "train": ["verifiers/capitals/2", "verifiers/capitals/3"],
    }
    # of an infinite task set with seven different games all are the test's
    assert [len(results["splits guess"][split]) for split in ("test", "validation", "train")] == [7, 0, 0]


def test_what_cannot_be_played_says_why(results: dict[str, Any]) -> None:
    assert results["machine"] == (
        "ConfigError: env.options.taskset = 'machine' cannot be played here: its tasks run in a container; its tasks "
        "prepare a machine; a reward or a metric looks at a machine"
    )
    assert results["nothing"].startswith("ConfigError: env.options.taskset = 'no_such_taskset' cannot be loaded: ")
    assert results["few"] == "ConfigError: a task set of 2 tasks cannot be split into test, validation, train"
    assert results["config"].startswith("ConfigError: env.options.taskset = 'capitals' cannot be loaded: ")


def test_the_config_plays_the_example(surroundings: dict[str, str]) -> None:
    command = [PYTHON, "-m", "trailnotes", "rollout", "verifiers"]
    printed = subprocess.check_output([*command, "--env.num_workers", "0"], env=surroundings, text=True)
    assert "What is the capital of " in printed
    assert "terminated" in printed

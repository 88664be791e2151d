"""ScienceWorld as an environment, in the real simulator: one process for the module, one more for solutions."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from trailnotes.config.builtin import BUILTIN
from trailnotes.config.toml import load_config
from trailnotes.envs import check_env, get_env_identity
from trailnotes.envs.tasks import load_tasks, select_batch
from trailnotes.errors import EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.scienceworld.client import FaultTolerantGame, GoldPathFinder
from trailnotes_worlds.scienceworld.env import ScienceWorldEnv
from trailnotes_worlds.scienceworld.tasks import PAPER_PANEL, get_simulator_split, resolve_simplifications

FIND = "find-non-living-thing"
SOME = ("power-component", "boil", "lifespan-longest-lived", "chemistry-mix-paint-secondary-color")


def task_of(name: str = FIND, variation: int = 0, **options: Any) -> Task:
    return Task(
        f"scienceworld/{name}/{variation}", "scienceworld", options={"task": name, "variation": variation, **options}
    )


@pytest.fixture(scope="module")
def game() -> Iterator[FaultTolerantGame]:
    """The one simulator that most tests share."""
    game = FaultTolerantGame()
    yield game
    game.close()


@pytest.fixture(scope="module")
def solutions() -> Iterator[GoldPathFinder]:
    """Solutions of other tests' tasks, from one simulator with a larger heap."""
    paths = GoldPathFinder()
    yield paths
    paths.close()


def env_with(game: FaultTolerantGame, **options: Any) -> ScienceWorldEnv:
    env = ScienceWorldEnv(**options)
    env._game = game
    return env


def played(env: ScienceWorldEnv, task: Task, actions: Sequence[str]) -> list[Observation]:
    observations = [env.reset(task)]
    for action in actions:
        observations.append(env.step(action))
        if observations[-1].done:
            break
    return observations


def test_the_first_observation_says_what_to_do_and_how(game: FaultTolerantGame) -> None:
    first = env_with(game).reset(task_of())
    assert first.text.startswith("This room is called the hallway.")
    assert first.instruction == (
        "Your task is to find a(n) non-living thing. First, focus on the thing. Then, move it to the red box in the "
        "kitchen."
    )
    assert (first.score, first.max_score, first.reward, first.info) == (8.0, 100.0, 0.0, {"moves": 0})
    briefing = first.briefing or {}
    assert {"focus on OBJ", "move OBJ to OBJ", "teleport OBJ"} <= set(briefing["action_formats"])
    assert "connect OBJ to OBJ" not in briefing["action_formats"]  # easy
    assert "reset task" not in briefing["action_formats"]
    assert briefing["inventory"].startswith("In your inventory, you see:")
    assert "non-living thing" in briefing["focus"]
    assert set(briefing) == {"action_formats", "inventory", "focus"}


@pytest.mark.parametrize("name", [FIND, *(pytest.param(name, marks=pytest.mark.long) for name in SOME)])
def test_gold_paths_reach_the_full_score(game: FaultTolerantGame, solutions: GoldPathFinder, name: str) -> None:
    solution = solutions.find_solution(name, 1)
    env = env_with(game, max_steps=1000)
    env.reset(task_of("melt", 2))  # what was played before must not matter
    env.step("wait")
    observations = played(env, task_of(name, 1), solution.actions)
    last = observations[-1]
    assert [observation.text for observation in observations[:-1]] == [seen for seen, _ in solution.turns]
    assert (last.score, last.success, last.terminated, last.truncated) == (100.0, True, True, False)
    assert sum(observation.reward for observation in observations) == 100.0
    assert not any(observation.success or observation.done for observation in observations[:-1])
    with pytest.raises(EnvError, match="call reset before step"):
        env.step("look around")


def test_a_wrong_focus_ends_the_episode_by_each_convention(game: FaultTolerantGame) -> None:
    rewards = {}
    for score in ("raw", "floor0", "last_positive"):
        env = env_with(game, score=score)
        last = played(env, task_of("find-living-thing"), ["look around", "focus on air"])[-1]
        assert last.terminated
        assert not last.success
        rewards[score] = (last.reward, last.score)
    assert rewards == {"raw": (-108.0, -100.0), "floor0": (-8.0, 0.0), "last_positive": (0.0, 8.0)}


@pytest.mark.long
def test_answers_to_an_ambiguous_request(game: FaultTolerantGame) -> None:
    env = env_with(game, max_steps=100)
    results = []
    for answer in ("0", "Pick up orange (in inventory, in agent, in kitchen).", "dance"):
        *_, question = played(env, task_of("boil"), ["teleport to kitchen", "pick up orange"])
        assert question.text.startswith("Ambiguous request: Please enter the number")
        result = env.step(answer)
        results.append((result.text, int(result.info["moves"]) - int(question.info["moves"])))
        assert not env.step("pick up orange").text.startswith("Unknown action")
    numbered, worded, dropped = results
    assert numbered == ("You move the orange to the inventory.", 1)
    assert worded[1] == 1
    assert not worded[0].startswith("Unknown action")
    assert dropped[0].startswith("Unknown action.")
    assert dropped[1] == 1


@pytest.mark.long
def test_actions_are_offered_as_asked_and_asking_changes_nothing(game: FaultTolerantGame) -> None:
    actions = ["teleport to kitchen", "open cupboard", "pick up metal pot", "wait1", "look around", "inventory"]
    seen = {
        offer: played(env_with(game, actions=offer), task_of("boil"), actions)
        for offer in ("none", "templates", "valid")
    }
    assert len({tuple((o.text, o.score, o.reward) for o in observations) for observations in seen.values()}) == 1
    assert {o.actions for o in seen["none"]} == {None}
    hints, valid = seen["templates"][1].actions or (), seen["valid"][1].actions or ()
    assert "reset task" not in hints
    assert {"open OBJ", "pick up OBJ", "cupboard", "sink"} <= set(hints)
    assert {"open cupboard", "focus on sink"} <= set(valid)
    assert len(valid) == len(set(valid)) > 200
    assert not any("OBJ" in action or "\n" in action for action in valid)


@pytest.mark.long
def test_it_keeps_the_contract() -> None:
    factory = partial(ScienceWorldEnv, task="find-living-thing", max_steps=12)
    assert check_env(factory, tasks=ScienceWorldEnv.tasks("train", task="find-living-thing")[:1]) == ()


FOLDER = BUILTIN / "configs/scienceworld"
# Variations to train on and to test on: 5 and 20, or what a task has.
FEWER = {
    "chemistry-mix": (5, 8), "chemistry-mix-paint-secondary-color": (5, 9),
    "chemistry-mix-paint-tertiary-color": (5, 9), "identify-life-stages-1": (5, 5), "identify-life-stages-2": (4, 4),
    "power-component": (5, 5), "power-component-renewable-vs-nonrenewable-energy": (5, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER_PANEL)
def test_a_config_plays_its_task_by_the_papers_protocol(name: str) -> None:
    config = load_config(FOLDER / f"{name}.toml").validate_training()
    tasks = {split: load_tasks(config, split) for split in ("train", "validation", "test")}
    num_train, num_test = FEWER.get(name, (5, 20))
    assert (len(tasks[config.train.split]), len(tasks[config.eval.split])) == (num_train, num_test)
    assert {task.options["task"] for listed in tasks.values() for task in listed} == {name}
    for split, whole in get_simulator_split(name).items():
        assert [task.options["variation"] for task in tasks[split]] == list(whole[: len(tasks[split])])
    batch = select_batch(tasks["train"], config.rollout.num_tasks, 0, 0)
    assert len(batch) == 16, "variations come again, as published"
    assert resolve_simplifications(name, config.env.options.get("simplification", "easy"))


def test_results_of_two_score_conventions_do_not_compare() -> None:
    """But a model may be judged by another one than it was trained on: a default is in no identity."""
    plain = get_env_identity("scienceworld", {"score": "raw", "simplification": "easy"})
    floored = get_env_identity("scienceworld", {"score": "floor0", "simplification": ["teleportAction"]})
    assert list(plain) == ["scienceworld"]
    assert floored == {**plain, "score": "floor0", "simplification": "teleportAction"}


def test_configs_of_the_panel_differ_in_nothing_but_the_task() -> None:
    texts = set()
    for name in PAPER_PANEL:
        settings = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        assert settings["run"].pop("name") == settings["env"]["options"].pop("task") == name
        texts.add(str(settings))
    assert len(texts) == 1

"""ALFWorld: lists of games anywhere; everything that is played where the package is."""

from __future__ import annotations

import importlib.util
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from trailnotes.envs import check_env, get_env_identity
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Task
from trailnotes_worlds.alfworld import rooms
from trailnotes_worlds.alfworld.engine import AlfworldEngine, read_game, translate_game
from trailnotes_worlds.alfworld.env import AlfworldEnv, alfworld_tasks
from trailnotes_worlds.alfworld.rooms import (
    TASK_TYPES,
    FurnishedRoom,
    HouseholdGoal,
    build_expert_plan,
    list_floor_plans,
)

HERE = all(importlib.util.find_spec(name) for name in ("alfworld", "fast_downward", "textworld"))
played = pytest.mark.skipif(not HERE, reason="needs the extra alfworld, which compiles a planner")
SPLITS = ("train", "validation", "test")
COOL, LIGHT = "pick_cool_then_place_in_recep", "look_at_obj_in_light"


def small(kind: str = LIGHT, split: str = "train") -> Task:
    """A game in a bedroom or bathroom, which is translated sooner than a kitchen."""
    return alfworld_tasks(split, task_types=kind, num_games=30)[-1]


def test_no_floor_plan_is_in_two_splits_and_all_are_in_one() -> None:
    plans = {split: {task.options["plan"] for task in alfworld_tasks(split, num_games=100)} for split in SPLITS}
    assert [len(plans[split]) for split in SPLITS] == [80, 16, 24]
    assert len(set().union(*plans.values())) == 120
    assert plans["test"] == {first + number for first in (0, 200, 300, 400) for number in range(1, 7)}


@pytest.mark.parametrize("kind", TASK_TYPES)
@pytest.mark.parametrize("split", SPLITS)
def test_a_few_games_have_each_kind_of_room(kind: str, split: str) -> None:
    rooms_of = {task.options["plan"] // 100 for task in alfworld_tasks(split, task_types=kind, num_games=10)}
    assert len(rooms_of) == len(TASK_TYPES[kind])


def publish(root: Path, name: str, **facts: Any) -> None:
    folder = root / "json_2.1.1" / name
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps({"solvable": True, "walkthrough": None, **facts}))


def test_published_games_are_those_that_the_package_would_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, f"train/{LIGHT}-Book-None-DeskLamp-301/trial_1")
    publish(tmp_path, f"train/{LIGHT}-Book-None-DeskLamp-301/trial_2", solvable=False)
    publish(tmp_path, f"train/{COOL}-AppleSliced-None-Sink-3/trial_3")
    publish(tmp_path, f"valid_unseen/{COOL}-Apple-None-Sink-3/trial_4")
    (found,) = alfworld_tasks("train", "published", data=str(tmp_path))
    assert found.id == f"alfworld/train/{LIGHT}-Book-None-DeskLamp-301/trial_1"
    assert found.options["type"] == LIGHT
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "json_2.1.1"))
    assert [task.split for task in alfworld_tasks("test", "published", num_games=0)] == ["test"]
    with pytest.raises(ConfigError, match="run alfworld-download"):
        alfworld_tasks("validation", "published")
    monkeypatch.delenv("ALFWORLD_DATA")
    with pytest.raises(ConfigError, match="set data or ALFWORLD_DATA"):
        alfworld_tasks("train", "published")
    with pytest.raises(ConfigError, match="there is no folder"):
        alfworld_tasks("train", "published", data=str(tmp_path / "gone"))


def test_a_game_is_read_for_its_problem_and_its_task_alone() -> None:
    grammar = '"task": [{"rhs": "Your task is to: put a mug in desk."}], "evil": "{__import__(\'os\').abort()}"'
    assert read_game(json.dumps({"pddl_problem": "(define)", "grammar": grammar})) == ("(define)", "put a mug in desk")
    for text in ("", "[]", "[" * 100_000, '{"pddl_problem": 3, "grammar": "Your task is to: x."}', '{"grammar": 1}'):
        with pytest.raises(EnvError, match="no game of ALFWorld"):
            read_game(text)


@played
def test_an_expert_opens_what_is_closed_and_goes_nowhere_twice() -> None:
    room = FurnishedRoom(
        (("Fridge|1", "Fridge"), ("DiningTable|1", "DiningTable")),
        (("Apple|0", "Apple", "Fridge|1"), ("Apple|1", "Apple", "Fridge|1")),
    )
    assert build_expert_plan(room, HouseholdGoal(COOL, "Apple", "DiningTable")) == (
        ("go to {}", "Fridge|1"), ("open {}", "Fridge|1"), ("take {} from {}", "Apple|0", "Fridge|1"),
        ("cool {} with {}", "Apple|0", "Fridge|1"), ("go to {}", "DiningTable|1"),
        ("move {} to {}", "Apple|0", "DiningTable|1"),
    )  # fmt: skip


@played
@pytest.mark.parametrize("kind", TASK_TYPES)
def test_a_game_of_each_kind_is_won_by_its_expert(kind: str) -> None:
    env = AlfworldEnv()
    task = small(kind, "test")
    path = env.solution(task)
    observation = env.reset(task)
    assert observation.text.endswith(f"Your task is to: {observation.instruction}")
    for action in path:
        assert action in (observation.actions or ())
        assert not observation.success
        observation = env.step(action)
    assert (observation.terminated, observation.success, observation.reward, observation.score) == (True, True, 1, 1)
    with pytest.raises(EnvError, match="call reset"):
        env.step("look")
    env.close()


@pytest.mark.long
@played
@pytest.mark.parametrize("kind", TASK_TYPES)
def test_every_floor_plan_allows_its_kinds_of_task(kind: str) -> None:
    for plan in [plan for split in SPLITS for plan in list_floor_plans(split, kind)]:
        made = rooms.generate_game(plan, kind, 7)
        assert 3 <= len(made.plan) <= 25  # half of the steps of an episode
        assert made == rooms.generate_game(plan, kind, 7)


@played
def test_it_keeps_the_contract() -> None:
    options = {"task_types": "pick_two_obj_and_place", "num_games": 1, "max_steps": 10}
    assert check_env(partial(AlfworldEnv, **options), tasks=[small()]) == ()
    assert get_env_identity("alfworld", options)["alfworld"].startswith("0.4.")


@played
def test_equal_to_the_package() -> None:
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
    from textworld.envs import PddlEnv

    task, rng = small(), random.Random(0)
    made = rooms.generate_game(task.options["plan"], task.options["type"], task.seed)
    grammar = Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", made.task)
    data = {"pddl_domain": Path(ALFRED_PDDL_PATH).read_text(), "grammar": grammar, "pddl_problem": made.problem}
    theirs = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)), shuffle=False)
    theirs.load(data)
    state = theirs.reset()
    ours = AlfworldEngine()
    game = translate_game(made.problem)
    assert ours.begin(game, made.task) == state.feedback.removeprefix("-= Welcome to TextWorld, ALFRED! =-\n\n")
    for command in [*ours.format_plan(made.plan)[:-1], *("",) * 12, "no such thing"]:
        assert sorted(ours.commands) == sorted(state["admissible_commands"])
        said = command or rng.choice(ours.commands)
        state, _, _ = theirs.step(said)
        assert ours.step(said) == state.feedback
        assert ours.won == state["won"]
    ours.close()
    ours.close()


@played
def test_engines_share_no_game() -> None:
    task = small()
    made = rooms.generate_game(task.options["plan"], task.options["type"], task.seed)
    game, engines = translate_game(made.problem), [AlfworldEngine(), AlfworldEngine()]
    first, other = (engine.begin(game, made.task) for engine in engines)
    assert first == other
    before = engines[1].commands
    for command in engines[0].format_plan(made.plan):
        engines[0].step(command)
    assert [engine.won for engine in engines] == [True, False]
    assert engines[1].commands == before
    library = engines[0]._library
    engines[0].close()
    third = AlfworldEngine()
    assert third._library is library
    assert third.begin(game, made.task) == first
    assert not third.won
    for engine in (third, engines[1]):
        engine.close()

"""What an environment or its list of tasks refuses before anything runs: the message names the option."""

from __future__ import annotations

from typing import Any

import pytest

from trailnotes.envs import list_env_tasks, make_env
from trailnotes.errors import ConfigError

HERE = "http://host"
LAKE = {"id": "FrozenLake-v1"}
NEEDS = {
    "gymnasium": "gymnasium", "openenv": "websockets", "scienceworld": "scienceworld", "alfworld": "alfworld",
    "textworld-express": "textworld_express",
}  # fmt: skip
TASKS: list[tuple[str, dict[str, Any], str]] = [  # environment, options, a pattern of the message
    ("alfworld", {"games": "generate"}, "games.* 'generated'"),
    ("alfworld", {"task_types": "pick_cool_then_place"}, "task_types.* 'pick_cool_then_place_in_recep'"),
    ("alfworld", {"games": "published", "data": "gone"}, "data"),
    ("sokoban", {"difficulty": "hrad"}, "difficulty = 'hrad'.* 'hard'"),
    ("sokoban", {"num_games": 0}, "num_games = 0"),
    ("textworld-express", {"game": "coins"}, "game.* 'coin'"),
    ("textworld-express", {"params": {"numLocation": 3}}, "params.*numLocations"),
    ("textworld-express", {"game": "sorting", "params": {"numLocations": 3}}, "params.*known: none"),
    ("textworld-express", {"num_games": 1001}, "num_games"),
    ("scienceworld", {"task": ["melt", "boill"]}, "boill.*did you mean boil?"),
    ("scienceworld", {"task": ["melt", "1-2"]}, "task.* melt twice"),
    ("scienceworld", {"protocol": "simulato"}, "protocol.*'paper' or 'simulator'"),
    ("scienceworld", {"step_limits": {"mel": 7}}, "did you mean melt"),
    ("webshop", {"goals": "robot"}, "goals = 'robot'"),
    ("webshop", {"protocol": "by-products"}, "protocol = 'by-products'"),
    ("webshop", {"protocol": "original"}, 'protocol = "by-product"'),
    ("webshop", {"protocol": "rememberer", "train_set": "S2"}, "train_set = 'S2'"),
    ("webshop", {"allow_leak": "no"}, "allow_leak"),
    ("webshop", {"catalogue": "nowhere"}, "nowhere"),
    ("wikihow", {"protocol": "by-luck"}, "protocol.*'by-article' or 'rememberer'"),
    ("wikihow", {"templates": ["article", "news"]}, "templates = 'news'"),
    ("wikihow", {"tasks": "nowhere"}, "tasks"),
    ("wikihow", {"tasks": "files", "templates": ["article"]}, r"options\.templates.* env\.options\.tasks"),
    ("gymnasium", {**LAKE, "num_train": 0}, "num_train = 0"),
]
ENVS: list[tuple[str, dict[str, Any], str]] = [
    ("sokoban", {"view": 3}, "view = 3"),
    ("sokoban", {"max_steps": True}, "max_steps = True"),
    ("textworld-express", {"view": "wide"}, "view"),
    ("textworld-express", {"java": "/no/such/java"}, "java"),
    ("scienceworld", {"task": "nothing"}, "'nothing'"),
    ("scienceworld", {"score": "rwa"}, "score = 'rwa'"),
    ("scienceworld", {"action_correction": "jacard"}, "action_correction = 'jacard'"),
    ("scienceworld", {"timeout": float("nan")}, "timeout = nan"),
    ("scienceworld", {"java": "/no/java"}, "java = '/no/java'"),
    ("scienceworld", {"max_step": 3}, "did you mean max_steps"),
    ("webshop", {"compat": "orginal"}, "compat = 'orginal'"),
    ("webshop", {"max_title": 481}, "max_title = 481"),
    ("webshop", {"prices": 1}, "prices"),
    ("wikihow", {"view": "pixels"}, "view = 'pixels'"),
    ("wikihow", {"free_nothing": 1}, "free_nothing"),
    ("wikihow", {"libary": "x"}, "did you mean library"),
    ("gymnasium", {"id": "FrozenLake-v99"}, "id = 'FrozenLake-v99'"),
    ("gymnasium", {"id": "no_such_package:Env-v0"}, "No module named 'no_such_package'"),
    ("gymnasium", {"id": "Pendulum-v1", "success_return": 1}, "id = 'Pendulum-v1' acts by"),
    ("gymnasium", {**LAKE, "kwargs": {"depth": 3}}, "unexpected keyword argument 'depth'"),
    ("gymnasium", {**LAKE, "success_return": float("nan")}, "success_return"),
    ("gymnasium", {**LAKE, "success_return": 1, "max_return": -1}, "max_return"),
    ("gymnasium", {**LAKE, "success_return": 0, "max_return": 1}, "success_return must be above 0"),
    ("gymnasium", {**LAKE, "max_steps": 3, "kwargs": {"max_episode_steps": 9}}, "leave one out"),
    ("gymnasium", {"id": "CartPole-v1", "observation": "ansi"}, "observation"),
    ("gymnasium", {**LAKE, "action_names": ["w", "s", "d", "W"]}, "action_names"),
    ("openenv", {"url": "localhost:8000"}, "url"),
    ("openenv", {"url": "http://me:pw@host"}, r"url(?!.*pw).*token_env"),
    ("openenv", {"url": "http://host/?token=pw"}, r"url(?!.*pw).*token_env"),
    ("openenv", {"url": HERE, "connect_timeout": 51}, "connect_timeout = 51"),
    ("openenv", {"url": HERE, "token_env": "NO_SUCH_TOKEN"}, "NO_SUCH_TOKEN"),
    ("openenv", {"url": HERE, "action_rest": ["a"]}, "action_rest"),
]


@pytest.mark.parametrize(("name", "options", "message"), TASKS, ids=str)
def test_lists_of_tasks_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list_env_tasks(name, "train", options)


@pytest.mark.parametrize("name", [*NEEDS, "sokoban", "webshop", "wikihow"])
def test_an_unknown_split_is_refused(name: str) -> None:
    options = {"gymnasium": LAKE, "openenv": {"url": HERE}}.get(name, {})
    with pytest.raises(ConfigError, match=r"split.*'summer'"):
        list_env_tasks(name, "summer", options)


@pytest.mark.parametrize(("name", "options", "message"), ENVS, ids=str)
def test_environments_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    pytest.importorskip(NEEDS.get(name, "trailnotes_worlds"))
    with pytest.raises(ConfigError, match=message) as caught:
        make_env(name, **options)
    assert "\n" not in str(caught.value)

"""Gymnasium's environments keep our contract: their games by seed, in words, and won only where they say so."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="the extra gymnasium is not installed")

from trailnotes.commands import main  # noqa: E402
from trailnotes.envs import check_env, get_env_identity, list_env_tasks, make_env  # noqa: E402
from trailnotes.errors import ConfigError, EnvError  # noqa: E402
from trailnotes.types import Observation, Task  # noqa: E402
from trailnotes_worlds.gymnasium.env import (  # noqa: E402
    GymnasiumEnv,
    find_toy_text,
    format_value,
    render_plain,
)
from trailnotes_worlds.third_party import SuccessRule  # noqa: E402

LAKE = {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}}
WAY = ("down", "down", "right", "right", "down", "right")  # over the 4x4 lake


class Echo(gymnasium.Env[str, str]):
    """Says what was said, until it hears "stop"; the longer that was, the more it gives."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(12, charset="abcdefghijklmnopqrstuvwxyz ")
    rewards: tuple[float, ...] = (1.0,)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return f"hello {seed}\x1b[2J\x00", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action, len(action) / 4, action == "stop", False, {}


class Arrow(gymnasium.Env[Any, int]):
    """Three actions that it names itself, and arrays."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3))
    action_space = gymnasium.spaces.Discrete(3, start=-1)

    def get_action_meanings(self) -> list[str]:
        return ["LEFT", "NOOP", "RIGHT"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.low, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.low, float(action), action == 1, False, {}


class Point(Arrow):
    """The same with so few numbers that they can be read."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    names = {"Echo-v0": Echo, "Arrow-v0": Arrow, "Point-v0": Point}
    for name, cls in names.items():
        gymnasium.register(name, entry_point=cls, max_episode_steps=20)
    yield
    for name in names:
        del gymnasium.registry[name]


def played(env: GymnasiumEnv, *actions: str, seed: int = 0) -> list[Observation]:
    return [env.reset(Task("t", "gymnasium", seed)), *[env.step(action) for action in actions]]


@pytest.mark.parametrize(
    "options",
    [
        LAKE, {"id": "FrozenLake-v1", "max_steps": 30}, {"id": "Taxi-v4", "max_steps": 20, "max_return": 20},
        {"id": "CliffWalking-v1", "max_steps": 20}, {"id": "Blackjack-v1"}, {"id": "Echo-v0", "success_return": 1},
        {"id": "Point-v0", "success_reward": 1},
    ],
    ids=lambda options: options["id"],
)  # fmt: skip
def test_it_keeps_the_contract(options: dict[str, Any]) -> None:
    assert check_env(functools.partial(GymnasiumEnv, **options)) == ()


def test_a_walk_over_the_lake_is_a_success_and_a_hole_is_none() -> None:
    env = make_env("gymnasium", **LAKE)
    *_, goal = played(env, *WAY)
    assert (goal.terminated, goal.success, goal.reward, goal.score) == (True, True, 1.0, 1.0)
    *_, hole = played(env, "RIGHT", " Down ")
    assert (hole.terminated, hole.success, hole.score) == (True, False, 0.0)
    with pytest.raises(EnvError, match="the episode is over"):
        env.step("down")


def test_the_mask_says_what_is_admissible() -> None:
    """Gymnasium's taxi tells in `action_mask` what changes anything."""
    env = GymnasiumEnv(id="Taxi-v4")
    start = env.reset(Task("t", "gymnasium", 3))
    _, info = gymnasium.make("Taxi-v4").reset(seed=3)
    names = ("south", "north", "east", "west", "pickup", "dropoff")
    assert start.actions == tuple(name for name, fits in zip(names, info["action_mask"], strict=True) if fits)
    assert start.actions != names
    refused = env.step("fly")
    assert refused.actions == start.actions
    assert refused.text.endswith(f"Actions: {', '.join(start.actions)}.")


@pytest.mark.parametrize(("size", "accepted"), [(63, True), (64, False)])
def test_all_numbers_of_an_observation_are_counted(size: int, accepted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary or tuple of arrays is printed as a value, as one array is."""
    box, one = gymnasium.spaces.Box(0, 1, (size,)), gymnasium.spaces.Discrete(2)
    for space in (gymnasium.spaces.Dict(image=box, side=one), gymnasium.spaces.Tuple((box, one))):
        monkeypatch.setattr(Point, "observation_space", space)
        with contextlib.nullcontext() if accepted else pytest.raises(ConfigError, match="shows 65 numbers"):
            GymnasiumEnv(id="Point-v0", success_reward=1)


def test_ten_rewards_of_a_tenth_make_one() -> None:
    rule = SuccessRule(least_return=1.0, max_return=1.0)
    assert rule.is_won(sum([0.1] * 10), 0.1)
    assert rule.score(sum([0.1] * 10), success=True) == (1.0, 1.0)
    assert not rule.is_won(0.999, 0.1)


def test_done_is_not_success() -> None:
    """Cut off, or over with too little: neither is a success, however much was earned."""
    cut = played(GymnasiumEnv(id="Echo-v0", max_steps=2, success_return=1), "aaaa", "aaaa")[-1]
    assert (cut.truncated, cut.terminated, cut.success) == (True, False, False)
    assert not played(GymnasiumEnv(id="Echo-v0", success_return=2.5), "aaaa", "stop")[-1].success
    assert played(GymnasiumEnv(id="Echo-v0", success_return=2), "aaaa", "stop")[-1].success
    assert not played(GymnasiumEnv(id="Echo-v0", success_reward=2), "aaaa", "stop")[-1].success
    survived = played(GymnasiumEnv(id="Echo-v0", success_return=20), *["aaaa"] * 20)[-1]
    assert (survived.truncated, survived.terminated, survived.success) == (True, False, True)
    assert not played(GymnasiumEnv(id="Echo-v0", success_reward=1), *["aaaa"] * 20)[-1].success


def test_actions_have_the_names_that_the_environment_tells() -> None:
    env = GymnasiumEnv(id="Point-v0", success_reward=1)
    start, won = played(env, "right")
    assert start.actions == ("left", "noop", "right")
    assert (start.text, won.reward, won.success) == ("[0.0, 0.0]", 1.0, True)
    named = GymnasiumEnv(id="Point-v0", success_reward=1, action_names=["a", "b", "c"])
    assert played(named, "a")[-1].reward == -1.0


def test_splits_share_no_seed_and_settings_are_other_games() -> None:
    listed = {split: list_env_tasks("gymnasium", split, LAKE) for split in ("train", "validation", "test")}
    assert {split: len(tasks) for split, tasks in listed.items()} == {"train": 64, "validation": 16, "test": 64}
    seeds = [task.seed for tasks in listed.values() for task in tasks]
    assert len(set(seeds)) == len(seeds)
    assert listed["train"][1].id == "gymnasium/FrozenLake-v1?is_slippery=false/1"
    slippery = list_env_tasks("gymnasium", "train", {"id": "FrozenLake-v1"})
    assert not {task.id for task in slippery} & {task.id for task in listed["train"]}
    assert get_env_identity("gymnasium", LAKE)["game"] == "FrozenLake-v1?is_slippery=false"
    assert "success_return" not in get_env_identity("gymnasium", LAKE)
    assert get_env_identity("gymnasium", {**LAKE, "success_return": 0.5})["success_return"] == 0.5


def test_the_config_plays_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "builtin:gymnasium", "--env.num_workers", "0"]) == 0
    assert "[red:S]FFF" in capsys.readouterr().out


def test_colours_are_named_and_controls_go() -> None:
    coloured = "\n\x1b[34;1mR\x1b[0m: |\x1b[42m_\x1b[0m\x1b[1mx\x1b[0m\x1b[2K\x07\r\n"
    assert render_plain(coloured) == "[blue:R]: |[green:_]x"
    assert find_toy_text("some.module:ALE/Taxi-v4") is find_toy_text("Taxi-v3")
    assert find_toy_text("FrozenLake8x8-v1") is find_toy_text("FrozenLake-v1")
    assert find_toy_text("CliffWalkingSlippery-v1") is find_toy_text("CliffWalking-v1")
    assert find_toy_text("Pong-v5") is None
    assert format_value({"hand": (3, gymnasium.spaces.MultiBinary(2).sample() * 0)}) == '{"hand": [3, [0, 0]]}'
    with pytest.raises(TypeError, match="object is not JSON"):
        format_value(object())

"""The puzzle environment: the contract, splits that share no level, counted steps, and the end."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes.envs import check_env, get_env_identity, list_env_tasks, make_env
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.puzzles.levels import SPLIT_BUCKETS, assign_split, canonicalize_orientation
from trailnotes_worlds.puzzles.sokoban import SokobanEnv

SPLITS = ["train", "validation", "test"]
squares = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.text("#.$", min_size=size, max_size=size), min_size=size, max_size=size)
)


def solved(env: Any, task: Task) -> tuple[list[float], Observation]:
    """The rewards of the expert's actions, and what was seen last."""
    observation, rewards = env.reset(task), []
    for action in env.solution(task):
        assert not observation.done
        assert action in observation.actions
        observation = env.step(action)
        rewards.append(observation.reward)
    return rewards, observation


def test_it_keeps_the_contract() -> None:
    assert check_env(SokobanEnv) == ()


@pytest.mark.parametrize("reward", ["sparse", "dense"])
@settings(max_examples=40)
@given(st.sampled_from(["easy", "medium", "hard", "expert"]), st.sampled_from(SPLITS), st.integers(0, 200))
def test_every_level_is_solved_by_its_expert(reward: str, difficulty: str, split: str, number: int) -> None:
    env = make_env("sokoban", reward=reward)
    task = list_env_tasks("sokoban", split, {"difficulty": difficulty, "num_games": 201})[number]
    rewards, last = solved(env, task)
    assert (last.terminated, last.truncated, last.success, last.score) == (True, False, True, 1.0)
    assert math.isclose(math.fsum(rewards), 1.0)
    assert reward == "dense" or all(reward == 0 for reward in rewards[:-1])


@settings(max_examples=10)
@given(st.sampled_from(["easy", "hard"]), st.integers(0, 9999))
def test_the_same_seed_gives_the_same_level_and_another_one_another(difficulty: str, dataset_seed: int) -> None:
    options = {"difficulty": difficulty, "dataset_seed": dataset_seed, "num_games": 12}
    env, other = make_env("sokoban"), make_env("sokoban")
    tasks = list_env_tasks("sokoban", "train", options)
    assert tasks == list_env_tasks("sokoban", "train", options)
    texts = [env.reset(task).text for task in tasks]
    assert texts == [other.reset(task).text for task in tasks]
    assert len(set(texts)) > 8


@given(squares)
def test_a_level_is_one_level_however_it_is_turned(rows: list[str]) -> None:
    turned = ["".join(column) for column in zip(*rows, strict=True)]
    for other in (turned, rows[::-1], [row[::-1] for row in rows], turned[::-1]):
        assert canonicalize_orientation(other) == canonicalize_orientation(rows)
    assert sorted(canonicalize_orientation(rows)) == sorted("\n".join(rows))


def test_each_split_has_its_share() -> None:
    counts = {
        split: sum(assign_split(f"{number}") == split for number in range(2000)) / 2000 for split in SPLIT_BUCKETS
    }
    assert counts == pytest.approx({"train": 0.6, "validation": 0.2, "test": 0.2}, abs=0.05)


def test_steps_are_counted_and_what_is_no_action_changes_nothing() -> None:
    env = make_env("sokoban", max_steps=2)
    first = env.reset(list_env_tasks("sokoban", "train", {"num_games": 1})[0])
    again = env.step("xyzzy")
    assert again.text.startswith("That is no ")
    assert again.text.endswith(first.text)
    late = env.step("")
    assert (late.truncated, late.terminated, late.success, late.reward) == (True, False, False, 0.0)
    with pytest.raises(EnvError, match="call reset"):
        env.step("up")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"difficulty": "hrad"}, "difficulty = 'hrad' is unknown: use .* 'hard'"),
        ({"view": 3}, "view = 3 must be a text"),
        ({"reward": "none"}, "'sparse' or 'dense'"),
        ({"num_games": 0}, "num_games = 0"),
        ({"dataset_seed": -1}, "dataset_seed = -1"),
        ({"max_steps": True}, "max_steps = True"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assert list_env_tasks("sokoban", "train", options) and make_env("sokoban", **options)  # noqa: PT018


def test_another_environments_task_and_split_are_refused() -> None:
    env = make_env("sokoban")
    with pytest.raises(ConfigError, match="task x: difficulty = None must be a text"):
        env.reset(Task("x", "sokoban"))
    with pytest.raises(ConfigError, match="task x: split = 'spare' is unknown"):
        env.reset(Task("x", "sokoban", split="spare", options={"difficulty": "easy"}))
    with pytest.raises(ConfigError, match="split = 'spare'"):
        list_env_tasks("sokoban", "spare")


def test_actions_can_be_left_out_and_the_generators_are_named() -> None:
    env = make_env("sokoban", actions=False)
    assert env.reset(list_env_tasks("sokoban", "train")[0]).actions is None
    assert get_env_identity("sokoban") == get_env_identity("sokoban", {"difficulty": "hard"}) == {"puzzles": 2}

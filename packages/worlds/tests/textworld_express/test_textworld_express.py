"""TextWorldExpress: tasks and words without a simulator, everything else in one real one."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from trailnotes.envs import check_env
from trailnotes.errors import EnvError
from trailnotes.types import Task
from trailnotes.warmstart.demonstrations.episodes import play_script, replay_actions
from trailnotes_worlds.textworld_express.client import TextWorldExpressClient
from trailnotes_worlds.textworld_express.env import GAMES, TextWorldExpressEnv, textworld_express_tasks


def test_folds_are_the_splits_and_share_no_game() -> None:
    splits = {name: textworld_express_tasks(name, "all", num_games=5) for name in ("train", "validation", "test")}
    seeds = {name: {task.seed for task in tasks} for name, tasks in splits.items()}
    assert seeds["train"] == set(range(5))
    assert min(seeds["validation"]) == 10_000
    assert min(seeds["test"]) == 20_000
    ids = [task.id for tasks in splits.values() for task in tasks]
    assert len(ids) == len(set(ids)) == 3 * 5 * len(GAMES)


@pytest.fixture(scope="module")
def client() -> Iterator[TextWorldExpressClient]:
    client = TextWorldExpressClient()
    yield client
    client.simulator.close()


class Shared(TextWorldExpressEnv):
    """An environment on the one simulator of this module, which nobody ends but the module."""

    def __init__(self, client: TextWorldExpressClient, **options: Any) -> None:
        super().__init__(**options)
        self._client = client

    def close(self) -> None:
        self._steps_left = 0


def first_of(game: str, **params: int) -> Task:
    return textworld_express_tasks("train", game, params, 1)[0]


def test_it_keeps_the_contract(client: TextWorldExpressClient) -> None:
    tasks = textworld_express_tasks("train", "simonsays", num_games=3)
    assert check_env(partial(Shared, client), tasks) == ()


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize(
    "split", ["test", *(pytest.param(split, marks=pytest.mark.long) for split in ("train", "validation"))]
)
def test_each_game_is_won_by_its_own_solution(client: TextWorldExpressClient, game: str, split: str) -> None:
    env = Shared(client, max_steps=500)
    task = textworld_express_tasks(split, game, num_games=2)[1]
    played = play_script(env, task, partial(replay_actions, env.solution(task)))
    last = played.final_observation
    assert math.isclose(math.fsum(step.reward for step in played.steps), last.score)
    assert (last.terminated, last.truncated, last.success, last.score, last.actions) == (True, False, True, 1.0, ())


def test_what_is_done_is_not_yet_a_success(client: TextWorldExpressClient) -> None:
    env = Shared(client, max_steps=2)
    first = env.reset(first_of("simonsays"))
    wrong = next(action for action in first.actions or () if action not in first.text)
    lost = env.step(wrong)
    assert (lost.terminated, lost.success, lost.score, lost.reward) == (True, False, -1.0, -1.0)
    env.reset(first_of("coin"))
    assert not env.step("look around").done
    late = env.step("look around")
    assert (late.terminated, late.truncated, late.success) == (False, True, False)
    with pytest.raises(EnvError, match="call reset"):
        env.step("look around")


def test_a_simulator_that_is_killed_costs_one_episode(client: TextWorldExpressClient) -> None:
    env = Shared(client)
    env.reset(first_of("coin"))
    os.kill(client.simulator.pid, signal.SIGKILL)
    with pytest.raises(EnvError, match="TextWorldExpress's Java was lost"):
        env.step("look around")
    with pytest.raises(EnvError, match="call reset"):
        env.step("look around")
    env.close()

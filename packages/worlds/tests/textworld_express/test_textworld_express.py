"""TextWorldExpress: tasks and words without a simulator, everything else in one real one."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.envs import check_env, get_env_identity, list_env_tasks, make_env
from trailnotes.envs.base import match_offered
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task
from trailnotes_worlds.textworld_express.client import TextWorldExpressClient, parse_state
from trailnotes_worlds.textworld_express.env import TextWorldExpressEnv
from trailnotes_worlds.textworld_express.games import GAMES, textworld_express_tasks

words = st.lists(st.text("abcdefgh", min_size=1), min_size=1, max_size=4).map(" ".join)


# ---------------------------------------------------------------------------------------------- without a simulator


def test_folds_are_the_splits_and_share_no_game() -> None:
    splits = {name: textworld_express_tasks(name, "all", num_games=5) for name in ("train", "validation", "test")}
    seeds = {name: {task.seed for task in tasks} for name, tasks in splits.items()}
    assert seeds["train"] == set(range(5))
    assert min(seeds["validation"]) == 10_000
    assert min(seeds["test"]) == 20_000
    ids = [task.id for tasks in splits.values() for task in tasks]
    assert len(ids) == len(set(ids)) == 3 * 5 * len(GAMES)


def test_each_game_takes_the_settings_that_it_has() -> None:
    tasks = textworld_express_tasks("test", ["coin", "sorting"], {"numLocations": 4}, 1)
    assert [(task.id, task.options["params"]) for task in tasks] == [
        ("textworld-express/coin-numLocations4/20000", {"numLocations": 4}),
        ("textworld-express/sorting/20000", {}),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"game": "coins"}, "or 'coin' or"),
        ({"game": []}, "one or more"),
        ({"game": ["twc", "twc"]}, "each once"),
        ({"params": {"numLocation": 3}}, "did you mean numLocations"),
        ({"params": {"numLocations": 12}}, "whole number, 1 to 11"),
        ({"game": "sorting", "params": {"numLocations": 3}}, r"known: none"),
        ({"num_games": 1001}, "1 to 1000"),
        ({"max_steps": 0}, "max_steps = 0"),
        ({"view": "wide"}, "'plain' or 'full' or 'short'"),
        ({"timeout": 0}, "timeout = 0"),
        ({"java": "/no/such/java"}, "is not a program"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, Any], said: str) -> None:
    def use() -> None:
        list_env_tasks("textworld-express", "train", options)
        make_env("textworld-express", **options)

    with pytest.raises(ConfigError, match=said):
        use()


@given(st.lists(words, min_size=1, max_size=6), st.data())
def test_an_offered_action_is_understood_however_it_is_said(offered: list[str], data: st.DataObject) -> None:
    action = data.draw(st.sampled_from(offered))
    assert match_offered(action, offered) == action
    blanks = data.draw(st.sampled_from([" ", "  ", "\n", "\t "]))
    assert match_offered(blanks.join(["", *action.upper().split(), ". "]), offered) == action


@pytest.mark.parametrize("answer", ["", "{}", "[]", "null", '{"observation": 3}', "Exception in Java"])
def test_an_answer_that_is_no_state_is_an_error(answer: str) -> None:
    with pytest.raises(EnvError, match="without a state"):
        parse_state(answer)


# ---------------------------------------------------------------------------------------------- the real one


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


def won(env: TextWorldExpressEnv, task: Task, path: tuple[str, ...]) -> Observation:
    rewards, observation = [], env.reset(task)
    for action in path:
        assert not observation.done
        observation = env.step(action)
        rewards.append(observation.reward)
    assert math.isclose(math.fsum(rewards), observation.score)
    return observation


def test_it_keeps_the_contract(client: TextWorldExpressClient) -> None:
    tasks = textworld_express_tasks("train", "simonsays", num_games=3)
    assert check_env(partial(Shared, client), tasks) == ()


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_each_game_is_won_by_its_own_solution(client: TextWorldExpressClient, game: str, split: str) -> None:
    env = Shared(client, max_steps=500)
    task = textworld_express_tasks(split, game, num_games=2)[1]
    last = won(env, task, env.solution(task))
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


def test_actions_are_offered_once_each_and_can_be_left_out(client: TextWorldExpressClient) -> None:
    offered = Shared(client).reset(first_of("simonsays")).actions or ()
    assert len(offered) == len(set(offered)) > 1
    assert Shared(client, actions=False).reset(first_of("simonsays")).actions is None


def test_the_full_view_adds_the_room_and_what_is_carried(client: TextWorldExpressClient) -> None:
    env = Shared(client, view="full")
    assert env.reset(first_of("coin")).text.count("You are in the") == 1
    seen = env.step("inventory").text
    assert seen.count("Inventory") == 1
    assert "You are in the" in seen


def test_the_short_view_leaves_out_what_there_is_nothing_to_take_from(client: TextWorldExpressClient) -> None:
    plain, short = Shared(client), Shared(client, view="short")
    (task,) = textworld_express_tasks("train", "coin", {"numLocations": 1, "numDistractorItems": 3}, 1)
    there = plain.reset(task)
    seen = short.reset(task)
    assert seen.actions == there.actions
    assert "that is closed" in there.text
    assert "that is closed" not in seen.text
    assert seen.text.startswith("You are in the kitchen.")
    assert seen.text.count(" coin") == 1
    assert short.step("take coin").text == "You take the coin."


def test_settings_make_other_games_and_solutions_leave_the_game_as_it_was(client: TextWorldExpressClient) -> None:
    env, small, large = Shared(client), first_of("coin", numLocations=1), first_of("coin")
    first = env.reset(large)
    assert not any(action.startswith("move") for action in env.reset(small).actions or ())
    env.solution(large)
    with pytest.raises(EnvError, match="call reset"):
        env.step("look around")
    assert env.reset(large) == first


def test_a_setting_that_the_simulator_refuses_is_named(client: TextWorldExpressClient) -> None:
    with pytest.raises(ConfigError, match=r"refuses coin .*Unrecognized property name"):
        client.begin("coin", {"height": 3}, "train", 0)
    with pytest.raises(ConfigError, match="has no option 'game'"):
        Shared(client).reset(Task("other/1", "other"))


def test_the_version_that_makes_the_games_is_recorded() -> None:
    assert get_env_identity("textworld-express", {"game": "all"}) == {"textworld-express": "1.1.0"}


def test_a_simulator_that_is_killed_costs_one_episode(
    client: TextWorldExpressClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Shared(client)
    env.reset(first_of("coin"))
    os.kill(client.simulator.pid, signal.SIGKILL)
    with pytest.raises(EnvError, match="TextWorldExpress's Java was lost"):
        env.step("look around")
    with pytest.raises(EnvError, match="call reset"):
        env.step("look around")

    def start(*_: object) -> TextWorldExpressClient:
        raise EnvError("a second process is not needed to see that it is asked for")

    monkeypatch.setattr("trailnotes_worlds.textworld_express.env.TextWorldExpressClient", start)
    with pytest.raises(EnvError, match="it is asked for"):
        env.reset(first_of("coin"))
    env.close()

"""At most `env.max_envs` episodes are open at a time, and the limit changes nothing that is played."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_rollout import FakePool, SeededPolicy, play_groups, settings, shuffled_pauses

from small import small_config
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_tasks
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import PolicyError
from trailnotes.policies.base import Policy
from trailnotes.policies.hf.policy import HFPolicy, load_model
from trailnotes.rollout.groups import GroupRunner
from trailnotes.types import Message, Mode, TokenIds, Trajectory, TrajectoryGroup


class WatchedPolicy(SeededPolicy):
    """Records what was opened, and how many were open after each opening and closing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.opened: list[str] = []
        self.lives: list[int] = []

    def open_episode(self, episode: str) -> None:
        assert episode not in self.open_episodes
        super().open_episode(episode)
        self.opened.append(episode)
        self.lives.append(len(self.open_episodes))

    def close_episode(self, episode: str) -> None:
        if episode in self.open_episodes:
            super().close_episode(episode)
            self.lives.append(len(self.open_episodes))


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 100])
def test_as_many_are_open_as_may_be_until_none_waits(limit: int) -> None:
    policy, ended, pool = WatchedPolicy(), list[Trajectory](), FakePool(shuffled_pauses())
    groups = play_groups(policy, pool, settings(max_envs=limit), progress=ended.append)
    assert groups == play_groups(SeededPolicy(), FakePool())
    most = min(limit, 6)
    assert (len(policy.live_at_start), pool.most, pool.out, len(ended)) == (most, most, 0, 6)
    following = [most + 1, most] * (6 - most)  # a successor is announced before its predecessor is closed
    assert policy.lives == [*range(1, most + 1), *following, *range(most - 1, -1, -1)]
    assert policy.opened == ["0/a/0", "0/a/1", "0/a/2", "1/b/0", "1/b/1", "1/b/2"]


@pytest.mark.parametrize("limit", [1, 2, 6])
def test_a_policy_that_fails_ends_those_that_wait_too(limit: int) -> None:
    def script(messages: Sequence[Message]) -> str:
        if len(policy.requests) > 5:
            raise PolicyError("no more memory")
        return "left"

    policy, pool = WatchedPolicy(script), FakePool(shuffled_pauses())
    with pytest.raises(PolicyError, match="no more memory"):
        play_groups(policy, pool, settings(max_envs=limit))
    assert not policy.open_episodes
    assert pool.out == 0


def echoes(**env: Any) -> Config:
    return small_config(env={"name": "echo_env:Echo", "options": {}, **env}, rollout={"max_steps": 4, "num_tasks": 3})


def play_echoes(policy: Policy, pool: EnvPool, config: Config) -> list[TrajectoryGroup]:
    """Ten episodes."""
    modes: list[list[Mode]] = [["plain"] * 5] * 2
    playing = GroupRunner(policy, pool, None, config, seed=3).play(load_tasks(config, "train")[:2], modes)
    return asyncio.run(asyncio.wait_for(playing, 60))


@pytest.fixture
def policy(start_model: Path, same_threads: None) -> Iterator[HFPolicy]:
    """A model whose engine waits for all that are open; none may be in the end."""
    model, tokenizer = load_model(small_config(model={"path": str(start_model)}).model)
    policy = HFPolicy(model, tokenizer, deterministic=True, max_context_tokens=256)
    torch.set_num_threads(1)
    yield policy
    assert not policy.engine._slots
    assert not policy.engine.num_unfinished


def tokens(groups: Sequence[TrajectoryGroup]) -> list[list[TokenIds]]:
    """All that was sampled, without the log-probabilities, in which the size of a batch shows as rounding."""
    return [[step.completion.token_ids for step in t.steps] for group in groups for t in group.trajectories]


def anonymous(groups: Sequence[TrajectoryGroup]) -> str:
    """Everything, but for which instance it was played in."""
    return re.sub(r"'(process|instance)': \d+", "", repr(groups))


def test_a_model_plays_the_same_up_to_rounding_and_the_same_bits_in_workers(policy: HFPolicy) -> None:
    with EnvPool(echoes(num_workers=0).env) as here, EnvPool(echoes(num_workers=2).env) as there:
        unlimited = play_echoes(policy, here, echoes())
        assert len({len(episode) for episode in tokens(unlimited)}) > 2  # they end at different times
        for limit in (1, 3, 10):
            config = echoes(max_envs=limit)
            limited = play_echoes(policy, here, config)
            assert tokens(limited) == tokens(unlimited)
            assert anonymous(play_echoes(policy, there, config)) == anonymous(limited)

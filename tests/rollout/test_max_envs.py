"""Fewer environments than episodes: who waits, who follows, and that nobody plays otherwise for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_rollout import TASK, Corridor, FakePool, SeededPolicy, failing, play_groups, right, settings, shuffled_pauses

from small import small_config
from tinyrun import SAME, differences, episodes
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import tasks_of
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import PolicyError
from trailnotes.policies.base import Policy
from trailnotes.policies.hf.policy import HFPolicy, load_model
from trailnotes.rollout.groups import run_groups
from trailnotes.runs.train import train
from trailnotes.types import Completion, Message, Mode, Sampling, TokenIds, Trajectory, TrajectoryGroup

LIMITS = [1, 2, 3, 6, 100]


class WatchedPolicy(SeededPolicy):
    """Keeps what was opened, and how many were open after each opening and closing."""

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


class PatientPolicy(SeededPolicy):
    """Lets everybody else go first."""

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        await asyncio.sleep(0)
        return await super().generate(messages, sampling, episode)


class CountingPool(FakePool):
    """Knows how many were lent at the same time."""

    def __init__(self, make: Callable[[], Corridor] = Corridor) -> None:
        super().__init__(self._made)
        self._make, self.most = make, 0

    def _made(self) -> Corridor:
        self.most = max(self.most, self.out)
        return self._make()


# --- who plays when


@pytest.mark.parametrize("limit", LIMITS)
def test_the_limit_changes_nothing_that_is_played(limit: int) -> None:
    pool = CountingPool(shuffled_pauses())
    groups = play_groups(SeededPolicy(), pool, settings(max_envs=limit))
    assert groups == play_groups(SeededPolicy(), FakePool())
    assert pool.most == min(limit, 6)
    assert pool.out == 0


@pytest.mark.parametrize("limit", LIMITS)
def test_as_many_are_open_as_may_be_until_nobody_waits(limit: int) -> None:
    policy, ended = WatchedPolicy(right), list[Trajectory]()
    play_groups(policy, FakePool(shuffled_pauses()), settings(max_envs=limit), progress=ended.append)
    most = min(limit, 6)
    assert len(policy.live_at_start) == most
    following = [most + 1, most] * (6 - most)
    assert policy.lives == [*range(1, most + 1), *following, *range(most - 1, -1, -1)]
    assert policy.opened == ["0/a/0", "0/a/1", "0/a/2", "1/b/0", "1/b/1", "1/b/2"]
    assert len(ended) == 6


# --- what goes wrong in between


@pytest.mark.parametrize("limit", [1, 2])
def test_who_fails_is_played_again_before_the_next_begins(limit: int) -> None:
    errors: list[Trajectory] = []
    policy, pool = WatchedPolicy(), CountingPool(failing(0, 1, 4))
    groups = play_groups(policy, pool, settings(max_envs=limit), on_error=errors.append)
    assert groups == play_groups(SeededPolicy(), FakePool())
    assert (len(errors), pool.lent, pool.most) == (3, 9, limit)
    assert not policy.open_episodes
    assert max(policy.lives) == limit + 1


@pytest.mark.parametrize("limit", [1, 2])
def test_a_policy_that_fails_ends_those_that_wait_too(limit: int) -> None:
    def script(messages: Sequence[Message]) -> str:
        if len(policy.requests) > 5:
            raise PolicyError("no more memory")
        return "right"

    policy, pool = WatchedPolicy(script), FakePool(shuffled_pauses())
    with pytest.raises(PolicyError, match="no more memory"):
        play_groups(policy, pool, settings(max_envs=limit))
    assert not policy.open_episodes
    assert pool.out == 0
    assert pool.lent < 6


@pytest.mark.parametrize("limit", [1, 2])
def test_an_interrupt_leaves_nothing_open(limit: int) -> None:
    policy = WatchedPolicy(right)
    begun = asyncio.Event()

    def corridor() -> Corridor:
        if pool.lent > limit:
            begun.set()
        return Corridor(pause=lambda: 0.01)

    pool = FakePool(corridor)

    async def scenario() -> None:
        modes: list[list[Mode]] = [["plain"] * 6]
        playing = run_groups(policy, pool, [TASK], modes, None, settings(max_envs=limit), seed=0)
        running = asyncio.ensure_future(playing)
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not policy.open_episodes
        assert pool.out == 0

    asyncio.run(asyncio.wait_for(scenario(), 10))


# --- real environments


def parrots(**env: Any) -> Config:
    return small_config(
        env={"name": "parrot:Parrot", "options": {}, **env},
        rollout={"max_steps": 4, "num_tasks": 3},
        algorithm={"q_off_policy": 0.5, "p_memory": 0.5},
        train={"iterations": 2, "max_env_steps": 0},
    )


def play_parrots(policy: Policy, pool: EnvPool, config: Config) -> list[TrajectoryGroup]:
    """Ten episodes."""
    modes: list[list[Mode]] = [["plain"] * 5] * 2
    playing = run_groups(policy, pool, tasks_of(config, "train")[:2], modes, None, config, seed=3)
    return asyncio.run(asyncio.wait_for(playing, 60))


@pytest.mark.parametrize(("num_workers", "limit", "most"), [(0, 1, 1), (0, 3, 3), (1, 2, 2), (2, 3, 4), (2, 1, 2)])
def test_no_more_instances_are_made_than_may_live(num_workers: int, limit: int, most: int) -> None:
    """Of three that live, any two may be in either of two workers."""
    config = parrots(num_workers=num_workers, max_envs=limit)
    made: set[tuple[int, int]] = set()
    with EnvPool(config.env) as pool:
        for _ in range(2):
            groups = play_parrots(PatientPolicy(), pool, config)
            seen = [t.final_observation.info for group in groups for t in group.trajectories]
            assert len(seen) == 10
            made.update((info["process"], info["instance"]) for info in seen)
    processes = [process for process, _ in made]
    assert limit <= len(made) <= most
    assert max(map(processes.count, processes)) <= -(-limit // max(1, num_workers))


@pytest.fixture
def policy(start_model: Path) -> Iterator[HFPolicy]:
    """A model whose engine waits for all that are open; none may be in the end."""
    model, tokenizer = load_model(small_config(model={"path": str(start_model)}).model)
    policy = HFPolicy(model, tokenizer, deterministic=True, max_context_tokens=256)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield policy
    torch.set_num_threads(threads)
    assert not policy.engine._slots
    assert not policy.engine.num_unfinished


def tokens(groups: Sequence[TrajectoryGroup]) -> list[list[TokenIds]]:
    """All that was sampled, without the log-probabilities, in which the size of a batch shows as rounding."""
    return [[step.completion.token_ids for step in t.steps] for group in groups for t in group.trajectories]


def anonymous(groups: Sequence[TrajectoryGroup]) -> str:
    """Everything, but for which instance it was played in."""
    return re.sub(r"'(process|instance)': \d+", "", repr(groups))


def test_a_model_plays_the_same_up_to_rounding_and_the_same_bits_in_workers(policy: HFPolicy) -> None:
    with EnvPool(parrots(num_workers=0).env) as here, EnvPool(parrots(num_workers=2).env) as there:
        everybody = play_parrots(policy, here, parrots())
        assert len({len(episode) for episode in tokens(everybody)}) > 2  # they end at different times
        for limit in (1, 3, 10):
            config = parrots(max_envs=limit)
            limited = play_parrots(policy, here, config)
            assert tokens(limited) == tokens(everybody)
            assert anonymous(play_parrots(policy, there, config)) == anonymous(limited)


@pytest.mark.parametrize("limit", [1, 2])
def test_an_environment_that_always_fails_locks_nobody_up(policy: HFPolicy, limit: int) -> None:
    config = parrots(options={"fails": True}, max_envs=limit)
    with EnvPool(config.env) as pool:
        assert play_parrots(policy, pool, config) == []


@pytest.mark.parametrize("limit", [1, 2])
def test_a_worker_that_dies_in_between_locks_nobody_up(policy: HFPolicy, tmp_path: Path, limit: int) -> None:
    config = parrots(options={"grave": str(tmp_path)}, max_envs=limit, num_workers=1)
    with EnvPool(config.env) as pool:
        groups = play_parrots(policy, pool, config)
    assert len(list(tmp_path.iterdir())) == 2
    assert [len(group.trajectories) for group in groups] == [5, 5]


def test_a_run_with_a_limit_is_the_same_run_in_workers(start_model: Path, tmp_path: Path) -> None:
    for num_workers in (0, 2):
        config = parrots(max_envs=3, num_workers=num_workers)
        model = config.model.model_copy(update={"path": str(start_model)})
        train(config.model_copy(update={"model": model}), tmp_path / str(num_workers))
    one, other = ([without_info(line) for line in episodes(tmp_path / name)] for name in "02")
    assert one == other
    assert len(one) == 2 * 3 * 4
    assert differences(tmp_path / "0", tmp_path / "2") == SAME | {"episodes": True}


def without_info(value: Any) -> Any:
    """A record without what environments add of their own."""
    if isinstance(value, dict):
        return {name: without_info(part) for name, part in value.items() if name != "info"}
    return [without_info(part) for part in value] if isinstance(value, list) else value

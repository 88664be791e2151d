"""The example of an environment of one's own: it keeps the contract, runs, and is found by name."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from trailnotes.config.schema import Config, EnvConfig
from trailnotes.envs import check_env, make_env
from trailnotes.envs.tasks import tasks_of
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.types import Task

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _in_the_examples_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(EXAMPLES)


def test_it_keeps_the_contract() -> None:
    assert check_env(lambda: make_env("own_env:Lock")) == ()


def test_it_says_so_when_run() -> None:
    printed = subprocess.check_output([sys.executable, "own_env.py"], text=True)
    assert printed == "The lock keeps the contract.\n"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_it_is_played_by_name(num_workers: int) -> None:
    """Halving finds one of four settings within three tries, and an easy lock is no use for notes."""
    config = Config(env=EnvConfig(name="own_env:Lock", options={"settings": 4}, num_workers=num_workers))

    async def solve(pool: EnvPool, task: Task) -> bool:
        low, high = 0, 3
        async with pool.lease() as env:
            observation = await env.reset(task)
            while not observation.done:
                guess = (low + high) // 2
                observation = await env.step(str(guess))
                low, high = (guess + 1, high) if observation.text == "higher." else (low, guess - 1)
        return observation.success

    with EnvPool(config.env) as pool:
        assert all(asyncio.run(solve(pool, task)) for task in tasks_of(config, "train"))

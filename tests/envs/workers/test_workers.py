"""Pools with real processes: killed, stopped, hung, crashed and orphaned."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from children import alive, wait_for
from trailnotes.config.schema import EnvConfig
from trailnotes.envs.workers.pool import EnvPool, Lease, Worker
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task

TASK = Task("train-0", "odd_envs:Puppet", 3, "train", {"colour": "blå", "sizes": [1, 2]})
both_kinds = pytest.mark.parametrize("num_workers", [0, 1])


def puppets(num_workers: int, *, heartbeat: float = 15.0, timeout: float = 30.0, **options: Any) -> EnvPool:
    config = EnvConfig(name="odd_envs:Puppet", options=options, num_workers=num_workers, timeout=timeout)
    return EnvPool(config, heartbeat=heartbeat)


def play(pool: EnvPool, *actions: str) -> list[Observation]:
    """One episode with its own lease in its own event loop."""
    return asyncio.run(episode(pool, *actions))


async def episode(pool: EnvPool, *actions: str) -> list[Observation]:
    async with pool.lease() as env:
        return [await env.reset(TASK), *[await env.step(action) for action in actions]]


def pid_of(pool: EnvPool) -> int:
    return int(play(pool, "pid")[-1].text)


def has_hung_up(pool: EnvPool) -> bool:
    """Whether the other end of the first worker's socket is closed."""
    (host, *_) = pool._hosts
    assert isinstance(host, Worker)
    poll = select.poll()
    poll.register(host._socket, select.POLLRDHUP)
    return bool(poll.poll(0))


@both_kinds
def test_an_episode_crosses_the_pool_unchanged(num_workers: int) -> None:
    texts = ["look", "", "a\nb\r\n", "öffne \U0001f6aa 开门", "\ud800", "\x00\x1b", "look " * 20_000]
    with puppets(num_workers, greeting="salut") as pool:
        observations = play(pool, *texts, "end")
    start = "salut train-0 3 {'colour': 'blå', 'sizes': [1, 2]}"
    assert observations[0] == Observation(start, instruction="obey", actions=("pid", "end"), max_score=2.0)
    assert [o.text for o in observations[1:-1]] == texts
    assert observations[1] == Observation("look", reward=0.5, score=0.5, max_score=2.0, actions=("end",))
    assert observations[-1] == Observation("the end", 2.0, terminated=True, success=True, score=2.0, max_score=2.0)


def test_large_observations_and_prints_do_not_disturb_the_protocol() -> None:
    with puppets(1) as pool:
        observations = play(pool, "print", "large 1000000", "print", "large 3", "pid")
    assert [len(o.text) for o in observations[1:5]] == [7, 1_000_000, 7, 3]
    assert observations[5].info["list"] == [1]


def test_workers_are_light_and_out_of_reach_of_ctrl_c() -> None:
    with puppets(1) as pool:
        modules, pid = play(pool, "modules torch transformers textworld pydantic numpy json", "pid")[1:]
    assert modules.text == "json"
    assert pid.info["group"] == int(pid.text) != os.getpgrp()


def test_leases_are_spread_evenly_and_environments_used_again() -> None:
    async def leases(pool: EnvPool) -> list[tuple[int, int]]:
        everyone = asyncio.Barrier(64)

        async def one() -> tuple[int, int]:
            async with pool.lease() as env:
                await env.reset(TASK)
                await everyone.wait()
                seen = await env.step("pid")
                return int(seen.text), seen.info["instance"]

        return await asyncio.gather(*[one() for _ in range(64)])

    with puppets(2) as pool:
        first, second = asyncio.run(leases(pool)), asyncio.run(leases(pool))
    pids = [pid for pid, _ in first]
    assert sorted(pids.count(pid) for pid in set(pids)) == [32, 32]
    assert pids[0::2] == [pids[0]] * 32  # in turns, the same at each run
    assert len(set(first)) == 64
    assert sorted(second) == sorted(first)


async def test_more_than_a_socket_holds_waits_for_the_worker() -> None:
    with puppets(1) as pool:
        for seen in await asyncio.gather(*[episode(pool, "sleep 0.05", "x" * 2_000_000) for _ in range(4)]):
            assert len(seen[-1].text) == 2_000_000


def test_a_message_half_sent_when_its_loop_ends_is_finished_in_the_next() -> None:
    async def interrupted(pool: EnvPool) -> None:
        async with pool.lease() as busy, pool.lease() as talking:
            await busy.reset(TASK)
            await talking.reset(TASK)
            calls = [asyncio.ensure_future(call) for call in (busy.step("sleep 0.3"), talking.step("x" * 2_000_000))]
            await asyncio.sleep(0.05)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    with puppets(1) as pool:
        pid = pid_of(pool)
        asyncio.run(interrupted(pool))
        assert pid_of(pool) == pid


async def harm_one_of_two(pool: EnvPool, harm: Callable[[int, Lease], Awaitable[object]]) -> tuple[str, int]:
    """Harm the first worker in mid-episode. Its two leases fail, the other worker's goes on; then play again."""
    async with pool.lease() as first, pool.lease() as other, pool.lease() as neighbour:
        for env in (first, other, neighbour):
            await env.reset(TASK)
        victim, spared = [int((await env.step("pid")).text) for env in (first, other)]
        assert victim != spared
        with pytest.raises(EnvError) as caught:
            await harm(victim, first)
        with pytest.raises(EnvError):
            await neighbour.step("look")
        assert (await other.step("look")).text == "look"
        assert not alive(victim)
        fresh = int((await episode(pool, "pid"))[-1].text)
        assert fresh not in {victim, spared}
        return str(caught.value), victim


async def kill_between_calls(pid: int, env: Lease) -> None:
    os.kill(pid, signal.SIGKILL)
    await env.step("look")


async def stop_between_calls(pid: int, env: Lease) -> None:
    os.kill(pid, signal.SIGSTOP)
    while alive(pid):  # noqa: ASYNC110 - until the pool has missed its heartbeat
        await asyncio.sleep(0.1)
    await env.step("look")


@pytest.mark.parametrize(
    ("harm", "limits", "reason"),
    [
        (lambda _, env: env.step("exit 3"), {}, "exited with status 3; its last words: ValueError: the last straw"),
        (lambda _, env: env.step("segfault"), {}, "died of SIGSEGV"),
        (kill_between_calls, {}, "died of SIGKILL"),
        (stop_between_calls, {"heartbeat": 1.0}, r"gave no sign of life for \S+ s \(.*\)"),
        (lambda _, env: env.step("spin"), {"timeout": 1.0}, "did not answer within env.timeout = 1 s"),
    ],
    ids=["exit", "segfault", "kill between calls", "stop", "hang"],
)  # fmt: skip
def test_a_lost_worker_fails_its_own_leases_alone(harm: Any, limits: dict[str, float], reason: str) -> None:
    with puppets(2, **limits) as pool:
        message, _ = asyncio.run(harm_one_of_two(pool, harm))
    assert re.fullmatch(f"worker 0 of odd_envs:Puppet {reason}", message)


def test_a_call_that_holds_the_interpreter_has_its_whole_time_limit() -> None:
    with puppets(1, heartbeat=1.0) as pool:
        assert play(pool, "freeze 2")[-1].text == "awake"


def test_a_busy_parent_does_not_blame_its_workers() -> None:
    async def look_away(pool: EnvPool) -> str:
        async with pool.lease() as env:
            await env.reset(TASK)
            call = asyncio.ensure_future(env.step("look"))
            await asyncio.sleep(0)
            time.sleep(1.5)  # noqa: ASYNC251 - as a policy does that generates in this thread
            return (await call).text

    with puppets(1, timeout=1.0, heartbeat=1.0) as pool:
        assert asyncio.run(look_away(pool)) == "look"
        pid = pid_of(pool)
        time.sleep(1.5)  # as a learner does between two event loops
        assert pid_of(pool) == pid


@both_kinds
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("raise now", "step of odd_envs:Puppet raised ValueError: two lines now (odd_envs.py:LINE)"),
        ("quit early", "step of odd_envs:Puppet raised SystemExit: early (odd_envs.py:LINE)"),
        ("nonsense x", "an environment must answer with an Observation, not str (odd_envs.py:LINE)"),
        ("count", "Observation.actions must be a tuple of texts or None, not 3"),
        ("object", "Observation.info must hold JSON values: object is not JSON"),
    ],
)
def test_what_an_environment_raises_costs_one_episode(num_workers: int, action: str, message: str) -> None:
    with puppets(num_workers) as pool:
        before = play(pool, "pid")[-1]
        with pytest.raises(EnvError) as caught:
            play(pool, action)
        after = play(pool, "pid")[-1]
    assert re.sub(r":\d+\)$", ":LINE)", str(caught.value)) == message
    assert caught.value.traceback.count("odd_envs.py") == 2 * (" raised " in message), "step, and what it calls"
    assert after.text == before.text  # the process lives on
    assert after.info["instance"] != before.info["instance"]  # the instance that failed is not used again


@both_kinds
def test_what_cannot_be_started_is_a_config_error(num_workers: int) -> None:
    def start(name: str, **options: Any) -> None:
        with EnvPool(EnvConfig(name=name, options=options, num_workers=num_workers)) as pool:
            play(pool)

    with pytest.raises(ConfigError, match="No module named 'no_such_module'"):
        start("no_such_module:Env")
    with pytest.raises(ConfigError, match=r"env.options.greting.*did you mean greeting"):
        start("odd_envs:Puppet", greting="hi")


def test_workers_that_die_at_start_are_given_up_with_their_last_words(tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    config = EnvConfig(name="odd_envs:Deadly", options={"tally": str(tally)}, num_workers=1)
    with EnvPool(config) as pool, pytest.raises(ConfigError) as caught:
        play(pool)
    assert str(caught.value) == (
        "env.name = 'odd_envs:Deadly' cannot be started (3 attempts): "
        "worker 0 of odd_envs:Deadly exited with status 7; its last words: cannot allocate luck"
    )
    assert tally.read_text() == "xxx"


def test_a_worker_lost_between_episodes_costs_none() -> None:
    with puppets(1) as pool:
        pid = pid_of(pool)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: has_hung_up(pool))  # its threads close their files a moment after it has ended
        assert pid_of(pool) != pid
        fresh = pid_of(pool)
        assert pid_of(pool) == fresh


def test_close_leaves_no_process_and_no_handle() -> None:
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    pool = puppets(2)
    pid = pid_of(pool)
    assert alive(pid)
    pool.close()
    pool.close()
    assert not Path(f"/proc/{pid}").exists()  # reaped, not a zombie
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_close_ends_a_worker_in_mid_call_and_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trailnotes.envs.workers.pool.STOP_TIMEOUT", 0.2)
    pool = puppets(1)
    async with pool.lease() as env:
        await env.reset(TASK)
        pids = [int((await env.step(action)).text) for action in ("pid", "child")]
        call = asyncio.ensure_future(env.step("sleep 100"))
        await asyncio.sleep(0.1)
        pool.close()
        with pytest.raises(EnvError, match="was closed"):
            await call
    wait_for(lambda: not any(alive(pid) for pid in pids))


PARENT = """
import asyncio, sys
from trailnotes.config.schema import EnvConfig
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.types import Task

async def main():
    pool = EnvPool(EnvConfig(name="odd_envs:Puppet", num_workers=3))
    async with pool.lease() as idle, pool.lease() as busy, pool.lease() as stopped:
        for env in (idle, busy, stopped):
            await env.reset(Task("t", "odd_envs:Puppet"))
            print((await env.step("pid")).text, flush=True)
        await busy.step("spin")

asyncio.run(main())
"""


def test_workers_end_with_a_parent_that_is_killed() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=env) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(3)]
        assert all(alive(pid) for pid in pids)
        os.kill(pids[2], signal.SIGSTOP)
        parent.kill()
    wait_for(lambda: not any(alive(pid) for pid in pids))


@both_kinds
async def test_an_environment_that_could_not_be_made_costs_one_episode(num_workers: int) -> None:
    """The lease is given all the same, and its first call says why it is of no use."""
    with EnvPool(EnvConfig(name="odd_envs:Broken", num_workers=num_workers)) as pool:
        for _ in range(2):
            async with pool.lease() as env:
                with pytest.raises(EnvError, match="making odd_envs:Broken raised ValueError: no luck"):
                    await env.reset(TASK)
        assert [host.load for host in pool._hosts if host] == [0]

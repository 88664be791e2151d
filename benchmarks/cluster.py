"""What Ray costs an environment worker: steps a second of 1 and 2 workers, as processes of ours and as Ray actors.

The environment computes for `--work` milliseconds a step, or not at all; as many episodes play side by side as a small
training has. All sides take turns. Then a small training runs with 2 workers of either kind, and with Ray also one
batch ahead: the share of its time in which the learner did nothing.
CPU seconds are those of this process and of the workers; a busy machine does not change them, as it does seconds.

    python benchmarks/cluster.py --json cluster.json
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared import console, cpu_seconds, finish, make_model, make_parser, make_tokenizer, print_table

from trailnotes.cluster.cluster import Cluster
from trailnotes.cluster.connection import connect_cluster
from trailnotes.config.schema import Config
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Observation, Task

CPUS = 4  # that a cluster of ours says it has: actors of this benchmark fit, however few there are
VOCABULARY = 420


@dataclass(frozen=True)
class Workload:
    """What is played, and how often."""

    episodes: int = 16
    steps: int = 30
    repeats: int = 5
    iterations: int = 4


QUICK = Workload(steps=15, repeats=2, iterations=2)


class Busy:
    """Computes for so many milliseconds of the CPU a step, and pays by the words of the action."""

    def __init__(self, work: float = 0.0) -> None:
        self._seconds = work / 1000

    @staticmethod
    def tasks(split: str) -> list[Task]:
        """As many as a batch has."""
        return [Task(f"{split}-{number}", "busy", split=split) for number in range(4)]

    def reset(self, task: Task) -> Observation:
        """Begin, and say in which process."""
        return Observation(f"you are in {task.id}", instruction=str(os.getpid()))

    def step(self, action: str) -> Observation:
        """Compute."""
        until = time.process_time() + self._seconds
        while time.process_time() < until:
            pass
        return Observation(f"you did {action}. " * 10, reward=zlib.crc32(action.encode()) % 4 / 4)

    def close(self) -> None:
        """Nothing is open."""


# --- steps a second


async def play(pool: EnvPool, episodes: int, steps: int) -> set[int]:
    """All episodes at once; the processes of their environments."""

    async def one(number: int) -> int:
        async with pool.lease() as env:
            begun = await env.reset(Task(f"task-{number}", "busy"))
            for step in range(steps):
                await env.step(f"step {step}")
        return int(begun.instruction or 0)

    return {*await asyncio.gather(*(one(number) for number in range(episodes)))}


def rate(pool: EnvPool, load: Workload, processes: set[int]) -> tuple[float, float]:
    """Steps a second, and CPU milliseconds a step."""

    def spent() -> float:
        return sum(map(cpu_seconds, {0, *processes}))

    started, before, steps = time.perf_counter(), spent(), load.episodes * load.steps
    asyncio.run(play(pool, load.episodes, load.steps))
    return steps / (time.perf_counter() - started), 1000 * (spent() - before) / steps


def rates(cluster: Cluster, work: float, load: Workload) -> dict[str, tuple[float, float]]:
    """Medians of each side: "local 1", "ray 2", ..."""
    with contextlib.ExitStack() as opened:
        pools = {}
        for kind, num in [(kind, num) for num in (1, 2) for kind in ("local", "ray")]:
            config = small_config(cluster.config.cluster.address, num, work)
            make_host = Cluster(config).make_env_host if kind == "ray" else None
            pools[f"{kind} {num}"] = opened.enter_context(EnvPool(config.env, make_host=make_host))
        workers = {side: asyncio.run(play(pool, load.episodes, 1)) for side, pool in pools.items()}
        found: dict[str, list[tuple[float, float]]] = {side: [] for side in pools}
        for _ in range(load.repeats):
            for side, pool in pools.items():
                found[side].append(rate(pool, load, workers[side]))
    return {
        side: (statistics.median(each[0] for each in pairs), statistics.median(each[1] for each in pairs))
        for side, pairs in found.items()
    }


# --- a small training


def small_config(address: str, num_workers: int, work: float, **sections: dict[str, Any]) -> Config:
    """Settings for either part."""
    return Config(
        env={"name": "cluster:Busy", "options": {"work": work}, "num_workers": num_workers},
        cluster={"address": address},
        **sections,
    )


def waits(model: Path, address: str, work: float, load: Workload, ahead: int = 0) -> float:
    """Share of a training's time in which the learner did nothing, but for the first iteration, which starts all."""
    from trailnotes.commands.train import train

    config = small_config(
        address, 2, work,
        run={"threads": 1}, model={"path": str(model), "device": "cpu"},
        rollout={"num_tasks": 4, "group_size": 4, "max_steps": 6, "max_action_tokens": 8, "max_context_tokens": 512,
                 "max_async_iterations": ahead},
        memory={"max_write_tokens": 8}, algorithm={"name": "empo2"}, optim={"lr": 1e-4, "epochs": 8},
        train={"iterations": load.iterations, "max_env_steps": 0},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        train(config, folder)
        lines = list(read_jsonl(Path(folder) / "metrics.jsonl"))
    spent = lines[-1]["seconds"] - lines[0]["seconds"]
    return float(1 - sum(line["seconds/update"] for line in lines[1:]) / spent)


def save_model(path: Path) -> Path:
    """A random model that knows words."""
    make_model(VOCABULARY, 128, 4, max_position_embeddings=512).save_pretrained(path)
    make_tokenizer(VOCABULARY - 1).save_pretrained(path)
    return path


# --- all of it


@contextlib.contextmanager
def local_cluster() -> Iterator[str]:
    """The address of a cluster of one node, started and ended here."""
    from ray.cluster_utils import Cluster as Local

    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": here}
    node = {"num_cpus": CPUS, "include_dashboard": False, "object_store_memory": 100 << 20}
    local = Local(initialize_head=True, head_node_args=node)
    try:
        yield str(local.address)
    finally:
        local.shutdown()


def measure(address: str, work: float, load: Workload, say: Callable[[str], object]) -> dict[str, Any]:
    """Everything."""
    result: dict[str, Any] = {"work_ms": work, "episodes": load.episodes, "steps": load.steps}
    with tempfile.TemporaryDirectory() as folder, connect_cluster(small_config(address, 2, work)) as cluster:
        for name, each in (("idle", 0.0), ("busy", work)):
            say(f"steps of {each:g} ms")
            result[name] = rates(cluster, each, load)
        model = save_model(Path(folder) / "model")
        say("small trainings")
        result["waits"] = {
            "local": waits(model, "", work, load),
            "ray": waits(model, address, work, load),
            "ray, one batch ahead": waits(model, address, work, load, ahead=1),
        }
    result["ratio"] = result["busy"]["ray 2"][1] / result["busy"]["local 2"][1]
    return result


def report(result: dict[str, Any]) -> None:
    """Tables, and the ratio."""
    print_table(
        f"Environment steps, {result['episodes']} episodes side by side: a second, and CPU ms of each",
        ("workers", "0 ms: a second", "CPU ms", f"{result['work_ms']:g} ms: a second", "CPU ms"),
        [(side, *(text for part in ("idle", "busy") for text in told(*result[part][side]))) for side in result["idle"]],
    )
    print_table(
        "Share of a small training's time in which the learner waits",
        ("2 workers", "share"),
        [(side, f"{share:.2f}") for side, share in result["waits"].items()],
    )
    console.print(f"CPU time of a step that works, on Ray over locally: {result['ratio']:.2f}")
    seconds = {side: each[0] for side, each in result["busy"].items()}
    console.print(f"steps a second of 2 workers over 1: local {seconds['local 2'] / seconds['local 1']:.2f}, "
                  f"Ray {seconds['ray 2'] / seconds['ray 1']:.2f}")  # fmt: skip


def told(rate: float, cpu: float) -> tuple[str, str]:
    """Two cells."""
    return f"{rate:,.0f}", f"{cpu:.3f}"


def main() -> None:
    """Measure and report."""
    parser = make_parser(__doc__, "fewer steps and repetitions")
    parser.add_argument("--work", type=float, default=5.0, help="milliseconds that a step computes")
    arguments = parser.parse_args()
    with local_cluster() as address:
        result = measure(address, arguments.work, QUICK if arguments.quick else Workload(), console.print)
    finish(result, report, arguments.json)


if __name__ == "__main__":
    main()

"""The window over much: one run of many episodes and one of many tips, each page asked for as a browser asks.

The episodes and tips are made here: `--episodes` of eight steps, in groups of eight, four tips shown in a quarter of
them; `--tips` over 10,000 tasks, with vectors of 256 dimensions, in a memory file as the store lays it out. Pages are
asked for through the application in this process, each `--times` times, and read to their end; the
first time, which may read on or open a file, is told apart. Searching opens the store itself, which checks the whole
file once: that is told apart, too.

    python benchmarks/view.py --json view.json
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from shared import finish, make_parser, print_table, resident_mb
from starlette.testclient import TestClient

from trailnotes.config.schema import Config
from trailnotes.config.toml import to_toml
from trailnotes.memory.schema import EmbedderIdentity
from trailnotes.memory.store import COLUMNS, TipStore
from trailnotes_lab.view.app import make_app
from trailnotes_lab.view.index import EpisodeIndex
from trailnotes_lab.view.window import Window

TARGET_MS = 200.0
TASKS = 10_000
DIM = 256  # of the default embedder
STEPS = 8
GROUP = 8


def make_run(path: Path, episodes: int, tips: int) -> None:
    """A run directory with so many episodes and tips, and a line of metrics for each 64 episodes."""
    path.mkdir(parents=True)
    config = Config(algorithm={"name": "empo2"}, memory={"threshold": -1.0})
    (path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    with (path / "trajectories.jsonl").open("w", encoding="utf-8") as file:
        for number in range(episodes):
            file.write(json.dumps(record(number, tips)) + "\n")
    with (path / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for iteration in range(max(1, episodes // 64)):
            shares = {f"rollout/success/{mode}": iteration % 10 / 10 for mode in ("plain", "off_policy")}
            line = {"iteration": iteration, "env_steps": 512 * (iteration + 1), "memory/tips": iteration, **shares}
            file.write(json.dumps(line | {f"update/{n}": n + iteration / 9 for n in range(30)}) + "\n")
    if tips:
        make_memory(path / "memory.db", tips)


def record(number: int, tips: int) -> dict[str, Any]:
    """An episode as trajectories.jsonl holds it, some 10 kB."""
    group, member = divmod(number, GROUP)
    own = range(group * 4, group * 4 + 4) if tips and member < 2 else ()
    shown = [{"id": n % tips + 1, "namespace": task_of(group), "text": f"tip {n}", "score": 1.0} for n in own]
    step = {
        "observation": {"text": "a hall with many doors, and a lamp that has gone out long ago. " * 6},
        "tips": [], "action": "go north", "reward": 0.0, "reward_intrinsic": 0.0, "policy_version": group // 8,
        "completion": {"token_ids": [7] * 16, "logprobs": [-0.123456789] * 16, "text": "go north"},
        "tokens": 16, "prompt_tokens": 400, "other_tokens": 0, "plain_prompt_tokens": 300,
    }  # fmt: skip
    steps = [step | {"tips": shown if n == 0 else []} for n in range(STEPS)]
    won = number % 3 == 0
    return {
        "iteration": group // 8, "task": {"id": task_of(group), "env": "maze"},
        "mode": "off_policy" if shown else "plain", "member": member, "outcome": "terminated", "success": won,
        "score": float(won), "max_score": 1.0,
        "return": float(won), "error": "", "context_full": False, "steps": steps,
        "final_observation": {"text": "the end", "terminated": True},
    }  # fmt: skip


def task_of(number: int) -> str:
    """One of 10,000."""
    return f"maze/family-{number % TASKS // 100}/train-{number % 100}"


def make_memory(path: Path, tips: int) -> None:
    """So many rows, written at once past the store's checks, which would take hours."""
    TipStore(path, EmbedderIdentity("hashing", DIM)).close()
    rng = np.random.default_rng(0)
    with closing(sqlite3.connect(path)) as connection, connection:
        marks = ", ".join("?" * (len(COLUMNS) + 2))
        for start in range(0, tips, 10_000):
            vectors = rng.standard_normal((min(10_000, tips - start), DIM), np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            rows = [
                (task_of(n), f"tip {n}: turn left at the well", "a dim hall", 1.0, 1.0, "go north", 1, n // 64, "start",
                 0, "run", "2026-01-01", 0, 1, vectors[n - start].tobytes(), n + 1)
                for n in range(start, start + len(vectors))
            ]  # fmt: skip
            connection.commit()
            connection.executemany(f"INSERT INTO tips ({', '.join(COLUMNS)}, vector, age) VALUES ({marks})", rows)  # noqa: S608
        connection.execute("UPDATE meta SET value = ? WHERE name = 'sequence'", [tips])


def measure(folder: Path, episodes: int, tips: int, times: int) -> dict[str, Any]:
    """Every page of the window."""
    make_run(folder / "runs/large", episodes, tips)
    make_run(folder / "runs/small", 64, 0)
    start = time.perf_counter()
    index = EpisodeIndex(folder / "runs/large/trajectories.jsonl")
    index.catch_up()
    index_s = time.perf_counter() - start
    index.close()
    size = (folder / "runs/large/trajectories.jsonl").stat().st_size
    large = "/run/large"
    pages = {
        "runs": "/",
        "run": large,
        "episodes": f"{large}/episodes",
        "episodes, last page": f"{large}/episodes?page={episodes // 50}",
        "episodes of a task": f"{large}/episodes?task=family-7/&success=yes",
        "an episode": f"{large}/episodes/{episodes // 2}",
        "tips": f"{large}/tips",
        "tips, the oldest": f"{large}/tips?before=51",
        "tips of a task, by score": f"{large}/tips?task={task_of(7)}&order=score",
        "a tip": f"{large}/tips/5",
        "the chain": f"{large}/chain",
    }
    with closing(Window(folder / "runs")) as window:
        client = TestClient(make_app(window, "token"), base_url="http://127.0.0.1:8765")
        client.get("/?token=token")
        found = {name: timed(client, address, times) for name, address in pages.items()}
        search = f"{large}/tips?task={task_of(7)}&q=a+dim+hall"
        first_search_s = timed(client, search, 1)["first_ms"] / 1000
        found["a search"] = timed(client, search, times)
    return {
        "episodes": episodes, "tips": tips, "file_mb": size / 2**20, "index_s": index_s, "pages": found,
        "first_search_s": first_search_s, "target_ms": TARGET_MS, "resident_mb": resident_mb("VmRSS"),
        "worst_ms": max(page["median_ms"] for page in found.values()),
        "worst_cpu_ms": max(page["cpu_ms"] for page in found.values()),
    }  # fmt: skip


def timed(client: TestClient, address: str, times: int) -> dict[str, float]:
    """Milliseconds of a page: the first time, the middle and the longest of `times` more; and of the processor."""
    took, busy = [], []
    for _ in range(times + 1):
        start, worked = time.perf_counter(), time.process_time()
        answer = client.get(address)
        took.append(1000 * (time.perf_counter() - start))
        busy.append(1000 * (time.process_time() - worked))
        if answer.status_code != 200:
            raise RuntimeError(f"{address}: {answer.status_code}")
    return {
        "first_ms": took[0],
        "median_ms": statistics.median(took[1:]),
        "cpu_ms": statistics.median(busy[1:]),
        "most_ms": max(took[1:]),
        "kb": len(answer.content) / 1024,
    }


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    print_table(
        f"{result['episodes']:,} episodes ({result['file_mb']:.0f} MiB, indexed in {result['index_s']:.1f} s), "
        f"{result['tips']:,} tips; first search {result['first_search_s']:.1f} s; {result['resident_mb']:.0f} MiB",
        ("page", "first ms", "median ms", "most ms", "CPU ms", "kB"),
        [(name, *(f"{page[key]:.0f}" for key in ("first_ms", "median_ms", "most_ms", "cpu_ms", "kb")))
         for name, page in result["pages"].items()],
    )  # fmt: skip


def main() -> None:
    """Read the arguments, measure, report."""
    parser = make_parser(__doc__, quick="1,000 episodes and 10,000 tips")
    parser.add_argument("--episodes", type=int, default=10_000, metavar="N", help="episodes (10,000)")
    parser.add_argument("--tips", type=int, default=1_000_000, metavar="N", help="tips (1,000,000)")
    parser.add_argument("--times", type=int, default=9, metavar="N", help="how often each page is asked for (9)")
    args: argparse.Namespace = parser.parse_args()
    episodes, tips = (1_000, 10_000) if args.quick else (args.episodes, args.tips)
    with tempfile.TemporaryDirectory() as folder:
        finish(measure(Path(folder), episodes, tips, args.times), report, args.json)


if __name__ == "__main__":
    main()

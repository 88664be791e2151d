"""What the memory costs: the share of a rollout's seconds that go into finding tips and storing them.

Every episode acts with tips: the memory, a file on disk with 1,000 tips for each task, is searched before each action.
After the rollout each episode's tip is stored, at the memory's limit, so that the oldest goes. Writing the tips is the
policy's work and is printed apart. The model, the observations and the tips are random words.

    python benchmarks/memory_overhead.py --json memory_overhead.json
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from shared import SPECIAL, console, finish, make_model, make_parser, make_tokenizer, print_table

from trailnotes.config.schema import Config
from trailnotes.memory import TipMemory, open_memory
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.rollout.groups import GroupRunner
from trailnotes.rollout.tips import write_tips
from trailnotes.types import Observation, Task, Tip

FLOOR = 0.03  # at most


@dataclass(frozen=True)
class Workload:
    """What is played."""

    hidden_size: int = 256
    num_layers: int = 6
    vocab_size: int = 2048
    num_tasks: int = 2
    group_size: int = 8
    turns: int = 20
    tips: int = 1000  # in each namespace
    action_tokens: int = 8
    write_tokens: int = 32
    repeats: int = 3


QUICK = Workload(group_size=4, turns=8, repeats=1)


class WordEnv:
    """Rooms of random words, the same for each task; it never ends by itself."""

    def __init__(self, words: int, turns: int) -> None:
        self._words, self._turns = words, turns

    async def reset(self, task: Task) -> Observation:
        """The first room."""
        self._rng, self._turn = random.Random(task.seed), 0
        return Observation(room(self._rng, self._words), instruction="find the way out")

    async def step(self, action: str) -> Observation:
        """The next room, whatever the action."""
        self._turn += 1
        return Observation(room(self._rng, self._words), reward=0.1 * len(action), truncated=self._turn >= self._turns)


class WordPool:
    """Lends a fresh environment to every episode."""

    def __init__(self, words: int, turns: int) -> None:
        self._options = words, turns

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[WordEnv]:
        """As `EnvPool.lease`."""
        yield WordEnv(*self._options)


class TimedMemory:
    """A memory that counts calls and seconds of searching and storing, embedding included."""

    def __init__(self, memory: TipMemory) -> None:
        self._memory = memory
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.found = 0

    def search(self, namespace: str, query: str, top_k: int) -> list[Tip]:
        """As `Memory.search`."""
        start = time.perf_counter()
        tips = self._memory.search(namespace, query, top_k)
        self._count("search", start)
        self.found += len(tips)
        return tips

    def add(self, tips: Sequence[Tip]) -> int:
        """As `Memory.add`."""
        start = time.perf_counter()
        changed = self._memory.add(tips)
        self._count("store", start)
        return changed

    def _count(self, name: str, start: float) -> None:
        self.seconds[name] += time.perf_counter() - start
        self.calls[name] += 1


def room(rng: random.Random, words: int) -> str:
    """About thirty words, two thirds of them in every room, as game texts are."""
    common = " ".join(f"w{index}" for index in range(20))
    return f"{common} " + " ".join(f"w{rng.randrange(words)}" for _ in range(10))


def make_policy(load: Workload) -> HFPolicy:
    """A random Qwen2 over one token for each word."""
    model = make_model(
        load.vocab_size, load.hidden_size, load.num_layers, heads=load.hidden_size // 64,
        max_position_embeddings=8192, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    policy = HFPolicy(model, make_tokenizer(load.vocab_size), name="random")
    policy.engine.endings.end_ids = frozenset()  # every action has the same length
    return policy


def fill(memory: TipMemory, tasks: Sequence[Task], load: Workload) -> None:
    """Bring every namespace to its limit with keys that look like the rooms."""
    rng, words = random.Random(1), load.vocab_size - len(SPECIAL)
    for task in tasks:
        texts = [" ".join(f"w{rng.randrange(words)}" for _ in range(12)) for _ in range(load.tips)]
        keys = [f"find the way out\n{room(rng, words)}" for _ in texts]
        memory.add([Tip(task.id, text, key, rng.random()) for text, key in zip(texts, keys, strict=True)])


async def play(policy: HFPolicy, memory: TipMemory, load: Workload, seed: int) -> dict[str, float]:
    """One rollout, its tips written and stored; where the seconds went."""
    timed, words = TimedMemory(memory), load.vocab_size - len(SPECIAL)
    tasks = [Task(f"task-{index}", "words", index) for index in range(load.num_tasks)]
    config = make_config(load)
    start = time.perf_counter()
    modes = [["on_policy_tips"] * load.group_size] * load.num_tasks
    groups = await GroupRunner(policy, WordPool(words, load.turns), timed, config, seed=seed).play(tasks, modes)
    rollout = time.perf_counter() - start
    tips, _ = await write_tips(policy, groups, config, seed=seed, step=seed)
    writing = time.perf_counter() - start - rollout
    added = timed.add(tips)
    assert added == load.num_tasks * load.group_size == len(tips)
    assert timed.found > timed.calls["search"], "tips must be found, or the search has nothing to do"
    assert memory.stats()["tips"] == load.num_tasks * load.tips
    return {
        "rollout": rollout,
        "search": timed.seconds["search"],
        "store": timed.seconds["store"],
        "write_tips": writing,
        "searches": timed.calls["search"],
        "share": (timed.seconds["search"] + timed.seconds["store"]) / (rollout + timed.seconds["store"]),
    }


def make_config(load: Workload) -> Config:
    """The default memory, with short actions and tips."""
    return Config.model_validate(
        {
            "rollout": {
                "max_steps": load.turns,
                "max_action_tokens": load.action_tokens,
                "max_context_tokens": 8192,
                "system_prompt": "",
            },
            "memory": {"capacity": load.tips, "max_write_tokens": load.write_tokens},
        }
    )


def measure(load: Workload) -> dict[str, Any]:
    """The median of some rollouts, after a short one that warms up."""
    policy = make_policy(load)
    tasks = [Task(f"task-{index}", "words", index) for index in range(load.num_tasks)]
    with (
        tempfile.TemporaryDirectory() as folder,
        open_memory(Path(folder) / "memory.db", make_config(load).memory) as memory,
    ):
        fill(memory, tasks, load)
        asyncio.run(play(policy, memory, replace(load, turns=2), seed=0))  # warm-up
        runs = [asyncio.run(play(policy, memory, load, seed)) for seed in range(1, load.repeats + 1)]
    return {
        "ratio": statistics.median(run["share"] for run in runs),
        "floor": FLOOR,
        "runs": runs,
        "parameters": sum(parameter.numel() for parameter in policy.model.parameters()),
        "threads": torch.get_num_threads(),
        "workload": vars(load),
    }


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    load = result["workload"]
    median = {name: statistics.median(run[name] for run in result["runs"]) for name in result["runs"][0]}
    episodes = load["num_tasks"] * load["group_size"]
    whole = median["rollout"] + median["store"]
    rows = []
    each = {
        "search": f"{1e3 * median['search'] / median['searches']:.2f} ms a search",
        "store": f"{1e3 * median['store'] / episodes:.2f} ms a tip",
        "write_tips": f"{1e3 * median['write_tips'] / episodes:.0f} ms a tip",
    }
    names = {"search": "retrieval", "store": "storing", "rollout": "rollout, retrieval included"}
    for part in ("search", "store", "rollout", "write_tips"):
        share = "" if part == "write_tips" else f"{100 * median[part] / whole:.2f} %"
        label = names.get(part, "writing tips (not counted)")
        rows.append((label, f"{median[part]:.3f}", share, each.get(part, "")))
    print_table(
        f"{episodes} episodes of {load['turns']} turns, {load['tips']} tips a task, "
        f"{result['parameters'] / 1e6:.1f}M parameters, {result['threads']} threads",
        ("part", "seconds", "share", "each"),
        rows,
    )
    console.print(f"ratio {result['ratio']:.4f} (at most {result['floor']:g})")


def main() -> None:
    """Parse the arguments, measure, print, and write."""
    parser = make_parser(__doc__, quick="fewer and shorter episodes, once")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 leaves torch's default")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    result = measure(QUICK if arguments.quick else Workload())
    finish(result, report, arguments.json)


if __name__ == "__main__":
    main()

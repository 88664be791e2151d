"""Episodes wait for a slow embedder together, off the event loop, and get what each would get alone."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np

from small import small_config
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.memory.retrieval import CachedEmbedder, Embedder, HashingEmbedder
from trailnotes.memory.schema import EmbedderIdentity
from trailnotes.memory.store import TipStore
from trailnotes.memory.tips import TipMemory
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.rollout.groups import GroupRunner
from trailnotes.types import Task, Tip, TrajectoryGroup

TASKS = [Task(f"task {number}", "echo_env:Echo") for number in range(12)]


class Recording(HashingEmbedder):
    """Records texts and threads; its first call ends when all other episodes wait, or after a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: CachedEmbedder | None = None
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()

    def embed(self, texts: list[str]) -> np.ndarray:
        self.batches.append(list(texts))
        self.threads.add(threading.get_ident())
        deadline = time.monotonic() + 60
        while len(self.batches) == 1 and self.cached is not None and time.monotonic() < deadline:
            if len(self.cached._waiting) == len(TASKS) - 1:
                break
            time.sleep(0.001)
        return super().embed(texts)


def played(embedder: Embedder) -> list[TrajectoryGroup]:
    memory = {"threshold": 0.2, "top_k": 2, "order": ("similarity", "score")}
    config = small_config(env={"name": "echo_env:Echo", "options": {}}, memory=memory, rollout={"max_steps": 3})
    words = ("red", "green", "blue", "yellow")
    tips = [
        Tip(task.id, f"{word} {index}", f"{task.id} {word} is the observation", index % 3)
        for task in TASKS for index, word in enumerate(words)
    ]  # fmt: skip
    policy = ScriptedPolicy(lambda messages: words[len(messages[-1].content) % 4])

    async def play(memory: TipMemory) -> list[TrajectoryGroup]:
        with EnvPool(config.env) as pool:
            runner = GroupRunner(policy, pool, memory, config, seed=0)
            return await runner.play(TASKS, [["on_policy_tips"]] * len(TASKS))

    with TipMemory(TipStore(None, EmbedderIdentity("hashing", 256)), HashingEmbedder(), config.memory) as memory:
        memory.add(tips)
        memory.embedder = embedder
        return asyncio.run(play(memory))


def turns(groups: list[TrajectoryGroup]) -> list[list[tuple[str, tuple[str, ...]]]]:
    """Action and shown tips of each step of each episode."""
    return [
        [(step.action, tuple(f"{tip.id} {tip.text}" for tip in step.tips)) for step in group.trajectories[0].steps]
        for group in groups
    ]


def test_all_that_wait_are_embedded_in_one_call_in_one_thread_of_its_own() -> None:
    recording = Recording()
    recording.cached = CachedEmbedder(recording, in_thread=True)
    together = played(recording.cached)
    assert len(recording.batches[0]) == 1
    assert len(recording.batches[1]) in (len(TASKS) - 1, len(TASKS))  # the first may be back before the call begins
    assert len(recording.threads) == 1
    assert threading.get_ident() not in recording.threads
    alone = Recording()
    assert turns(together) == turns(played(alone)), "whatever was embedded beside it"
    assert len({shown for episode in turns(together) for _, shown in episode}) > len(TASKS)
    assert {len(batch) for batch in alone.batches} == {1}

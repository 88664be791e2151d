"""A run: everything that a method's loop asks for, built from one config and living in one run directory.

All randomness is drawn from (seed, iteration, purpose), never from a generator that lives on; so a run that is
resumed at an iteration goes on exactly as it would have.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from trailnotes import checkpoint
from trailnotes.credit import novelty_bonus
from trailnotes.learner import Learner
from trailnotes.memory import open_memory
from trailnotes.memory.embed import make_embedder
from trailnotes.memory.novelty import StateCounter
from trailnotes.policies.hf import HFPolicy, load_model
from trailnotes.rollout import rollout_metrics, run_groups, write_tips
from trailnotes.tasks import batch_of, panel, tasks_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trailnotes.config import Config
    from trailnotes.envs.workers import EnvPool
    from trailnotes.logs import Progress, RunDir
    from trailnotes.types import Mode, Sample, Task, Trajectory, TrajectoryGroup


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from anything printable: the same in every process, unlike `hash`."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass
class Counters:
    """What a run has spent so far; saved with every checkpoint."""

    iteration: int = 0
    env_steps: int = 0
    episodes: int = 0
    tokens_generated: int = 0  # actions and tips
    tokens_trained: int = 0  # trained positions, times passes
    seconds: float = 0.0
    best_validation: float = float("-inf")
    best_iteration: int = -1


class Run:
    """State and services of a training run. A method (algorithms/) reads and drives it; it knows no method.

    Built by `training.open_run`, which also resumes; `pool` lives in the event loop that trains.
    """

    def __init__(self, config: Config, directory: RunDir, pool: EnvPool, progress: Progress) -> None:
        self.config, self.directory, self.pool, self.progress = config, directory, pool, progress
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        torch.manual_seed(derive_seed(config.run.seed, "weights"))  # adapters start at random
        model, self.tokenizer = load_model(config.model)
        self.policy = HFPolicy(
            model,
            self.tokenizer,
            name=config.model.path,
            deterministic=config.run.deterministic,
            max_context_tokens=config.rollout.max_context_tokens,
        )
        reference = load_model(config.model)[0] if config.loss.kl and not config.model.lora.enabled else None
        self.learner = Learner(
            model, config.optim, config.loss, temperature=config.rollout.temperature, reference=reference
        )
        uses_memory = config.algorithm.name != "grpo"
        self.memory = open_memory(directory.memory_path, config.memory) if uses_memory else None
        self.counter = StateCounter(make_embedder(config.memory.embedder), config.algorithm.novelty_threshold)
        self.tasks = tasks_of(config, config.train.split)
        self.count = Counters()
        self.stop_requested = False
        self._started = time.monotonic()
        self._iteration_started = self._started
        self._timings: dict[str, float] = {}

    # -- what a method's loop reads

    @property
    def finished(self) -> bool:
        """Whether the last iteration has been trained, or somebody asked to stop."""
        train = self.config.train
        spent = train.max_env_steps and self.count.env_steps >= train.max_env_steps
        return self.stop_requested or bool(spent) or self.count.iteration >= train.iterations

    def rng(self, purpose: str) -> random.Random:
        """A generator for one purpose in this iteration."""
        return random.Random(derive_seed(self.config.run.seed, self.count.iteration, purpose))

    def next_tasks(self) -> list[Task]:
        """The B tasks of this iteration."""
        return batch_of(self.tasks, self.config.rollout.num_tasks, self.config.run.seed, self.count.iteration)

    async def rollout(self, tasks: Sequence[Task], modes: list[list[Mode]]) -> list[TrajectoryGroup]:
        """Play every member of every group; failed groups are dropped, so the list may be shorter than `tasks`."""
        with self._timed("rollout"):
            return await run_groups(
                self.policy,
                self.pool,
                tasks,
                modes,
                self.memory,
                self.config,
                seed=derive_seed(self.config.run.seed, self.count.iteration, "rollout"),
                on_error=self.directory.append_trajectory_error(self.count.iteration),
            )

    async def write_tips(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Have the policy write one note an episode, and store them in task order."""
        assert self.memory is not None
        with self._timed("write_tips"):
            tips, tokens = await write_tips(
                self.policy,
                groups,
                self.config,
                seed=derive_seed(self.config.run.seed, self.count.iteration, "tips"),
                step=self.count.iteration,
            )
        with self._timed("store_tips"):
            self.memory.add(tips)
        self.count.tokens_generated += tokens

    def add_novelty(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """The groups with `reward_intrinsic` of every step filled in; counters move in task order."""
        kind = self.config.algorithm.intrinsic
        if kind == "none":
            return list(groups)
        return [
            replace(group, trajectories=tuple(self._novelty_of(t, kind) for t in group.trajectories))
            for group in groups
        ]

    def _novelty_of(self, trajectory: Trajectory, kind: str) -> Trajectory:
        """The release counts the tips retrieved, in tips modes only; the paper counts similar states of the task."""
        if kind == "tips" and trajectory.mode == "plain":
            return trajectory
        counts = [
            1 + len(step.tips) if kind == "tips" else self.counter.count(trajectory.task.id, step.observation.text)
            for step in trajectory.steps
        ]
        steps = zip(trajectory.steps, counts, strict=True)
        return replace(
            trajectory, steps=tuple(replace(step, reward_intrinsic=novelty_bonus([n])) for step, n in steps)
        )

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One pass of the learner over the batch; the engine's caches are void afterwards."""
        with self._timed("update"):
            seed = derive_seed(self.config.run.seed, self.count.iteration, "update")
            torch.manual_seed(seed)
            metrics = self.learner.update(samples, seed=seed)
            self.policy.weights_changed()
        return metrics

    async def end_iteration(self, groups: Sequence[TrajectoryGroup], metrics: dict[str, float]) -> None:
        """Count, log, validate and save; after this the iteration has happened."""
        rolled = rollout_metrics(groups)
        count, iteration = self.count, self.count.iteration
        trajectories = [t for group in groups for t in group.trajectories]
        count.env_steps += sum(len(t.steps) for t in trajectories)
        count.episodes += len(trajectories)
        count.tokens_generated += sum(t.num_tokens for t in trajectories)
        count.tokens_trained += int(metrics.get("tokens_trained", 0))
        self.directory.append_trajectories(iteration, trajectories)
        count.iteration += 1
        due = self.config.train.eval_every and count.iteration % self.config.train.eval_every == 0
        validation = await self.validate() if due else {}
        count.seconds += time.monotonic() - self._iteration_started
        self._iteration_started = time.monotonic()
        memory = {f"memory/{k}": v for k, v in self.memory.stats().items()} if self.memory is not None else {}
        line = {
            "iteration": iteration,
            **{k: v for k, v in asdict(count).items() if k not in {"iteration", "best_validation", "best_iteration"}},
            **{f"rollout/{k}": v for k, v in rolled.items()},
            **{f"update/{k}": v for k, v in metrics.items()},
            **{f"seconds/{k}": v for k, v in self._timings.items()},
            **validation,
            **memory,
        }
        self._timings = {}
        self.directory.append_metrics(line)
        self.progress.update(line)
        if count.iteration % self.config.train.save_every == 0 or self.finished:
            self.save()

    async def validate(self) -> dict[str, float]:
        """Act on held-out variations of the training families, without memory, and remember the best."""
        with self._timed("validate"):
            tasks = panel(tasks_of(self.config, self.config.train.validation_split), self.config.eval.num_tasks)
            episodes = await play_panel(self.policy, self.pool, tasks, self.config, seed=self.config.run.seed)
        success = sum(t.success for t in episodes) / max(1, len(episodes))
        value = sum(t.episode_return for t in episodes) / max(1, len(episodes))
        score = success if self.config.eval.metric == "success" else value
        if score > self.count.best_validation:
            self.count.best_validation, self.count.best_iteration = score, self.count.iteration
        return {"validation/success": success, "validation/return": value}

    # -- saving and resuming

    def save(self) -> None:
        """Write a checkpoint; whole or not at all."""
        with self._timed("save"):
            is_best = self.count.best_iteration == self.count.iteration
            checkpoint.save(
                self.directory.checkpoints,
                self.count.iteration,
                self._write_state,
                meta=asdict(self.count),
                best=is_best,
            )
            checkpoint.prune(self.directory.checkpoints, keep_last=self.config.train.keep_last)

    def _write_state(self, path: Path) -> None:
        self.learner.export(path / "model", self.tokenizer)
        checkpoint.write_state(path / "learner", self.learner.state_dict())
        checkpoint.write_state(path / "novelty", self.counter.state_dict())
        if self.memory is not None:
            self.memory.snapshot(path / "memory.db")

    def load(self, path: Path) -> None:
        """Take up the state of a checkpoint directory."""
        meta = json.loads((path / "meta.json").read_text())
        self.count = Counters(**meta)
        self.learner.load_state_dict(checkpoint.read_state(path / "learner"))
        self.counter.load_state_dict(checkpoint.read_state(path / "novelty"))
        if self.memory is not None:
            self.memory.restore(path / "memory.db")
        self.policy.weights_changed()

    def close(self) -> None:
        """Close what must be closed; the pool and the lock belong to whoever opened them."""
        if self.memory is not None:
            self.memory.close()

    def _timed(self, name: str) -> _Timer:
        return _Timer(self._timings, name)


class _Timer:
    """Adds the seconds of a `with` block to a dictionary of timings."""

    def __init__(self, timings: dict[str, float], name: str) -> None:
        self.timings, self.name = timings, name

    def __enter__(self) -> None:
        self.start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.timings[self.name] = self.timings.get(self.name, 0.0) + time.monotonic() - self.start


async def play_panel(
    policy: Any, pool: EnvPool, tasks: Sequence[Task], config: Config, *, memory: Any = None, seed: int = 0
) -> list[Trajectory]:
    """Play each task `eval.num_samples` times at the evaluation temperature, with or without memory.

    Returns the episodes in task order. Episodes that failed for good are left out (and were logged).
    """
    rollout = config.rollout.model_copy(update={"temperature": config.eval.temperature})
    mode: Mode = "plain" if memory is None else "on_policy_tips"
    groups = await run_groups(
        policy,
        pool,
        tasks,
        [[mode] * config.eval.num_samples for _ in tasks],
        memory,
        config.model_copy(update={"rollout": rollout}),
        seed=derive_seed(seed, "panel"),
    )
    return [trajectory for group in groups for trajectory in group.trajectories]


def run_async(coroutine: Any) -> Any:
    """Run a coroutine to its end from synchronous code."""
    return asyncio.run(coroutine)

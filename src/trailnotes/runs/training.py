"""A training run: what lives longer than an iteration, built from one config and living in one run directory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from trailnotes.config.methods import method_of
from trailnotes.credit.novelty import Novelty
from trailnotes.envs.tasks import tasks_of, validation_of
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.learner.sharded import make_learner
from trailnotes.memory import TipMemory, embedder_of, open_memory
from trailnotes.memory.controls import shown
from trailnotes.policies.hf.policy import load_model
from trailnotes.rollout.archive import Archive
from trailnotes.runs.authors import Authors
from trailnotes.runs.console import Progress
from trailnotes.runs.panels import play_panel
from trailnotes.runs.players import model_policy, set_back
from trailnotes.runs.rehearsal import Rehearsal, refuse_all_spent, rehearsal_path
from trailnotes.runs.saving import Counters
from trailnotes.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from trailnotes.cluster.cluster import Cluster
    from trailnotes.cluster.memory import ServedMemory
    from trailnotes.config.schema import Config
    from trailnotes.memory import Memory
    from trailnotes.policies.hf import HFPolicy
    from trailnotes.runs.directory import RunDir
    from trailnotes.types import Sample


class TrainingRun:
    """State of a training run. Its iterations (`runs/iteration.py`) read and change it.

    `open_run` makes one; `pool` lives in the event loop that trains.
    """

    def __init__(
        self, config: Config, directory: RunDir, pool: EnvPool, progress: Progress, cluster: Cluster | None = None
    ) -> None:
        self.config, self.directory, self.pool, self.progress = config, directory, pool, progress
        self.cluster = cluster  # places what runs elsewhere; None: everything runs here
        self.archive = Archive(config.archive) if config.archive.share else None
        credits_authors = config.algorithm.author_credit and method_of(config.algorithm.name).shows_tips
        self.authors = Authors(config) if credits_authors else None
        self.embedder = make_embedder = cache(partial(embedder_of, config))  # one model for novelty and memory
        novelty_seed = derive_seed(config.run.seed, "novelty")
        self.novelty = Novelty(config.algorithm, config.memory, novelty_seed, make=make_embedder)
        self.tasks = tasks_of(config, config.train.split)
        self._seed_adapters()
        self.policy = model_policy(config)
        reference = load_model(config.model)[0] if config.holds and not config.model.lora.enabled else None
        self.learner = make_learner(config, self._learning_model(), reference, directory.path / "dumps")
        self._start = model_policy(config, reference) if reference and config.algorithm.author == "start" else None
        rehearsed = rehearsal_path(config, directory.path)
        self.rehearsal = Rehearsal(config, rehearsed, self.policy.format) if rehearsed else None
        self.memory = self._open_memory() if method_of(config.algorithm.name).memory else None
        self.shown: Memory | None = self.memory  # to prompts
        if isinstance(self.memory, TipMemory):  # a service looks to that itself
            self.shown = shown(self.memory, config.algorithm.show_tips)
        self.version = 0  # of the learner's weights: how often they were updated
        own = {} if self.is_shared else self.learner.weights()  # where the policy has a model of its own:
        self._began_with: Mapping[str, Tensor] = own if config.algorithm.author == "start" else {}
        self._newest: Mapping[str, Tensor] = own  # what was learned last
        self._acting: Mapping[str, Tensor] = own  # what plays
        self._plays = asyncio.Lock()
        self.count = Counters()
        self.stop_requested = False
        self.saved: Path | None = None  # the newest checkpoint of this run
        self.empty = 0  # iterations in a row without any episode
        self._ended = time.monotonic()  # when the last iteration did

    def _open_memory(self) -> TipMemory | ServedMemory:
        """In this process, or as a service."""
        path = self.directory.memory_path
        if self.cluster is not None:
            return self.cluster.memory(path)
        return open_memory(path, self.config.memory, embedder=self.embedder())

    def _learning_model(self) -> Any:
        """The model that the learner changes; None where its processes load one each, and what plays is apart."""
        if not self.config.rollout.ahead:
            return self.policy.model
        if self.config.learner.world_size > 1:
            return None
        self._seed_adapters()  # what is played while an update changes weights needs its own
        return load_model(self.config.model)[0]

    def _seed_adapters(self) -> None:
        """They start at random: the same in every model that is loaded after this."""
        torch.manual_seed(derive_seed(self.config.run.seed, "weights"))

    def count_before(self, spent: Mapping[str, float]) -> None:
        """Count what was spent on this run before its first iteration.

        Raises:
            ConfigError: nothing is left of a limit of the run.
        """
        for name, value in spent.items():
            setattr(self.count, name, getattr(self.count, name) + value)
        refuse_all_spent(self.config.train, spent)

    @property
    def finished(self) -> bool:
        """Whether the last iteration has ended, or somebody asked to stop."""
        return self.stop_requested or self._share >= 1.0

    @property
    def _share(self) -> float:
        return self.config.train.share(asdict(self.count))

    @property
    def lr_scale(self) -> float:
        """1, then linearly down to 0 over the last `optim.lr_decay` of the run, by whichever limit is nearer."""
        decay = self.config.optim.lr_decay
        return min(1.0, (1.0 - self._share) / decay) if decay else 1.0

    # -- playing and learning take turns, or run side by side (`rollout.ahead`)

    @property
    def is_shared(self) -> bool:
        """Whether what plays is the very model that learns."""
        return not self.config.rollout.ahead

    async def start_playing(self) -> None:
        """Wait until nobody else plays, and play with the newest weights from here on."""
        await self._plays.acquire()
        if self.policy.version != self.version:
            await self.policy.load(self._newest, self.version)
            self._acting = self._newest

    def stop_playing(self) -> None:
        """Let others play."""
        self._plays.release()

    @contextlib.asynccontextmanager
    async def playing(self) -> AsyncIterator[HFPolicy]:
        """The policy with the newest weights, for nobody else inside the block."""
        await self.start_playing()
        try:
            yield self.policy
        finally:
            self.stop_playing()

    @contextlib.asynccontextmanager
    async def author(self) -> AsyncIterator[HFPolicy]:
        """Who writes the tips, by `algorithm.author`: a model of its own, or the policy with its adapters set back."""
        if self.config.algorithm.author == "policy" or self._start is not None:
            yield self._start or self.policy
            return
        if self.is_shared:
            with set_back(self.policy, self.learner) as author:
                yield author
            return
        version, acting = self.policy.version, self._acting
        await self.policy.load(self._began_with, 0)
        try:
            yield self.policy
        finally:
            await self.policy.load(acting, version)

    async def learn(self, samples: Sequence[Sample], seed: int) -> dict[str, float]:
        """One update; beside the event loop where others play meanwhile."""

        def update() -> dict[str, float]:
            if self.config.run.threads:
                torch.set_num_threads(self.config.run.threads)  # a setting of each thread
            torch.manual_seed(seed)
            return self.learner.update(samples, seed=seed, lr_scale=self.lr_scale)

        metrics = await asyncio.to_thread(update) if self.config.rollout.ahead else update()
        self.weights_changed(self.version + 1)
        return metrics

    def weights_changed(self, version: int) -> None:
        """The learner's weights are those of `version` now."""
        self.version = version
        if self.is_shared:
            self.policy.weights_changed()
            self.policy.version = version
        else:
            self._newest = self.learner.weights()

    async def validate(self, policy: HFPolicy) -> dict[str, float]:
        """Act on held-out variations of the training families, without memory, and remember the best."""
        tasks = validation_of(self.config)
        episodes = await play_panel(policy, self.pool, tasks, self.config, seed=self.config.run.seed)
        success = sum(t.success for t in episodes) / max(1, len(episodes))
        value = sum(t.episode_return for t in episodes) / max(1, len(episodes))
        score = success if self.config.eval.metric == "success" else value
        if self.count.best_validation is None or score > self.count.best_validation:
            self.count.best_validation, self.count.best_iteration = score, self.count.iteration
        return {"validation/success": success, "validation/return": value}

    def seconds_since_last(self) -> float:
        """Seconds since the iteration before ended."""
        now = time.monotonic()
        passed, self._ended = now - self._ended, now
        return passed

    def close(self) -> None:
        """Close what must be closed; the pool and the lock belong to their opener."""
        self.learner.close()
        if self.memory is not None:
            self.memory.close()

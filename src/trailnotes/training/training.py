"""A training run: what lives longer than an iteration, built from one config and living in one run directory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from trailnotes.config.methods import resolve_method
from trailnotes.credit.novelty import Novelty
from trailnotes.envs.tasks import load_training_tasks, load_validation_tasks
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.learner.samples import anchor_sample
from trailnotes.learner.sharded import make_learner
from trailnotes.memory import TipMemory, embedder_of, open_memory
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.policies.hf.policy import HFPolicy, load_model
from trailnotes.rollout.archive import Archive
from trailnotes.runs.console import TrainingProgress
from trailnotes.runs.load_policy import build_model_policy, use_initial_weights
from trailnotes.runs.panels import play_panel
from trailnotes.seeds import derive_seed
from trailnotes.training.authors import AuthorRegistry
from trailnotes.training.rehearsal import Rehearsal, find_rehearsal, require_remaining_budget
from trailnotes.training.saving import Counters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trailnotes.cluster.cluster import Cluster
    from trailnotes.cluster.memory import ServedMemory
    from trailnotes.config.schema import Config
    from trailnotes.memory import Memory
    from trailnotes.policies.base import TrainedPolicy
    from trailnotes.runs.directory import RunDir
    from trailnotes.types import Sample


T = TypeVar("T")


class LearnerSnapshot(NamedTuple):
    """What the learner hands to a policy that has weights of its own; see `TrainedPolicy.load`."""

    weights: Mapping[str, Tensor]
    version: int
    probe_logprobs: Sequence[Sequence[float]]


class TrainingRun:
    """State of a training run. Its iterations (`training/iteration.py`) read and change it.

    `open_run` makes one; `pool` lives in the event loop that trains.
    """

    def __init__(
        self,
        config: Config,
        directory: RunDir,
        pool: EnvPool,
        progress: TrainingProgress,
        cluster: Cluster | None = None,
    ) -> None:
        self.config, self.directory, self.pool, self.progress = config, directory, pool, progress
        self.cluster = cluster  # places what runs elsewhere; None: everything runs here
        self.archive = Archive(config.archive) if config.archive.share else None
        credits_authors = config.algorithm.author_credit and resolve_method(config.algorithm.name).shows_tips
        self.authors = AuthorRegistry(config) if credits_authors else None
        self.embedder = make_embedder = cache(partial(embedder_of, config))  # one model for novelty and memory
        novelty_seed = derive_seed(config.run.seed, "novelty")
        self.novelty = Novelty(config.algorithm, config.memory, novelty_seed, make=make_embedder)
        self.tasks = load_training_tasks(config)
        self._policy_lock = asyncio.Lock()
        self.count = Counters()
        self.stop_requested = False
        self.saved: Path | None = None  # the newest checkpoint of this run
        self.empty = 0  # iterations in a row without any episode
        self.version = 0  # of the learner's weights: how often they were updated
        if cluster is not None:
            cluster.reserve_gpu()
        self._seed_adapters()
        placed = cluster.start_engines() if cluster else ()
        if config.engine.name == "vllm":
            progress.note(f"the engines of vLLM start, within engine.start_timeout = {config.engine.start_timeout:g} s")
        self.policy: TrainedPolicy = build_model_policy(config, trains=True, connects=placed)
        with contextlib.ExitStack() as undone:
            undone.callback(self.policy.close)  # its engines are processes
            self._build(undone)
            undone.pop_all()
        self._ended = time.monotonic()  # when the last iteration did

    def _build(self, undone: contextlib.ExitStack) -> None:
        """What learns, and what remembers; `undone` closes what there is where the rest fails."""
        config, directory = self.config, self.directory
        apart = config.has_separate_author
        alone = config.learner.world_size == 1  # more ranks load it each
        held = config.has_reference_model and alone and not config.model.lora.enabled
        begun = load_model(config.model)[0] if held or apart else None
        start = self.cluster.start_ranks if self.cluster else None
        reference = begun if held else None
        self.learner = make_learner(config, self._load_learner_model(), reference, directory.path / "dumps", start)
        undone.callback(self.learner.close)
        self._start = build_model_policy(config, begun) if apart else None
        rehearsed = find_rehearsal(config, directory.path)
        self.rehearsal = Rehearsal(config, rehearsed, self.policy.format) if rehearsed else None
        self.memory = self._open_memory() if resolve_method(config.algorithm.name).memory else None
        if self.memory is not None:
            undone.callback(self.memory.close)
        self.prompt_memory: Memory | None = self.memory  # to prompts
        if isinstance(self.memory, TipMemory):  # a service looks to that itself
            self.prompt_memory = make_prompt_memory(self.memory, config.algorithm.show_tips)
        # Where the policy has weights of its own: what was learned last, what plays, and what training began with.
        self._newest = LearnerSnapshot({}, 0, ()) if self.is_shared else self._snapshot_learner(0)
        self._playing_weights: LearnerSnapshot | None = self._newest if self.is_shared else None
        self._sync_mismatch = self._sync_seconds = 0.0
        self.initial_weights = self._newest if config.has_frozen_author and not apart else None

    def _open_memory(self) -> TipMemory | ServedMemory:
        """In this process, or as a service."""
        path = self.directory.memory_path
        if self.cluster is not None:
            return self.cluster.make_memory(path)
        return open_memory(path, self.config.memory, embedder=self.embedder())

    def _load_learner_model(self) -> Any:
        """The model that the learner changes; None where its processes load one each, and what plays is apart."""
        if self.is_shared:
            return self._local_policy.model
        if self.config.learner.world_size > 1:
            return None
        self._seed_adapters()  # what is played while an update changes weights needs its own
        return load_model(self.config.model)[0]

    def _seed_adapters(self) -> None:
        """They start at random: the same in every model that is loaded after this."""
        torch.manual_seed(derive_seed(self.config.run.seed, "weights"))

    def add_prior_usage(self, spent: Mapping[str, float]) -> None:
        """Count what was spent on this run before its first iteration.

        Raises:
            ConfigError: nothing is left of a limit of the run.
        """
        for name, value in spent.items():
            setattr(self.count, name, getattr(self.count, name) + value)
        require_remaining_budget(self.config.train, spent)

    @property
    def is_finished(self) -> bool:
        """Whether the last iteration has ended, or somebody asked to stop."""
        return self.stop_requested or self._budget_share >= 1.0

    @property
    def _budget_share(self) -> float:
        return self.config.train.compute_progress(asdict(self.count))

    @property
    def lr_scale(self) -> float:
        """1, then linearly down to 0 over the last `optim.lr_decay` of the run, by whichever limit is nearer."""
        decay = self.config.optim.lr_decay
        return min(1.0, (1.0 - self._budget_share) / decay) if decay else 1.0

    # -- playing and learning take turns, or run side by side (`rollout.max_async_iterations`)

    @property
    def is_shared(self) -> bool:
        """Whether what plays is the very model that learns."""
        return self.config.engine.name == "hf" and not self.config.rollout.max_async_iterations

    @property
    def _local_policy(self) -> HFPolicy:
        """The policy, where it is no process of its own."""
        assert isinstance(self.policy, HFPolicy)
        return self.policy

    def _snapshot_learner(self, version: int) -> LearnerSnapshot:
        """The learner's weights as they are, and what it says of the policy's probes with them."""
        rows = [anchor_sample(probe, "tip", 0.0) for probe in self.policy.probes]
        said = [
            [logprob for logprob, scored in zip(found, row.loss_mask, strict=True) if scored]
            for row, found in zip(rows, self.learner.logprobs(rows) if rows else (), strict=True)
        ]
        return LearnerSnapshot(self.learner.weights(), version, said)

    async def acquire_policy(self) -> None:
        """Wait until nobody else plays, and play with the newest weights from here on."""
        await self._policy_lock.acquire()
        began, newest = time.monotonic(), self._newest
        try:
            await self.policy.wake()
            if self._playing_weights is not newest:
                self._sync_mismatch = await self.policy.load(*newest)
                self._playing_weights = newest
        except BaseException:  # others may wait for it, and the failure would wait for them
            self.release_policy()
            raise
        self._sync_seconds += time.monotonic() - began

    def pop_sync_metrics(self) -> dict[str, float]:
        """Of what plays with weights of its own: the seconds since the last call that handing them over took.

        Where it is asked what the learner says of its probes, also how far it was from that the last time, in nats.
        """
        seconds, self._sync_seconds = self._sync_seconds, 0.0
        if self.is_shared:
            return {}
        return {"seconds/sync": seconds} | ({"engine/sync": self._sync_mismatch} if self.policy.probes else {})

    def release_policy(self) -> None:
        """Let others play."""
        self._policy_lock.release()

    @contextlib.asynccontextmanager
    async def use_policy(self) -> AsyncIterator[TrainedPolicy]:
        """The policy with the newest weights, for nobody else inside the block."""
        await self.acquire_policy()
        try:
            yield self.policy
        finally:
            self.release_policy()

    @contextlib.asynccontextmanager
    async def use_author(self) -> AsyncIterator[TrainedPolicy]:
        """Who writes the tips, by `algorithm.author`: a model of its own, or the policy with its weights set back."""
        if self.config.algorithm.author == "policy" or self._start is not None:
            yield self._start or self.policy
            return
        if self.is_shared:
            with use_initial_weights(self._local_policy, self.learner) as author:
                yield author
            return
        assert self.initial_weights is not None
        assert self._playing_weights is not None
        await self.policy.load(*self.initial_weights)
        try:
            yield self.policy
        finally:
            await self.policy.load(*self._playing_weights)

    async def learn(self, samples: Sequence[Sample], seed: int) -> dict[str, float]:
        """One update; beside the event loop where others play meanwhile."""
        version = self.version + 1

        def update() -> tuple[dict[str, float], LearnerSnapshot | None]:
            if self.config.run.threads:
                torch.set_num_threads(self.config.run.threads)  # a setting of each thread
            torch.manual_seed(seed)
            metrics = self.learner.update(samples, seed=seed, lr_scale=self.lr_scale)
            return metrics, None if self.is_shared else self._snapshot_learner(version)

        metrics, learned = await _run_in_thread(update) if self.config.rollout.max_async_iterations else update()
        self._set_version(version, learned)
        return metrics

    def weights_changed(self, version: int) -> None:
        """The learner's weights are those of `version` now."""
        self._set_version(version, None if self.is_shared else self._snapshot_learner(version))

    def _set_version(self, version: int, learned: LearnerSnapshot | None) -> None:
        self.version = version
        if learned is None:
            self._local_policy.bump_version()
            self._local_policy.version = version
        else:
            self._newest = learned

    async def validate(self, policy: TrainedPolicy) -> dict[str, float]:
        """Act on held-out variations of the training families, without memory, and remember the best."""
        tasks = load_validation_tasks(self.config)
        episodes = await play_panel(policy, self.pool, tasks, self.config, seed=self.config.run.seed)
        success = sum(t.success for t in episodes) / max(1, len(episodes))
        value = sum(t.episode_return for t in episodes) / max(1, len(episodes))
        score = success if self.config.eval.metric == "success" else value
        if self.count.best_validation is None or score > self.count.best_validation:
            self.count.best_validation, self.count.best_iteration = score, self.count.iteration
        return {"validation/success": success, "validation/return": value}

    def pop_iteration_seconds(self) -> float:
        """Seconds since the iteration before ended."""
        now = time.monotonic()
        passed, self._ended = now - self._ended, now
        return passed

    def close(self) -> None:
        """Close what must be closed; the pool and the lock belong to their opener."""
        with contextlib.ExitStack() as each:
            each.callback(self.policy.close)
            each.callback(self.learner.close)
            if self.memory is not None:
                each.callback(self.memory.close)


async def _run_in_thread(call: Callable[[], T]) -> T:
    """Its result. Who is cancelled meanwhile waits for the end all the same: a thread cannot be stopped."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise

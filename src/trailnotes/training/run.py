"""A training run: its state beyond one iteration, built from one config in one run directory, and its checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_numpy
from safetensors.numpy import save_file as save_numpy

from trailnotes.config.methods import resolve_method
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.envs.tasks import load_training_tasks, load_validation_tasks
from trailnotes.errors import RunError
from trailnotes.gateway.pool import open_pool
from trailnotes.learner.sharded import make_learner
from trailnotes.learner.states import REST, STATE
from trailnotes.memory import TipMemory, embedder_of, open_memory
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.memory.owner import discard_empty_start, reconcile
from trailnotes.policies.hf.policy import HFPolicy, load_model
from trailnotes.rollout.episode import Pool
from trailnotes.runs.console import TrainingProgress
from trailnotes.runs.directory import has_begun
from trailnotes.runs.load_policy import build_model_policy, load_endpoint_author
from trailnotes.runs.panels import play_panel
from trailnotes.runs.usage import TRAINING_FIELDS
from trailnotes.seeds import derive_seed
from trailnotes.storage import checkpoint
from trailnotes.storage.files import find_free_path
from trailnotes.training.authors import AuthorRegistry, check_author_age
from trailnotes.training.exploration import Archive, make_novelty
from trailnotes.training.rehearsal import (
    REHEARSAL_DIR,
    Rehearsal,
    find_rehearsal,
    read_recording_usage,
    require_remaining_budget,
)
from trailnotes.training.weights import WeightSnapshot, WeightSync, has_shared_weights

if TYPE_CHECKING:
    from pathlib import Path

    from trailnotes.cluster.cluster import Cluster
    from trailnotes.cluster.memory import ServedMemory
    from trailnotes.config.schema import Config
    from trailnotes.learner.base import ModelLearner
    from trailnotes.learner.sharded import RankStarter
    from trailnotes.memory import Memory
    from trailnotes.policies.base import Policy, TrainedPolicy
    from trailnotes.runs.directory import RunDir
    from trailnotes.types import Sample, Tip
    from trailnotes.web.ledger import TokenLedger

T = TypeVar("T")


@dataclass
class Counters:
    """What a run has spent so far; saved with every checkpoint."""

    iteration: int = 0
    env_steps: int = 0
    episodes: int = 0
    tokens_generated: int = 0  # actions and tips
    tokens_trained: int = 0  # trained positions, times passes
    seconds: float = 0.0
    best_validation: float | None = None
    best_iteration: int = 0

    @property
    def usage(self) -> dict[str, float]:
        """Return the totals that a line of metrics.jsonl has."""
        return {name: getattr(self, name) for name in TRAINING_FIELDS}


class TrainingRun:
    """State of a training run, which its iterations (`training/iteration.py`) read and change.

    `open_run` makes one; `pool` lives in the event loop that trains.
    """

    def __init__(
        self,
        config: Config,
        directory: RunDir,
        pool: Pool,
        progress: TrainingProgress,
        cluster: Cluster | None = None,
    ) -> None:
        self.config, self.directory, self.pool, self.progress = config, directory, pool, progress
        self.cluster = cluster  # places what runs elsewhere; None: everything runs here
        self.archive = Archive(config.archive) if config.archive.share else None
        credits_authors = config.section(Empo2Config).author_credit and resolve_method(config.algorithm.name).shows_tips
        self.authors = AuthorRegistry(config) if credits_authors else None
        self.embedder = cache(partial(embedder_of, config))  # one model for novelty and memory
        self.novelty = make_novelty(config, derive_seed(config.run.seed, "novelty"), self.embedder)
        self.tasks = load_training_tasks(config)
        self.count = Counters()
        self.stop_requested = False
        self.saved: Path | None = None  # the newest checkpoint of this run
        self.empty = 0  # iterations in a row without any episode
        self.ledger: TokenLedger | None = None  # of a server that trains and samples
        self._seed_adapters()
        placed = cluster.start_engines() if cluster else ()
        if config.engine.name == "vllm":
            progress.note(f"the engines of vLLM start, within engine.start_timeout = {config.engine.start_timeout:g} s")
        self.policy: TrainedPolicy = build_model_policy(config, trains=True, connects=placed, directory=directory.path)
        with contextlib.ExitStack() as undone:
            undone.callback(self.policy.close)  # its engines are processes
            self._build(undone)
            undone.pop_all()
        self._ended = time.monotonic()  # when the last iteration did

    def _build(self, undone: contextlib.ExitStack) -> None:
        config, directory = self.config, self.directory
        alone = config.learner.world_size == 1  # more ranks load it each
        needs_reference = config.has_reference_model and alone and not (config.model.lora.enabled or config.is_hosted)
        initial = load_model(config.model)[0] if needs_reference or config.has_separate_author else None
        reference, start = initial if needs_reference else None, self.cluster.start_ranks if self.cluster else None
        self.learner = self._make_learner(reference, start)
        undone.callback(self.learner.close)
        author: Policy | None = build_model_policy(config, initial) if config.has_separate_author else None
        if resolve_method(config.algorithm.name).writes_tips:
            author = author or load_endpoint_author(config, directory.path)
        rehearsed = find_rehearsal(config, directory.path)
        self.rehearsal = Rehearsal(config, rehearsed, self.policy.format) if rehearsed else None
        self.memory: TipMemory | ServedMemory | None = None
        if resolve_method(config.algorithm.name).memory:
            path, make = directory.memory_path, self.cluster and self.cluster.make_memory
            self.memory = make(path) if make else open_memory(path, config.memory, embedder=self.embedder())
            undone.callback(self.memory.close)
        self.prompt_memory: Memory | None = self.memory  # to prompts
        if isinstance(self.memory, TipMemory):  # a service looks to that itself
            self.prompt_memory = make_prompt_memory(self.memory, config.algorithm.show_tips)
        self.weights = WeightSync(config, self.policy, self.learner, author)

    def _make_learner(self, reference: Any, start: RankStarter | None) -> ModelLearner:
        dumps = self.directory.path / "dumps"
        if not self.config.is_hosted:
            return make_learner(self.config, self._load_learner_model(), reference, dumps, start)
        from trailnotes.learner.tinker import TinkerLearner
        from trailnotes.policies.tinker import TinkerPolicy

        assert isinstance(self.policy, TinkerPolicy)
        self.ledger = self.policy.server.ledger
        return TinkerLearner(self.config, self.policy.server, self.policy.endings.end_ids, dumps)

    def _load_learner_model(self) -> Any:
        """Load the learner's model; None where its ranks load it, apart from the policy's."""
        if has_shared_weights(self.config):
            assert isinstance(self.policy, HFPolicy)
            return self.policy.model
        if self.config.learner.world_size > 1:
            return None
        self._seed_adapters()  # a policy that samples during an update needs its own
        return load_model(self.config.model)[0]

    def _seed_adapters(self) -> None:
        """Seed the random start of adapters: the same in every model that is loaded after this."""
        torch.manual_seed(derive_seed(self.config.run.seed, "weights"))

    def add_prior_usage(self, spent: Mapping[str, float]) -> None:
        """Count the usage of this run before its first iteration.

        Raises:
            ConfigError: nothing is left of a limit of the run.
        """
        for name, value in spent.items():
            setattr(self.count, name, getattr(self.count, name) + value)
        require_remaining_budget(self.config.train, spent)

    @property
    def is_finished(self) -> bool:
        """Return whether the last iteration has ended, or a stop was requested."""
        return self.stop_requested or self._budget_share >= 1.0 or self.is_spent

    @property
    def is_spent(self) -> bool:
        """Return whether another iteration could pass `learner.max_tokens_total`."""
        return self.ledger is not None and self.ledger.is_spent

    @property
    def _budget_share(self) -> float:
        return self.config.train.compute_progress(asdict(self.count))

    @property
    def lr_scale(self) -> float:
        """Return 1, then linearly down to 0 over the last `optim.lr_decay` of the run, by the nearer limit."""
        decay = self.config.optim.lr_decay
        left = max(0.0, 1.0 - self._budget_share)  # the tips of the last iteration may have passed the limit
        return min(1.0, left / decay) if decay else 1.0

    async def learn(self, samples: Sequence[Sample], seed: int) -> dict[str, float]:
        """Update the learner once, in a thread where `rollout.max_async_iterations` plays meanwhile."""
        version = self.weights.version + 1

        def update() -> tuple[dict[str, float], WeightSnapshot | None]:
            if self.config.run.threads:
                torch.set_num_threads(self.config.run.threads)  # a setting of each thread
            torch.manual_seed(seed)
            metrics = self.learner.update(samples, seed=seed, lr_scale=self.lr_scale)
            return metrics, self.weights.snapshot(version)

        metrics, learned = await _run_in_thread(update) if self.config.rollout.max_async_iterations else update()
        self.weights.publish(version, learned)
        return metrics

    async def validate(self, policy: TrainedPolicy) -> dict[str, float]:
        """Evaluate the policy on the validation tasks without memory, and remember the best score."""
        tasks = load_validation_tasks(self.config)
        episodes = await play_panel(policy, self.pool, tasks, self.config, seed=self.config.run.seed)
        success = sum(t.success for t in episodes) / max(1, len(episodes))
        value = sum(t.episode_return for t in episodes) / max(1, len(episodes))
        score = success if self.config.eval.metric == "success" else value
        if self.count.best_validation is None or score > self.count.best_validation:
            self.count.best_validation, self.count.best_iteration = score, self.count.iteration
        return {"validation/success": success, "validation/return": value}

    def pop_iteration_seconds(self) -> float:
        """Return the seconds since the last iteration ended."""
        now = time.monotonic()
        passed, self._ended = now - self._ended, now
        return passed

    def close(self) -> None:
        """Close policy, learner and memory; the opener closes pool and directory."""
        with contextlib.ExitStack() as each:
            each.callback(self.policy.close)
            each.callback(self.learner.close)
            if self.memory is not None:
                each.callback(self.memory.close)


async def _run_in_thread(call: Callable[[], T]) -> T:
    """Await the thread's result; a cancellation waits for its end, since a thread cannot be stopped."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


@contextlib.contextmanager
def open_run(
    config: Config, directory: RunDir, tips: Sequence[Tip] = (), cluster: Cluster | None = None
) -> Iterator[TrainingRun]:
    """Open a run at its last whole checkpoint, or at its start, inside the event loop that trains.

    Later lines and tips go to files of their own, and are not counted. Changes by the memory's owner stay. A run that
    has begun keeps its own tips in place of `tips`. `cluster` is that of `connect_cluster`.
    """
    with (
        open_pool(config.env, make_host=cluster.make_env_host if cluster else None) as pool,
        TrainingProgress(config, directory) as progress,
    ):
        start = directory.path / "memory.start.db"
        if not has_begun(directory.path):
            discard_empty_start(directory.memory_path, start)
        with contextlib.closing(TrainingRun(config, directory, pool, progress, cluster)) as run:
            _restore(run, start, tips)
            yield run


def _restore(run: TrainingRun, start: Path, tips: Sequence[Tip]) -> None:
    config, directory, progress = run.config, run.directory, run.progress
    saved = checkpoint.find_latest(directory.checkpoints)
    done = int(checkpoint.load_meta(saved)["iteration"]) if saved else 0
    if saved is not None:
        load_checkpoint(run, saved)
    elif run.rehearsal:
        run.add_prior_usage(read_recording_usage(directory.path / REHEARSAL_DIR))
    kept = directory.move_lines_after(done)
    begins = saved is None
    if run.memory is not None:
        aside = find_free_path(directory.path / f"tips.after-{done:06d}.jsonl")
        held = saved / "memory.db" if saved else None
        if isinstance(run.memory, TipMemory):
            begins = reconcile(run.memory, held, start, aside, tips)
        else:
            begins = run.memory.reconcile(held, start, aside, tips)
        kept += [aside] if aside.exists() else []
        run.memory.register_tasks(run.tasks)  # once: later ones would make another version of the memory
    if saved is not None or kept:
        progress.note(f"resuming after iteration {done}" + "".join(f"; set aside {path.name}" for path in kept))
    if run.authors is not None and (warning := check_author_age(config, len(run.tasks))):
        progress.note(warning)
    if tips:
        progress.note(
            f"began with {len(tips)} tips" if begins else "this run has begun, and keeps its own tips: "
            f"`trailnotes memory import {directory.path} FILE` adds others"
        )  # fmt: skip


# -- checkpoints


def save_checkpoint(run: TrainingRun) -> None:
    """Write a checkpoint, whole or not at all, and delete old ones by `train.keep_last`.

    Raises:
        RunError: the disk is full or not writable; earlier checkpoints are as they were.
    """
    root, count = run.directory.checkpoints, run.count
    try:
        run.saved = checkpoint.save(root, count.iteration, lambda path: _write_state(run, path), meta=asdict(count))
        _mark_best(run, run.saved)
        checkpoint.prune(root, keep_last=run.config.train.keep_last)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"cannot save iteration {count.iteration} in {root} ({reason}): free space or fix the "
                       "permissions") from error  # fmt: skip


def delete_optimizer_state(root: Path) -> None:
    """Delete the optimizer's state from all checkpoints of a finished run; models and tips stay.

    Raises:
        RunError: they are not writable.
    """
    try:
        for found in checkpoint.scan(root, contents=False):  # the newest last: until then the run can be opened again
            if not found.problems:
                checkpoint.strip(found.path, STATE)
    except OSError as error:
        raise RunError(f"cannot delete the optimizer's state in {root} ({error.strerror}): fix the permissions, or set "
                       "train.keep_optimizer = true") from error  # fmt: skip


def find_final_model(config: Config, run_dir: Path) -> Path | None:
    """Find the last model of a finished run without an optimizer's state; None where it can be opened.

    Raises:
        RunError: the settings ask for more than it has been trained for, or its last checkpoint is damaged.
    """
    root = run_dir / "checkpoints"
    found = checkpoint.scan(root, contents=False)
    if not found or (found[-1].path / REST).is_file():
        return None
    saved = checkpoint.find_latest(root)
    assert saved is not None, "there is one"
    if config.train.compute_progress(checkpoint.load_meta(saved)) < 1.0:
        raise RunError(
            f"{run_dir} has ended, and its optimizer's state was not kept (train.keep_optimizer = false), so it cannot "
            f"be trained further: begin another run with its model, --model.path {saved / 'model'}"
        )
    return saved / "model"


def load_checkpoint(run: TrainingRun, path: Path) -> None:
    """Restore the state of a checkpoint directory, except for the memory, which `open_run` rewinds.

    Raises:
        RunError: it is the state of another model or of another embedder.
    """
    run.count = Counters(**checkpoint.load_meta(path))
    novelty = load_numpy(path / "novelty.safetensors")
    try:
        run.learner.load(path)
        run.novelty.load_state_dict(novelty, checkpoint.read_json(path / "novelty.json"))
        if run.archive is not None and (path / "archive.json").exists():  # it may have been off until now
            run.archive.load_state_dict(checkpoint.read_json(path / "archive.json"))
        if run.authors is not None and (path / "authors.json").exists():
            run.authors.load_state_dict(checkpoint.read_json(path / "authors.json")["written"])
    except (ValueError, RuntimeError) as error:  # torch's word for tensors of other shapes is RuntimeError
        raise RunError(f"{path} does not fit the settings of this start: {error}") from error
    run.weights.publish(run.count.iteration, run.weights.snapshot(run.count.iteration))
    run.saved = path
    _mark_best(run, path)  # a kill may have come between the checkpoint and its mark


def _write_state(run: TrainingRun, path: Path) -> None:
    run.learner.save(path)
    run.learner.export(path / "model", run.policy.tokenizer)
    arrays, rest = run.novelty.state_dict()
    save_numpy(dict(arrays), path / "novelty.safetensors")
    checkpoint.write_json(path / "novelty.json", rest)
    if run.archive is not None:
        checkpoint.write_json(path / "archive.json", run.archive.state_dict())
    if run.authors is not None:
        checkpoint.write_json(path / "authors.json", {"written": run.authors.state_dict()})
    if run.memory is not None:
        run.memory.snapshot(path / "memory.db")


def _mark_best(run: TrainingRun, saved: Path) -> None:
    count = run.count
    if count.best_validation is not None and count.best_iteration == count.iteration:
        checkpoint.mark_best(run.directory.checkpoints, saved, count.best_validation)

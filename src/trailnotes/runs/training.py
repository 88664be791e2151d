"""A training run: its parts, built in one run directory, its counters, and its checkpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_numpy
from safetensors.numpy import save_file as save_numpy

from trailnotes.config.methods import resolve_method
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.schema import Config
from trailnotes.config.seeds import derive_seed
from trailnotes.envs.tasks import load_training_tasks
from trailnotes.errors import RunError
from trailnotes.gateway.pool import open_pool
from trailnotes.learner.base import ModelLearner
from trailnotes.learner.credit.novelty import Novelty
from trailnotes.learner.sharded import make_learner
from trailnotes.learner.states import REST, STATE
from trailnotes.memory import Embedder, Memory, TipMemory, embedder_of, open_memory
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.memory.exchange import discard_empty_start, reconcile
from trailnotes.policies.base import Policy, TrainedPolicy
from trailnotes.policies.hf.policy import load_model
from trailnotes.rollout.episode import Pool
from trailnotes.runs.authors import AuthorRegistry, check_author_age
from trailnotes.runs.console import TrainingProgress
from trailnotes.runs.directory import RunDir, has_begun
from trailnotes.runs.exploration import Archive, make_novelty
from trailnotes.runs.load_policy import build_model_policy, load_endpoint_author
from trailnotes.runs.rehearsal import (
    REHEARSAL_DIR,
    Rehearsal,
    find_rehearsal,
    read_recording_usage,
    require_remaining_budget,
)
from trailnotes.runs.weights import WeightSnapshot, WeightSync, has_shared_weights
from trailnotes.storage import checkpoint
from trailnotes.storage.files import find_free_path
from trailnotes.types import Sample, Task, Tip
from trailnotes.web.ledger import TokenLedger

if TYPE_CHECKING:  # these need Ray
    from trailnotes.runs.cluster.cluster import Cluster
    from trailnotes.runs.cluster.memory import ServedMemory


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


@dataclass
class TrainingRun:
    """Parts and state of a training run, which its iterations read and change; `open_run` builds it."""

    config: Config
    directory: RunDir
    pool: Pool
    progress: TrainingProgress
    tasks: list[Task]
    embedder: Callable[[], Embedder]  # one model for novelty and memory
    novelty: Novelty
    archive: Archive | None
    authors: AuthorRegistry | None
    policy: TrainedPolicy
    learner: ModelLearner
    ledger: TokenLedger | None  # of a server that trains and samples
    weights: WeightSync
    rehearsal: Rehearsal | None
    memory: TipMemory | ServedMemory | None
    prompt_memory: Memory | None  # as prompts read it
    count: Counters = field(default_factory=Counters)
    stop_requested: bool = False
    saved: Path | None = None  # the newest checkpoint of this run
    empty: int = 0  # iterations in a row without any episode
    ended_at: float = field(default_factory=time.monotonic)  # when the last iteration ended

    @property
    def is_finished(self) -> bool:
        return self.stop_requested or self.config.train.compute_progress(asdict(self.count)) >= 1.0 or self.is_spent

    @property
    def is_spent(self) -> bool:
        """Tell whether another iteration could pass `learner.max_tokens_total`."""
        return self.ledger is not None and self.ledger.is_spent

    @property
    def lr_scale(self) -> float:
        """Compute 1, then linearly down to 0 over the last `optim.lr_decay` of the run, by the nearer limit."""
        decay = self.config.optim.lr_decay
        # the tips of the last iteration may have passed the limit
        left = max(0.0, 1.0 - self.config.train.compute_progress(asdict(self.count)))
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

        if self.config.rollout.max_async_iterations:
            thread = asyncio.ensure_future(asyncio.to_thread(update))
            try:
                metrics, learned = await asyncio.shield(thread)
            except asyncio.CancelledError:
                await asyncio.wait({thread})  # a thread cannot be stopped
                raise
        else:
            metrics, learned = update()
        self.weights.publish(version, learned)
        return metrics


@contextmanager
def open_run(
    config: Config, directory: RunDir, tips: Sequence[Tip] = (), cluster: Cluster | None = None
) -> Iterator[TrainingRun]:
    """Build the parts of a run at its last whole checkpoint, or at its start, inside the event loop that trains.

    Later lines and tips go to files of their own, and are not counted. Changes by the memory's owner stay. A run that
    has begun keeps its own tips in place of `tips`. `cluster`, that of `connect_cluster`, places what runs elsewhere.
    """
    make_host = cluster.make_env_host if cluster else None
    with open_pool(config.env, make_host=make_host) as pool, ExitStack() as opened:
        progress = opened.enter_context(TrainingProgress(config, directory.path))
        if not has_begun(directory.path):
            discard_empty_start(directory.memory_path, directory.path / "memory.start.db")
        embedder = cache(partial(embedder_of, config))
        novelty = make_novelty(config, derive_seed(config.run.seed, "novelty"), embedder)
        policy = opened.enter_context(closing(_make_policy(config, directory, progress, cluster)))
        initial = _load_initial_model(config)
        learner = opened.enter_context(closing(_make_learner(config, directory, policy, initial, cluster)))
        author = _make_author(config, directory, initial)
        rehearsed = find_rehearsal(config, directory.path)
        rehearsal = Rehearsal(config, rehearsed, policy.format) if rehearsed else None
        memory = _open_memory(config, directory, embedder, cluster)
        if memory is not None:
            opened.callback(memory.close)
        credits_authors = config.section(Empo2Config).author_credit and resolve_method(config.algorithm.name).shows_tips
        run = TrainingRun(
            config, directory, pool, progress, load_training_tasks(config), embedder, novelty,
            archive=Archive(config.archive) if config.archive.share else None,
            authors=AuthorRegistry(config) if credits_authors else None,
            policy=policy, learner=learner, ledger=policy.server.ledger if config.is_hosted else None,
            weights=WeightSync(config, policy, learner, author), rehearsal=rehearsal, memory=memory,
            # a service looks to its prompts itself
            prompt_memory=make_prompt_memory(memory, config.algorithm.show_tips) if isinstance(memory, TipMemory)
            else memory,
        )  # fmt: skip
        _restore(run, tips)
        yield run


def _seed_adapters(config: Config) -> None:
    """Seed the random start of adapters: the same in every model that is loaded after this."""
    torch.manual_seed(derive_seed(config.run.seed, "weights"))


def _make_policy(config: Config, directory: RunDir, progress: TrainingProgress, cluster: Cluster | None) -> Any:
    _seed_adapters(config)
    engines = cluster.start_engines() if cluster else ()
    if config.engine.name == "vllm":
        progress.note(f"the engines of vLLM start, within engine.start_timeout = {config.engine.start_timeout:g} s")
    return build_model_policy(config, trains=True, connects=engines, directory=directory.path)


def _needs_reference(config: Config) -> bool:
    """Tell whether the loss needs a model of its own: ranks and servers load theirs, and adapters can be taken off."""
    alone = config.learner.world_size == 1 and not (config.model.lora.enabled or config.is_hosted)
    return config.has_reference_model and alone


def _load_initial_model(config: Config) -> Any:
    """Load the model of `model.path` once more, for the loss or for an author that is not trained; None for neither."""
    return load_model(config.model)[0] if _needs_reference(config) or config.has_separate_author else None


def _make_learner(config: Config, directory: RunDir, policy: Any, initial: Any, cluster: Cluster | None) -> Any:
    dumps = directory.path / "dumps"
    if config.is_hosted:
        from trailnotes.learner.tinker import TinkerLearner

        return TinkerLearner(config, policy.server, policy.endings.end_ids, dumps)
    if has_shared_weights(config):
        model = policy.model
    elif config.learner.world_size > 1:
        model = None  # its ranks load it, apart from the policy's
    else:
        _seed_adapters(config)  # a policy that samples during an update needs a model of its own
        model = load_model(config.model)[0]
    reference = initial if _needs_reference(config) else None
    return make_learner(config, model, reference, dumps, cluster.start_ranks if cluster else None)


def _make_author(config: Config, directory: RunDir, initial: Any) -> Policy | None:
    if config.has_separate_author:
        return build_model_policy(config, initial)
    if resolve_method(config.algorithm.name).writes_tips:
        return load_endpoint_author(config, directory.path)
    return None


def _open_memory(
    config: Config, directory: RunDir, embedder: Callable[[], Embedder], cluster: Cluster | None
) -> TipMemory | ServedMemory | None:
    if not resolve_method(config.algorithm.name).memory:
        return None
    if cluster:
        return cluster.make_memory(directory.memory_path)
    return open_memory(directory.memory_path, config.memory, embedder=embedder())


def _restore(run: TrainingRun, tips: Sequence[Tip]) -> None:
    config, directory, progress = run.config, run.directory, run.progress
    saved = checkpoint.find_latest(directory.checkpoints)
    done = int(checkpoint.load_meta(saved)["iteration"]) if saved else 0
    if saved is not None:
        load_checkpoint(run, saved)
    elif run.rehearsal:
        spent: dict[str, Any] = read_recording_usage(directory.path / REHEARSAL_DIR)
        run.count = Counters(**spent)
        require_remaining_budget(config.train, spent)
    kept = directory.move_lines_after(done)
    begins = saved is None
    if run.memory is not None:
        backup = find_free_path(directory.path / f"tips.after-{done:06d}.jsonl")
        files = saved / "memory.db" if saved else None, directory.path / "memory.start.db", backup, tips
        begins = reconcile(run.memory, *files) if isinstance(run.memory, TipMemory) else run.memory.reconcile(*files)
        kept += [backup] if backup.exists() else []
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
    """Write a checkpoint, whole or not at all, and delete old ones by `train.keep_last`."""
    root, count = run.directory.checkpoints, run.count
    try:
        run.saved = checkpoint.save(root, count.iteration, partial(_write_state, run), meta=asdict(count))
        _mark_best(run, run.saved)
        checkpoint.prune(root, keep_last=run.config.train.keep_last)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"cannot save iteration {count.iteration} in {root} ({reason}): free space or fix the "
                       "permissions") from error  # fmt: skip


def delete_optimizer_state(root: Path) -> None:
    """Delete the optimizer's state from all checkpoints of a finished run; models and tips stay."""
    try:
        for saved in checkpoint.scan(root, contents=False):  # the newest last: until then the run can be opened again
            if not saved.problems:
                checkpoint.strip(saved.path, STATE)
    except OSError as error:
        raise RunError(f"cannot delete the optimizer's state in {root} ({error.strerror}): fix the permissions, or set "
                       "train.keep_optimizer = true") from error  # fmt: skip


def find_final_model(config: Config, run_dir: Path) -> Path | None:
    """Find the last model of a finished run without an optimizer's state; None where it can be opened."""
    root = run_dir / "checkpoints"
    checkpoints = checkpoint.scan(root, contents=False)
    if not checkpoints or (checkpoints[-1].path / REST).is_file():
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
    """Restore the state of a checkpoint directory, except for the memory, which `open_run` rewinds."""
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

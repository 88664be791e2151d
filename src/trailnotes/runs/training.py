"""A training run: its parts, built in one run directory, the hand-over of weights, counters, and checkpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_numpy
from safetensors.numpy import save_file as save_numpy

from trailnotes.config.methods import resolve_method
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_training_tasks
from trailnotes.errors import ConfigError, RunError
from trailnotes.gateway.pool import open_pool
from trailnotes.learner.base import ModelLearner
from trailnotes.learner.credit.rnd import RandomNetworkDistillation
from trailnotes.learner.credit.steps import Estimator, Novelty, RetrievalNovelty, StateCounter, VisitCounter
from trailnotes.learner.learner import Learner
from trailnotes.learner.samples import anchor_sample
from trailnotes.learner.sharded import make_learner
from trailnotes.learner.states import REST, STATE
from trailnotes.memory import Embedder, TipMemory, make_config_embedder, open_memory
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.memory.exchange import discard_empty_start, reconcile
from trailnotes.policies.base import Policy, TrainedPolicy
from trailnotes.policies.hf.policy import load_model, resolve_device
from trailnotes.reporting.terminal import Activity
from trailnotes.rollout.episode import Pool
from trailnotes.runs.authors import AuthorRegistry
from trailnotes.runs.directory import RunDir, has_begun
from trailnotes.runs.estimate.footprint import fit_microbatch
from trailnotes.runs.load_policy import build_model_policy, load_endpoint_author
from trailnotes.runs.progress import TrainingProgress
from trailnotes.runs.rehearsal import (
    REHEARSAL_DIR,
    Rehearsal,
    find_rehearsal,
    read_recording_usage,
    require_remaining_budget,
)
from trailnotes.storage import checkpoint
from trailnotes.storage.files import find_free_path
from trailnotes.types import Sample, Task, Tip, derive_seed
from trailnotes.web.ledger import TokenLedger

if TYPE_CHECKING:  # it needs Ray
    from trailnotes.runs.cluster.cluster import Cluster


# -- weights on their way from the learner to the policy


def has_shared_weights(config: Config) -> bool:
    """Return whether the policy samples from the very model that the learner changes."""
    apart = config.rollout.max_async_iterations or config.is_hosted or config.learner.world_size > 1
    return config.engine.name == "hf" and not apart


class WeightSnapshot(NamedTuple):
    """The learner's weights for a policy with weights of its own: the arguments of `TrainedPolicy.load`."""

    weights: Any
    version: int
    probe_logprobs: Sequence[Sequence[float]]


class WeightSync:
    """Hands the learner's weights to the policy, between whose turns they may change."""

    def __init__(self, config: Config, policy: TrainedPolicy, learner: ModelLearner, author: Policy | None) -> None:
        self.version = 0  # how often the learner's weights were updated
        self._policy: Any = policy
        self._learner: Any = learner
        self._author = author
        self._shared, self._policy_writes = has_shared_weights(config), not config.has_frozen_author
        self._turn = asyncio.Lock()
        self._newest = self.snapshot(0)
        self._loaded: WeightSnapshot | None = None  # by the policy
        self._initial = self._newest if config.has_frozen_author and author is None else None
        self._mismatch = self._seconds = 0.0

    def snapshot(self, version: int) -> WeightSnapshot | None:
        """Get the learner's weights and its log-probabilities of the policy's probes; None where they are shared."""
        if self._shared:
            return None
        rows = [anchor_sample(probe, "tip", 0.0) for probe in self._policy.probes]
        logprobs = [
            [logprob for logprob, scored in zip(values, row.loss_mask, strict=True) if scored]
            for row, values in zip(rows, self._learner.logprobs(rows) if rows else (), strict=True)
        ]
        get = self._learner.live_weights if self._policy.reads_learner_memory else self._learner.weights
        return WeightSnapshot(get(), version, logprobs)

    def publish(self, version: int, learned: WeightSnapshot | None) -> None:
        """Make `learned`, of `snapshot`, the weights that the policy samples from at its next turn."""
        self.version, self._newest = version, learned
        if self._shared:
            self._policy.bump_version()
            self._policy.version = version

    async def acquire(self) -> None:
        """Wait for the policy's turn, and load the newest weights into it."""
        await self._turn.acquire()
        began, newest = time.monotonic(), self._newest
        try:
            are_gone = await self._policy.wake()
            if newest is not None and (are_gone or self._loaded is not newest):
                self._mismatch = await self._policy.load(*newest)
                self._loaded = newest
        except BaseException:  # others may wait for the turn, and the failure would wait for them
            self.release()
            raise
        self._seconds += time.monotonic() - began

    def release(self) -> None:
        self._turn.release()

    @asynccontextmanager
    async def use_author(self) -> AsyncIterator[Policy]:
        """Yield the model of `algorithm.author`: a model of its own, or the policy, perhaps with initial weights."""
        policy = self._policy
        if self._policy_writes or self._author is not None:
            yield self._author or policy
        elif self._shared:
            version = policy.version
            with self._learner.use_initial_adapters():
                policy.reset_cache()
                policy.version = 0
                try:
                    yield policy
                finally:
                    policy.reset_cache()
                    policy.version = version
        else:
            assert self._initial is not None
            assert self._loaded is not None
            await policy.load(*self._initial)
            try:
                yield policy
            finally:
                await policy.load(*self._loaded)

    def pop_metrics(self) -> dict[str, float]:
        """Return the seconds of the syncs since the last call, and the last mismatch on the probes, in nats."""
        seconds, self._seconds = self._seconds, 0.0
        if self._shared:
            return {}
        return {"seconds/sync": seconds} | ({"engine/sync": self._mismatch} if self._policy.probes else {})


# -- the run


@dataclass
class Counters:
    """Usage of a run so far, saved with every checkpoint."""

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
    authors: AuthorRegistry | None
    policy: TrainedPolicy
    learner: ModelLearner
    ledger: TokenLedger | None  # of a server that trains and samples
    weights: WeightSync
    rehearsal: Rehearsal | None
    memory: TipMemory | None
    prompt_memory: TipMemory | None  # as prompts read it
    count: Counters = field(default_factory=Counters)
    stop_requested: bool = False
    saved: Path | None = None  # the newest checkpoint of this run
    empty: int = 0  # iterations in a row without any group
    tasks_with_tips: set[str] = field(default_factory=set)  # that this process has stored
    checked_readers: bool = False  # whether tips reach the episodes that could read them
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
        """Return 1, then linearly less, down to 0 at the end of the run, over its last `optim.lr_decay`."""
        decay = self.config.optim.lr_decay
        left = max(0.0, 1.0 - self.config.train.compute_progress(asdict(self.count)))
        return min(1.0, left / decay) if decay else 1.0

    async def learn(self, samples: Sequence[Sample], seed: int, activity: Activity | None = None) -> dict[str, float]:
        """Update the learner once, in a thread where `rollout.max_async_iterations` plays meanwhile."""
        if activity is not None and isinstance(self.learner, Learner):
            self.learner.activity = activity
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
    make_host, method = cluster.make_env_host if cluster else None, resolve_method(config.algorithm.name)
    with open_pool(config.env, make_host=make_host) as pool, ExitStack() as opened:
        progress = opened.enter_context(TrainingProgress(config, directory.path))
        if not has_begun(directory.path):
            discard_empty_start(directory.memory_path, directory.path / "memory.start.db")
        embedder = cache(partial(make_config_embedder, config))
        novelty = make_novelty(config, derive_seed(config.run.seed, "novelty"), embedder)
        needs_initial = _needs_reference(config) or config.has_separate_author
        with progress.activity("opening the model"):
            policy = opened.enter_context(closing(_make_policy(config, directory, progress, cluster)))
            initial = load_model(config.model)[0] if needs_initial else None
            learner = opened.enter_context(closing(_make_learner(config, directory, policy, initial, cluster)))
        empo2 = config.section(Empo2Config)
        if config.distils_tips and empo2.distilled_context == "release" and not policy.append_only:
            raise ConfigError('empo2.distilled_context = "release" needs prompts that extend each other, and this chat '
                              'template rewrites earlier turns: set it to "tip_free"')  # fmt: skip
        author: Policy | None = build_model_policy(config, initial) if config.has_separate_author else None
        if author is None and method.writes_tips:
            author = load_endpoint_author(config, directory.path)
        rehearsed = find_rehearsal(config, directory.path)
        rehearsal = Rehearsal(config, rehearsed, policy.format) if rehearsed else None
        memory = None
        if method.memory:
            memory = opened.enter_context(open_memory(directory.memory_path, config.memory, embedder=embedder()))
        credits_authors = config.section(Empo2Config).author_credit and method.shows_tips
        run = TrainingRun(
            config, directory, pool, progress, load_training_tasks(config), embedder, novelty,
            authors=AuthorRegistry(config) if credits_authors else None,
            policy=policy, learner=learner, ledger=policy.server.ledger if config.is_hosted else None,
            weights=WeightSync(config, policy, learner, author), rehearsal=rehearsal, memory=memory,
            prompt_memory=make_prompt_memory(memory, config.algorithm.show_tips) if memory else None,
        )  # fmt: skip
        _restore(run, tips)
        yield run


def make_novelty(config: Config, seed: int, make_embedder: Callable[[], Embedder]) -> Novelty:
    """Make the novelty service that `algorithm.intrinsic` names; `seed` is of the networks of "rnd"."""
    makers: dict[str, Callable[[], Estimator]] = {
        "tips": lambda: RetrievalNovelty(config.memory),
        "states": lambda: StateCounter(make_embedder(), config.algorithm.novelty_threshold),
        "counts": VisitCounter,
        "rnd": lambda: RandomNetworkDistillation(make_embedder(), seed),
    }
    kind = config.algorithm.intrinsic
    return Novelty(kind, makers[kind]() if kind in makers else None)


def _seed_adapters(config: Config) -> None:
    torch.manual_seed(derive_seed(config.run.seed, "weights"))


def _make_policy(config: Config, directory: RunDir, progress: TrainingProgress, cluster: Cluster | None) -> Any:
    _seed_adapters(config)
    engines = cluster.start_engines() if cluster else ()
    if config.engine.name == "vllm":
        progress.note(f"the engines of vLLM start, within engine.start_timeout = {config.engine.start_timeout:g} s")
    return build_model_policy(config, trains=True, connects=engines, directory=directory.path)


def _needs_reference(config: Config) -> bool:
    # Ranks and servers load a reference model of their own, and adapters can be taken off.
    alone = config.learner.world_size == 1 and not (config.model.lora.enabled or config.is_hosted)
    return config.has_reference_model and alone


def _make_learner(config: Config, directory: RunDir, policy: Any, initial: Any, cluster: Cluster | None) -> Any:
    dumps = directory.path / "dumps"
    if config.is_hosted:
        from trailnotes.learner.tinker import TinkerLearner

        return TinkerLearner(config, policy.server, policy.endings.end_ids, dumps)
    if resolve_device(config.model.device).type == "cuda":
        config = fit_microbatch(config)
    if config.learner.world_size > 1:  # its ranks load it, apart from the policy's
        return make_learner(config, None, None, dumps, cluster.start_ranks() if cluster else None)
    if has_shared_weights(config):
        model = policy.model
    else:
        _seed_adapters(config)  # a policy that samples during an update needs a model of its own
        model = load_model(config.model)[0]
    return make_learner(config, model, initial if _needs_reference(config) else None, dumps)


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
    directory.write_config()
    kept = directory.move_lines_after(done)
    begins = saved is None
    if run.memory is not None:
        backup = find_free_path(directory.path / f"tips.after-{done:06d}.jsonl")
        start = directory.path / "memory.start.db"
        begins = reconcile(run.memory, saved / "memory.db" if saved else None, start, backup, tips)
        kept += [backup] if backup.exists() else []
        run.memory.register_tasks(run.tasks)  # once: later ones would make another version of the memory
    if saved is not None or kept:
        progress.note(f"resuming after iteration {done}" + "".join(f"; set aside {path.name}" for path in kept))
    if tips:
        held = sum(run.memory.store.count_by_namespace().values()) if run.memory else 0
        more = f", beside those of {directory.memory_path}, {held} in all" if held > len(tips) else ""
        progress.note(
            f"began with {len(tips)} tips{more}" if begins else "this run has begun, and keeps its own tips: "
            f"`trailnotes memory import {directory.path} FILE` adds others"
        )  # fmt: skip


# -- checkpoints


def save_checkpoint(run: TrainingRun) -> None:
    """Write a checkpoint whole or not at all, and delete old ones by `train.keep_last`."""
    root, count = run.directory.checkpoints, run.count
    try:
        run.saved = checkpoint.save(root, count.iteration, partial(_write_state, run), meta=asdict(count))
        _mark_best(run, run.saved)
        checkpoint.prune(root, keep_last=run.config.train.keep_last)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"cannot save iteration {count.iteration} in {root} ({reason}): free space or fix the "
                       "permissions") from error  # fmt: skip


def delete_optimizer_state(root: Path) -> bool:
    """Delete the optimizer's state from all checkpoints of a finished run, the newest last; models and tips stay.

    Returns False at the first that a reader locks: a later call, for which the newest keeps its own, deletes the rest.
    """
    whole = [saved.path for saved in checkpoint.scan(root, contents=False) if not saved.problems]
    return all(checkpoint.strip(path, STATE) for path in whole)


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
    if run.authors is not None:
        checkpoint.write_json(path / "authors.json", {"written": run.authors.state_dict()})
    if run.memory is not None:
        run.memory.snapshot(path / "memory.db")


def _mark_best(run: TrainingRun, saved: Path) -> None:
    count = run.count
    if count.best_validation is not None and count.best_iteration == count.iteration:
        checkpoint.mark_best(run.directory.checkpoints, saved, count.best_validation)

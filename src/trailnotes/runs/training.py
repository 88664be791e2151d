"""A run: everything that a method's loop asks for, built from one config and living in one run directory.

All randomness is drawn from (seed, iteration, purpose), never from a generator that lives on; so a run that is
resumed at an iteration goes on exactly as it would have.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_numpy
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from trailnotes.config.methods import method_of
from trailnotes.credit.episodes import scores_of, valid_share
from trailnotes.credit.novelty import Novelty
from trailnotes.envs.tasks import batch_of, panel, tasks_of
from trailnotes.errors import RunError
from trailnotes.learner.learner import Learner
from trailnotes.memory import open_memory
from trailnotes.policies.hf.policy import HFPolicy, load_model
from trailnotes.rollout import WrittenTip, rollout_metrics, run_groups, tip_metrics, write_tips
from trailnotes.rollout.archive import Archive, from_start
from trailnotes.rollout.dynamic import further_tasks, replace_equal
from trailnotes.runs.panels import play_panel
from trailnotes.runs.spent import BY_TRAINING
from trailnotes.seeds import derive_seed
from trailnotes.storage import checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trailnotes.config.schema import Config
    from trailnotes.credit import Scores
    from trailnotes.envs.workers.pool import EnvPool
    from trailnotes.runs.directory import Progress, RunDir
    from trailnotes.types import Mode, Sample, Task, Trajectory, TrajectoryGroup


EMPTY_ITERATIONS = 3  # without any episode, after which the environment counts as broken


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
            model,
            config.optim,
            config.loss,
            temperature=config.rollout.temperature,
            reference=reference,
            dump_dir=directory.path / "dumps",
        )
        uses_memory = method_of(config.algorithm.name).memory
        self.memory = open_memory(directory.memory_path, config.memory) if uses_memory else None
        self.novelty = Novelty(config.algorithm, config.memory, derive_seed(config.run.seed, "novelty"))
        self.archive = Archive(config.archive) if config.archive.share else None
        self.tasks = tasks_of(config, config.train.split)
        self.count = Counters()
        self.stop_requested = False
        self.saved: Path | None = None  # the newest checkpoint of this run
        self._iteration_started = time.monotonic()
        self._timings: dict[str, float] = {}
        self._metrics: dict[str, float] = {}
        self._errors: list[Trajectory] = []
        self._left_out: list[Trajectory] = []  # ended well, but too few others of their group did
        self._empty = 0  # iterations in a row without any episode

    # -- what a method's loop reads

    @property
    def finished(self) -> bool:
        """Whether the last iteration has been trained, or somebody asked to stop."""
        return self.stop_requested or self._share >= 1.0

    @property
    def _share(self) -> float:
        return self.config.train.share({name: getattr(self.count, name) for name in ("iteration", *BY_TRAINING)})

    @property
    def lr_scale(self) -> float:
        """1, then linearly down to 0 over the last `optim.lr_decay` of the run, by whichever limit is nearer."""
        decay = self.config.optim.lr_decay
        return min(1.0, (1.0 - self._share) / decay) if decay else 1.0

    def rng(self, purpose: str) -> random.Random:
        """A generator for one purpose in this iteration."""
        return random.Random(derive_seed(self.config.run.seed, self.count.iteration, purpose))

    def next_tasks(self) -> list[Task]:
        """The B tasks of this iteration."""
        return batch_of(self.tasks, self.config.rollout.num_tasks, self.config.run.seed, self.count.iteration)

    async def rollout(
        self, tasks: Sequence[Task], modes: Sequence[Sequence[Mode]] | None = None
    ) -> list[TrajectoryGroup]:
        """Play every member of every group; failed groups are dropped, so the list may be shorter than `tasks`.

        With `algorithm.dynamic_sampling`, groups of equal returns give way to groups of further tasks: what they took
        is counted and logged, but they are not trained on.

        Args:
            tasks: B tasks.
            modes: a row for each task, a mode for each member; None plays all plain.
        """
        plain: list[Mode] = ["plain"] * self.config.rollout.group_size
        rows = modes or [plain] * len(tasks)
        ended: list[Trajectory] = []
        played = [task.id for task in tasks]

        async def play_further(number: int, num: int) -> list[TrajectoryGroup]:
            further = further_tasks(self.tasks, played, num, self.rng(f"further-{number}"))
            played.extend(task.id for task in further)
            return await self._play(further, rows[:num], f"rollout-{number}", ended)

        with self._timed("rollout"):
            groups = await self._play(tasks, rows, "rollout", ended)
            if rounds := self.config.algorithm.dynamic_sampling:
                groups, replaced = await replace_equal(groups, rounds, play_further)
                success = sum(t.success for t in ended) / max(1, len(ended))
                self.add_metrics("dynamic", {"groups_replaced": float(replaced), "success": success})
        kept = {id(trajectory) for group in groups for trajectory in group.trajectories}
        self._left_out += sorted((t for t in ended if id(t) not in kept), key=lambda t: (t.task.id, t.member))
        self._empty = 0 if groups else self._empty + 1
        if self._empty == EMPTY_ITERATIONS:
            raise RunError(
                f"no episode could be played in {self._empty} iterations; the last error was: {self._errors[-1].error}"
            )
        return groups

    async def _play(
        self, tasks: Sequence[Task], modes: Sequence[Sequence[Mode]], purpose: str, ended: list[Trajectory]
    ) -> list[TrajectoryGroup]:
        archive, pool = self.archive, self.pool
        if archive is not None:
            tasks, modes = archive.plan(tasks, modes, self.rng(f"archive-{purpose}"))
        groups = await run_groups(
            self.policy,
            archive.pool(pool) if archive else pool,
            tasks,
            modes,
            self.memory,
            self.config,
            seed=derive_seed(self.config.run.seed, self.count.iteration, purpose),
            progress=ended.append,
            on_error=self._errors.append,
        )
        return archive.regroup(groups) if archive else groups

    async def write_tips(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Have the policy write one note an episode, and store them in task order.

        None is written about an episode that returned to a kept state: it would tell the last part of the way alone.
        """
        assert self.memory is not None
        written: list[WrittenTip] = []
        with self._timed("write_tips"):
            tips, num_tokens = await write_tips(
                self.policy,
                self._from_start(groups),
                self.config,
                seed=derive_seed(self.config.run.seed, self.count.iteration, "tips"),
                step=self.count.iteration,
                on_tip=written.append,
            )
        with self._timed("store_tips"):
            self.memory.add(tips)
        self.count.tokens_generated += num_tokens
        self.add_metrics("tips", tip_metrics(written))

    def _from_start(self, groups: Sequence[TrajectoryGroup]) -> Sequence[TrajectoryGroup]:
        """Those of episodes that began as the game does, and did not return to a kept state."""
        return groups if self.archive is None else from_start(groups)

    def add_novelty(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """The groups with `reward_intrinsic` of every step filled in, by `algorithm.intrinsic`."""
        rated = self.novelty.rate(groups)
        bonuses = [step.reward_intrinsic for group in rated for t in group.trajectories for step in t.steps]
        if self.novelty.kind != "none" and bonuses:
            self.add_metrics("novelty", {"bonus": sum(bonuses) / len(bonuses)})
        return rated

    def scores(self, groups: Sequence[TrajectoryGroup]) -> list[Scores]:
        """What the episodes of each group earned, in the numbers that credit is made of."""
        self.add_metrics("credit", {"valid_actions": valid_share(groups, self.config.algorithm.invalid)})
        return [scores_of(group, self.config.algorithm) for group in groups]

    def add_metrics(self, section: str, metrics: Mapping[str, float]) -> None:
        """Metrics of this iteration, logged as `section/name` when it ends."""
        self._metrics |= {f"{section}/{name}": value for name, value in metrics.items()}

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One pass of the learner over the batch; the engine's caches are void afterwards."""
        with self._timed("update"):
            seed = derive_seed(self.config.run.seed, self.count.iteration, "update")
            torch.manual_seed(seed)
            metrics = self.learner.update(samples, seed=seed, lr_scale=self.lr_scale)
            self.policy.weights_changed()
        return metrics

    async def end_iteration(self, groups: Sequence[TrajectoryGroup], metrics: dict[str, float]) -> None:
        """Count, log, validate and save; after this the iteration has happened."""
        count, iteration = self.count, self.count.iteration
        trajectories = [t for group in groups for t in group.trajectories]
        played = [*trajectories, *self._left_out, *self._errors]  # what is not trained on has been paid for as well
        count.env_steps += sum(len(t.steps) for t in played)
        count.episodes += len(trajectories)
        count.tokens_generated += sum(t.num_tokens for t in played)
        count.tokens_trained += int(metrics.get("tokens_trained", 0))
        count.iteration += 1
        self.directory.append_trajectories(iteration, played)
        self.add_metrics("rollout", rollout_metrics(self._from_start(groups) or groups, self._errors))
        if self.archive is not None:
            count.env_steps += self.archive.replayed_steps
            self.add_metrics("archive", self.archive.learn(groups))
        self.add_metrics("update", metrics)
        if self.memory is not None:
            self.add_metrics("memory", self.memory.stats())
        if self.config.train.eval_every and count.iteration % self.config.train.eval_every == 0:
            self._metrics |= await self.validate()
        count.seconds += time.monotonic() - self._iteration_started
        self._iteration_started = time.monotonic()
        spent = {key: getattr(count, key) for key in BY_TRAINING}
        timings = {f"seconds/{k}": v for k, v in self._timings.items()}
        modes = "+".join(sorted({t.mode for t in trajectories}))
        self.directory.append_metrics({"iteration": iteration, "mode": modes, **spent, **self._metrics, **timings})
        self.progress.update({"iteration": iteration, "mode": modes, **spent, **self._metrics})
        self._timings, self._metrics, self._errors, self._left_out = {}, {}, [], []
        best = count.best_iteration == count.iteration
        if best or count.iteration % self.config.train.save_every == 0 or self.finished:
            self.save()

    async def validate(self) -> dict[str, float]:
        """Act on held-out variations of the training families, without memory, and remember the best."""
        with self._timed("validate"):
            tasks = panel(tasks_of(self.config, self.config.train.validation_split), self.config.eval.num_tasks)
            episodes = await play_panel(self.policy, self.pool, tasks, self.config, seed=self.config.run.seed)
        success = sum(t.success for t in episodes) / max(1, len(episodes))
        value = sum(t.episode_return for t in episodes) / max(1, len(episodes))
        score = success if self.config.eval.metric == "success" else value
        if self.count.best_validation is None or score > self.count.best_validation:
            self.count.best_validation, self.count.best_iteration = score, self.count.iteration
        return {"validation/success": success, "validation/return": value}

    # -- saving and resuming

    def save(self) -> None:
        """Write a checkpoint, whole or not at all, and delete those that are no longer kept.

        Raises:
            RunError: the disk is full or not writable; earlier checkpoints are as they were.
        """
        root, count = self.directory.checkpoints, self.count
        try:
            self.saved = checkpoint.save(root, count.iteration, self._write_state, meta=asdict(count))
            self._mark_best()
            checkpoint.prune(root, keep_last=self.config.train.keep_last)
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"cannot save iteration {count.iteration} in {root} ({getattr(error, 'strerror', None) or error}): "
                "free space or fix the permissions"
            ) from error

    def _mark_best(self) -> None:
        count = self.count
        if self.saved is not None and count.best_validation is not None and count.best_iteration == count.iteration:
            checkpoint.mark_best(self.directory.checkpoints, self.saved, count.best_validation)

    def _write_state(self, path: Path) -> None:
        """All that a resumed run needs. Random states are not among it: they follow from seed and iteration."""
        self.learner.export(path / "model", self.tokenizer)
        tensors, rest = self.learner.state_dict()
        save_torch(tensors, path / "learner.safetensors")
        checkpoint.write_json(path / "learner.json", rest)
        arrays, rest = self.novelty.state_dict()
        save_numpy(dict(arrays), path / "novelty.safetensors")
        checkpoint.write_json(path / "novelty.json", rest)
        if self.archive is not None:
            checkpoint.write_json(path / "archive.json", self.archive.state_dict())
        if self.memory is not None:
            self.memory.snapshot(path / "memory.db")

    def load(self, path: Path) -> None:
        """Take up the state of a checkpoint directory, but for the memory, which is rewound with care (training.py).

        Raises:
            RunError: it is the state of another model or of another embedder.
        """
        self.count = Counters(**checkpoint.load_meta(path))
        novelty = load_numpy(path / "novelty.safetensors")
        try:
            self.learner.load_state_dict(load_torch(path / "learner.safetensors"), _read_json(path / "learner.json"))
            self.novelty.load_state_dict(novelty, _read_json(path / "novelty.json"))
            if self.archive is not None and (path / "archive.json").exists():  # it may have been off until now
                self.archive.load_state_dict(_read_json(path / "archive.json"))
        except (ValueError, RuntimeError) as error:  # torch's word for tensors of other shapes is RuntimeError
            raise RunError(f"{path} does not fit the settings of this start: {error}") from error
        self.policy.weights_changed()
        self.policy.version = self.count.iteration
        self.saved = path
        self._mark_best()  # a kill may have come between the checkpoint and its mark

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


def _read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value

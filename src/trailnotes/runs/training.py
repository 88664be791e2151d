"""A training run: everything that a method's loop asks for, built from one config and living in one run directory.

All randomness is drawn from (seed, iteration, purpose), never from a generator that lives on; so a run that is
resumed at an iteration continues exactly as it would have.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import asdict
from functools import cache, partial
from typing import TYPE_CHECKING

import torch

from trailnotes.config.methods import method_of
from trailnotes.credit.episodes import scores_of, valid_share
from trailnotes.credit.novelty import Novelty
from trailnotes.envs.tasks import batch_of, tasks_of, validation_of
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.errors import RunError
from trailnotes.learner.learner import Learner
from trailnotes.learner.samples import anchor_rows
from trailnotes.memory import embedder_of, open_memory
from trailnotes.memory.controls import shown
from trailnotes.policies.hf.policy import load_model
from trailnotes.rollout import WrittenTip, rollout_metrics, run_groups, tip_metrics, write_tips
from trailnotes.rollout.archive import Archive, from_start
from trailnotes.rollout.dynamic import further_tasks, replace_equal
from trailnotes.runs.authors import Authors, author_metrics, credit_of
from trailnotes.runs.console import Progress
from trailnotes.runs.panels import play_panel
from trailnotes.runs.players import model_policy, set_back
from trailnotes.runs.rehearsal import Rehearsal, refuse_all_spent, rehearsal_path
from trailnotes.runs.saving import Counters, save
from trailnotes.runs.watching import watch
from trailnotes.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trailnotes.config.schema import Config
    from trailnotes.credit import Scores
    from trailnotes.policies.hf import HFPolicy
    from trailnotes.rollout import MemoryOf
    from trailnotes.runs.directory import RunDir
    from trailnotes.types import Mode, Sample, Task, Trajectory, TrajectoryGroup

EMPTY_ITERATIONS = 3  # without any episode, after which the environment counts as broken


class TrainingRun:
    """State and services of a training run. A method (algorithms/) reads and drives it; it knows no method.

    `open_run` makes one; `pool` lives in the event loop that trains.
    """

    def __init__(self, config: Config, directory: RunDir, pool: EnvPool, progress: Progress) -> None:
        self.config, self.directory, self.pool, self.progress = config, directory, pool, progress
        self.archive = Archive(config.archive) if config.archive.share else None
        credits_authors = config.algorithm.author_credit and method_of(config.algorithm.name).shows_tips
        self.authors = Authors(config) if credits_authors else None
        self.embedder = make_embedder = cache(partial(embedder_of, config))  # one model for novelty and memory
        novelty_seed = derive_seed(config.run.seed, "novelty")
        self.novelty = Novelty(config.algorithm, config.memory, novelty_seed, make=make_embedder)
        self.tasks = tasks_of(config, config.train.split)
        torch.manual_seed(derive_seed(config.run.seed, "weights"))  # adapters start at random
        self.policy = model_policy(config)
        reference = load_model(config.model)[0] if config.holds and not config.model.lora.enabled else None
        self.learner = Learner(
            self.policy.model,
            config.optim,
            config.loss,
            temperature=config.rollout.temperature,
            reference=reference,
            dump_dir=directory.path / "dumps",
        )
        self._start = model_policy(config, reference) if reference and config.algorithm.author == "start" else None
        rehearsed = rehearsal_path(config, directory.path)
        self.rehearsal = Rehearsal(config, rehearsed, self.policy.format) if rehearsed else None
        uses_memory = method_of(config.algorithm.name).memory
        self.memory = (
            open_memory(directory.memory_path, config.memory, embedder=make_embedder()) if uses_memory else None
        )
        self.shown = None if self.memory is None else shown(self.memory, config.algorithm.show_tips)  # to prompts
        self.count = Counters()
        self.stop_requested = False
        self.saved: Path | None = None  # the newest checkpoint of this run
        self._iteration_started = time.monotonic()
        self._timings: dict[str, float] = {}
        self._metrics: dict[str, float] = {}
        self._errors: list[Trajectory] = []
        self._left_out: list[Trajectory] = []  # ended well, but too few others of their group did
        self._empty = 0  # iterations in a row without any episode

    def count_before(self, spent: Mapping[str, float]) -> None:
        """Count what was spent on this run before its first iteration.

        Raises:
            ConfigError: nothing is left of a limit of the run.
        """
        for name, value in spent.items():
            setattr(self.count, name, getattr(self.count, name) + value)
        refuse_all_spent(self.config.train, spent)

    # -- what a method's loop reads

    @property
    def finished(self) -> bool:
        """Whether the last iteration has been trained, or somebody asked to stop."""
        return self.stop_requested or self._share >= 1.0

    @property
    def _share(self) -> float:
        return self.config.train.share(asdict(self.count))

    @property
    def lr_scale(self) -> float:
        """1, then linearly down to 0 over the last `optim.lr_decay` of the run, by whichever limit is nearer."""
        decay = self.config.optim.lr_decay
        return min(1.0, (1.0 - self._share) / decay) if decay else 1.0

    def seed(self, *purpose: object) -> int:
        """A seed for one purpose in this iteration; the same at every start."""
        return derive_seed(self.config.run.seed, self.count.iteration, *purpose)

    def rng(self, *purpose: object) -> random.Random:
        """A generator for one purpose in this iteration."""
        return random.Random(self.seed(*purpose))

    def next_tasks(self) -> list[Task]:
        """The B tasks of this iteration."""
        return batch_of(self.tasks, self.config.rollout.num_tasks, self.config.run.seed, self.count.iteration)

    async def rollout(
        self,
        tasks: Sequence[Task],
        modes: Sequence[Sequence[Mode]] | None = None,
        *,
        memory_of: MemoryOf | None = None,
        purpose: str = "rollout",
    ) -> list[TrajectoryGroup]:
        """Play every member of every group; failed groups are dropped, so the list may be shorter than `tasks`.

        With `algorithm.dynamic_sampling`, groups of equal returns give way to groups of further tasks: what they took
        is counted and logged, but they are not trained on.

        Args:
            tasks: B tasks.
            modes: a row for each task, a mode for each member; None plays all plain.
            memory_of: gives each member a memory of its own, as for `run_groups`; None: all read that of the run.
            purpose: a name that no other call in an iteration has, since seeds follow from it.
        """
        plain: list[Mode] = ["plain"] * self.config.rollout.group_size
        rows = modes or [plain] * len(tasks)
        ended: list[Trajectory] = []
        played = [task.id for task in tasks]

        async def play_further(number: int, num: int) -> list[TrajectoryGroup]:
            further = further_tasks(self.tasks, played, num, self.rng(f"further-{number}"))
            played.extend(task.id for task in further)
            return await self._play(further, rows[:num], f"{purpose}-{number}", ended, memory_of)

        with self._timed("rollout"):
            groups = await self._play(tasks, rows, purpose, ended, memory_of)
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
        self,
        tasks: Sequence[Task],
        modes: Sequence[Sequence[Mode]],
        purpose: str,
        ended: list[Trajectory],
        memory_of: MemoryOf | None,
    ) -> list[TrajectoryGroup]:
        archive, pool = self.archive, self.pool
        if archive is not None:
            tasks, modes = archive.plan(tasks, modes, self.rng(f"archive-{purpose}"))
        groups = await run_groups(
            self.policy,
            archive.pool(pool) if archive else pool,
            tasks,
            modes,
            self.shown,
            self.config,
            seed=self.seed(purpose),
            progress=ended.append,
            on_error=self._errors.append,
            memory_of=memory_of,
        )
        return archive.regroup(groups) if archive else groups

    async def write_tips(self, groups: Sequence[TrajectoryGroup], purpose: str = "tips") -> list[WrittenTip]:
        """Have the policy write about every episode; the memory of the run, if it has one, gets them in task order.

        None is written about an episode that returned to a kept state: it would tell only the last part of the way.
        """
        written: list[WrittenTip] = []
        with self._timed("write_tips"), self.author() as author:
            tips, num_tokens = await write_tips(
                author,
                self._from_start(groups),
                self.config,
                seed=self.seed(purpose),
                step=self.count.iteration,
                on_tip=written.append,
            )
        if self.memory is not None:
            with self._timed("store_tips"):
                self.memory.add(tips)
        self.count.tokens_generated += num_tokens
        self.add_metrics("tips", tip_metrics(written))
        return written

    def author(self) -> contextlib.AbstractContextManager[HFPolicy]:
        """Who writes the tips, by `algorithm.author`: a model of its own, or the policy with its adapters set back."""
        if self.config.algorithm.author == "policy" or self._start is not None:
            return contextlib.nullcontext(self._start or self.policy)
        return set_back(self.policy, self.learner)

    def held(self, written: Sequence[WrittenTip], groups: Sequence[TrajectoryGroup]) -> list[Sample]:
        """The rows that keep what the model could from the start: writing tips, and acting on them."""
        tips = [each.completion for each in written]
        return anchor_rows(tips, groups, self.config.algorithm, self.config.optim.rows, self.seed("anchors"))

    def author_rows(self, written: Sequence[WrittenTip], groups: Sequence[TrajectoryGroup]) -> list[Sample]:
        """Rows that credit the authors of the tips that were read; none without `algorithm.author_credit`."""
        if self.authors is None:
            return []
        with self._timed("author_credit"):
            credit = credit_of(groups, self.policy, self.learner, self.config)
        rows = self.authors.rows(credit, self.count.iteration)
        self.authors.keep(written, self.count.iteration)
        self.add_metrics("authors", author_metrics(credit, rows))
        return rows

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
        """One pass of the learner over the batch and what is rehearsed; the engine's caches are void afterwards."""
        with self._timed("update"):
            seed = self.seed("update")
            if self.rehearsal is not None:
                samples = [*samples, *self.rehearsal.draw(self.rng("rehearsal"))]
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
        if self.config.train.eval_notes_every and count.iteration % self.config.train.eval_notes_every == 0:
            with self._timed("watch"):
                self._metrics |= await watch(self.policy, self.pool, self.config, self.embedder(), self.author)
        count.seconds += time.monotonic() - self._iteration_started
        self._iteration_started = time.monotonic()
        modes = "+".join(sorted({t.mode for t in trajectories}))
        line = {"iteration": iteration, "mode": modes, **count.spent, **self._metrics}
        self.directory.append_metrics(line | {f"seconds/{name}": took for name, took in self._timings.items()})
        self.progress.update(line)
        self._timings, self._metrics, self._errors, self._left_out = {}, {}, [], []
        best = count.best_iteration == count.iteration
        if best or count.iteration % self.config.train.save_every == 0 or self.finished:
            save(self)

    async def validate(self) -> dict[str, float]:
        """Act on held-out variations of the training families, without memory, and remember the best."""
        with self._timed("validate"):
            tasks = validation_of(self.config)
            episodes = await play_panel(self.policy, self.pool, tasks, self.config, seed=self.config.run.seed)
        success = sum(t.success for t in episodes) / max(1, len(episodes))
        value = sum(t.episode_return for t in episodes) / max(1, len(episodes))
        score = success if self.config.eval.metric == "success" else value
        if self.count.best_validation is None or score > self.count.best_validation:
            self.count.best_validation, self.count.best_iteration = score, self.count.iteration
        return {"validation/success": success, "validation/return": value}

    def close(self) -> None:
        """Close what must be closed; the pool and the lock belong to their opener."""
        if self.memory is not None:
            self.memory.close()

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Add the seconds of a `with` block to the timings of this iteration."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._timings[name] = self._timings.get(name, 0.0) + time.monotonic() - started

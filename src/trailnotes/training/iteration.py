"""One iteration of a training run: what a method asks for, in the order in which it asks.

All randomness is drawn from (seed, iteration, purpose), never from a generator that lives on; so a run that is
resumed at an iteration continues exactly as it would have.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

from trailnotes.credit.episodes import compute_valid_share, score_group
from trailnotes.envs.tasks import select_batch
from trailnotes.errors import RunError
from trailnotes.learner.samples import build_anchor_samples, build_samples
from trailnotes.memory.base import TipEffectMemory, VersionedMemory
from trailnotes.memory.tip_stats import estimate_reliance, estimate_tip_effects
from trailnotes.rollout import compute_rollout_metrics, compute_tip_metrics, run_groups, write_tips
from trailnotes.rollout.archive import select_from_start
from trailnotes.rollout.dynamic import replace_equal_groups, sample_further_tasks
from trailnotes.seeds import derive_seed
from trailnotes.training.authors import compute_author_credit, compute_author_metrics
from trailnotes.training.periodic_eval import evaluate_adaptation
from trailnotes.training.saving import save_checkpoint
from trailnotes.training.staleness import correct_staleness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from trailnotes.config.model_schema import EngineConfig
    from trailnotes.config.schema import Config
    from trailnotes.credit import Scores
    from trailnotes.learner.learner import Learner
    from trailnotes.learner.sharded import ShardedLearner
    from trailnotes.memory import Embedder, Memory
    from trailnotes.policies.base import TrainedPolicy
    from trailnotes.rollout import SelectMemory, WrittenTip
    from trailnotes.training.training import TrainingRun
    from trailnotes.types import Mode, Sample, Task, Tip, Trajectory, TrajectoryGroup

MAX_EMPTY_ITERATIONS = 3  # without any episode, after which the environment counts as broken


class Iteration:
    """One iteration. A method (algorithms/) is a coroutine that takes one and carries it to its end; it knows none.

    What comes before `learning` may be played while earlier iterations are still learned from (`rollout.ahead`);
    everything inside `learning` happens in order, iteration by iteration.

    Args:
        run: what lives longer than an iteration.
        number: of the iteration, from 0.
        before: the iteration that must end before this one is learned from, where it may not have.
    """

    def __init__(self, run: TrainingRun, number: int, before: Iteration | None = None) -> None:
        self.run, self.number, self.before = run, number, before
        self.played, self.ended = asyncio.Event(), asyncio.Event()
        self.is_last = False  # known when it ends: none is learned from after it
        self._tips: list[Tip] = []  # written, and not stored yet
        self._timings: dict[str, float] = {}
        self._metrics: dict[str, float] = {}
        self._errors: list[Trajectory] = []
        self._left_out: list[Trajectory] = []  # ended well, but too few others of their group did
        self._tokens_written = 0
        self._version = 0  # of the weights that play
        self._learning = False
        self._prompt_memory = run.prompt_memory

    def begin(self) -> None:
        """It plays from here on, with the weights and the tips that there are now."""
        self._version = self.run.policy.version
        if isinstance(self.run.prompt_memory, VersionedMemory):
            self._prompt_memory = self.run.prompt_memory.pin_version()
        self._metrics |= self.run.pop_sync_metrics()
        self.policy.report()  # what was played before is no part of it

    # -- what a method reads

    @property
    def config(self) -> Config:
        """Settings of the run."""
        return self.run.config

    @property
    def policy(self) -> TrainedPolicy:
        """Plays."""
        return self.run.policy

    @property
    def learner(self) -> Learner | ShardedLearner:
        """Learns."""
        return self.run.learner

    @property
    def prompt_memory(self) -> Memory | None:
        """The memory as prompts show it; None for a method without one."""
        return self._prompt_memory

    def embedder(self) -> Embedder:
        """One model for novelty and memory."""
        return self.run.embedder()

    def seed(self, *purpose: object) -> int:
        """A seed for one purpose in this iteration; the same at every start."""
        return derive_seed(self.config.run.seed, self.number, *purpose)

    def rng(self, *purpose: object) -> random.Random:
        """A generator for one purpose in this iteration."""
        return random.Random(self.seed(*purpose))

    def tasks(self) -> list[Task]:
        """The B tasks of this iteration."""
        return select_batch(self.run.tasks, self.config.rollout.num_tasks, self.config.run.seed, self.number)

    # -- playing

    async def rollout(
        self,
        tasks: Sequence[Task],
        modes: Sequence[Sequence[Mode]] | None = None,
        *,
        memory_of: SelectMemory | None = None,
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
            further = sample_further_tasks(self.run.tasks, played, num, self.rng(f"further-{number}"))
            played.extend(task.id for task in further)
            return await self._play_groups(further, rows[:num], f"{purpose}-{number}", ended, memory_of)

        with self._time_section("rollout"):
            groups = await self._play_groups(tasks, rows, purpose, ended, memory_of)
            if rounds := self.config.algorithm.dynamic_sampling:
                groups, replaced = await replace_equal_groups(groups, rounds, play_further)
                success = sum(t.success for t in ended) / max(1, len(ended))
                self.add_metrics("dynamic", {"groups_replaced": float(replaced), "success": success})
        kept = {id(trajectory) for group in groups for trajectory in group.trajectories}
        self._left_out += sorted((t for t in ended if id(t) not in kept), key=lambda t: (t.task.id, t.member))
        self.run.empty = 0 if groups else self.run.empty + 1
        if self.run.empty == MAX_EMPTY_ITERATIONS:
            raise RunError(
                f"no episode could be played in {self.run.empty} iterations; the last error was: "
                f"{self._errors[-1].error}"
            )
        return groups

    async def _play_groups(
        self,
        tasks: Sequence[Task],
        modes: Sequence[Sequence[Mode]],
        purpose: str,
        ended: list[Trajectory],
        memory_of: SelectMemory | None,
    ) -> list[TrajectoryGroup]:
        archive, pool = self.run.archive, self.run.pool
        if archive is not None:
            tasks, modes = archive.plan(tasks, modes, self.rng(f"archive-{purpose}"))
        groups = await run_groups(
            self.policy,
            archive.wrap_pool(pool) if archive else pool,
            tasks,
            modes,
            self.prompt_memory,
            self.config,
            seed=self.seed(purpose),
            progress=ended.append,
            on_error=self._errors.append,
            memory_of=memory_of,
        )
        return archive.regroup(groups) if archive else groups

    async def write_tips(self, groups: Sequence[TrajectoryGroup], purpose: str = "tips") -> list[WrittenTip]:
        """Have the policy write about every episode; the memory of the run gets what it wrote when learning begins.

        None is written about an episode that returned to a kept state: it would tell only the last part of the way.
        """
        written: list[WrittenTip] = []
        with self._time_section("write_tips"):
            async with self.run.use_author() as author:
                tips, num_tokens = await write_tips(
                    author,
                    self._select_from_start(groups),
                    self.config,
                    seed=self.seed(purpose),
                    step=self.number,
                    on_tip=written.append,
                )
        self._tips += tips
        self._tokens_written += num_tokens
        self.add_metrics("tips", compute_tip_metrics(written))
        return written

    # -- learning

    @contextlib.asynccontextmanager
    async def learning(self) -> AsyncIterator[None]:
        """Inside the block iterations come one after the other: all that a run remembers changes here."""
        self.add_metrics("engine", self.policy.report())
        await self.policy.sleep()
        self.run.release_policy()
        self.played.set()
        if self.before is not None:
            await self.before.ended.wait()
            if self.before.is_last:
                await asyncio.Event().wait()  # until it is cancelled: nothing of it may be in the run's last state
        self.run.count.tokens_generated += self._tokens_written  # the rate of the update looks at what was spent
        if self.run.memory is not None and self._tips:
            with self._time_section("store_tips"):
                self.run.memory.add(self._tips)
        self._learning = True
        yield

    def samples(
        self, groups: Sequence[TrajectoryGroup], advantages: Sequence[Sequence[ArrayLike] | NDArray[np.float64]]
    ) -> list[Sample]:
        """The training rows of all trajectories, as `build_samples` makes them.

        Where they were played with older weights than those of now, tokens are weighed by what that changes.
        """
        samples = build_samples(groups, advantages, rows=self.config.optim.rows)
        staleness = self.run.version - self._version
        if self.config.rollout.ahead:
            self.add_metrics("stale", {"versions": float(staleness)})
        if not staleness:
            return samples
        most = self.config.rollout.max_staleness_weight
        with self._time_section("staleness"):
            samples, found = correct_staleness(samples, groups, self.learner, rows=self.config.optim.rows, most=most)
        self.add_metrics("stale", found)
        return samples

    def anchor_samples(self, written: Sequence[WrittenTip], groups: Sequence[TrajectoryGroup]) -> list[Sample]:
        """The rows that keep what the model could from the start: writing tips, and acting on them."""
        tips = [each.completion for each in written]
        return build_anchor_samples(tips, groups, self.config.algorithm, self.config.optim.rows, self.seed("anchors"))

    def author_samples(self, written: Sequence[WrittenTip], groups: Sequence[TrajectoryGroup]) -> list[Sample]:
        """Rows that credit the authors of the tips that were read; none without `algorithm.author_credit`."""
        if self.run.authors is None:
            return []
        with self._time_section("author_credit"):
            credit = compute_author_credit(groups, self.policy, self.learner, self.config)
        rows = self.run.authors.build_rows(credit, self.number)
        self.run.authors.remember(written, self.number)
        self.add_metrics("authors", compute_author_metrics(credit, rows))
        return rows

    def _select_from_start(self, groups: Sequence[TrajectoryGroup]) -> Sequence[TrajectoryGroup]:
        """Those of episodes that began as the game does, and did not return to a kept state."""
        return groups if self.run.archive is None else select_from_start(groups)

    def measure_tips(
        self, groups: Sequence[TrajectoryGroup], off_policy: Sequence[Sample], tip_free: Sequence[Sequence[float]]
    ) -> None:
        """Tell what tips still change, and the memory of each of its own; arguments as of `estimate_tip_effects`."""
        self.add_metrics("tips", {"reliance": estimate_reliance(off_policy, tip_free)})
        if isinstance(self.run.prompt_memory, TipEffectMemory):
            leads = estimate_tip_effects(groups, off_policy, tip_free)
            self.run.prompt_memory.record_effects(leads)
            mean = sum(lead.nats for lead in leads) / max(1, len(leads))
            self.add_metrics("tips", {"lead": mean, "measured": float(len(leads))})

    def add_novelty(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """The groups with `reward_intrinsic` of every step filled in, by `algorithm.intrinsic`."""
        rated = self.run.novelty.rate(groups)
        bonuses = [step.reward_intrinsic for group in rated for t in group.trajectories for step in t.steps]
        if self.run.novelty.kind != "none" and bonuses:
            self.add_metrics("novelty", {"bonus": sum(bonuses) / len(bonuses)})
        return rated

    def scores(self, groups: Sequence[TrajectoryGroup]) -> list[Scores]:
        """What the episodes of each group earned, in the numbers that credit is made of."""
        self.add_metrics("credit", {"valid_actions": compute_valid_share(groups, self.config.algorithm.invalid)})
        return [score_group(group, self.config.algorithm) for group in groups]

    def add_metrics(self, section: str, metrics: Mapping[str, float]) -> None:
        """Metrics of this iteration, logged as `section/name` when it ends."""
        self._metrics |= {f"{section}/{name}": value for name, value in metrics.items()}

    async def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One pass of the learner over the batch and what is rehearsed; the engine gets the weights afterwards."""
        if not self._learning:
            raise RunError("a method updates inside `async with iteration.learning():` alone: put the call there")
        with self._time_section("update"):
            if self.run.rehearsal is not None:
                samples = [*samples, *self.run.rehearsal.sample_rows(self.rng("rehearsal"))]
            metrics = await self.run.learn(samples, self.seed("update"))
        names = "difference", "ratio"
        fresh = {name: metrics.pop(name) for name in names if name in metrics}
        if self.run.version == self._version + 1:  # else the numbers of then are the learner's own, see `staleness`
            self.add_metrics("engine", fresh)
            _validate_engine_match(fresh.get("difference", 0.0), self.config.engine)
        return metrics

    async def end(self, groups: Sequence[TrajectoryGroup], metrics: Mapping[str, float]) -> None:
        """Count, log, validate and save; after this the iteration has happened."""
        run, count = self.run, self.run.count
        trajectories = [t for group in groups for t in group.trajectories]
        played = [*trajectories, *self._left_out, *self._errors]  # what is not trained on has been paid for as well
        count.env_steps += sum(len(t.steps) for t in played)
        count.episodes += len(trajectories)
        count.tokens_generated += sum(t.num_tokens for t in played)
        count.tokens_trained += int(metrics.get("tokens_trained", 0))
        count.iteration += 1
        run.directory.append_trajectories(self.number, played)
        self.add_metrics("rollout", compute_rollout_metrics(self._select_from_start(groups) or groups, self._errors))
        if run.archive is not None:
            count.env_steps += run.archive.replayed_steps
            self.add_metrics("archive", run.archive.update(groups))
        self.add_metrics("update", metrics)
        if run.memory is not None:
            self.add_metrics("memory", run.memory.stats())
        await self._periodic_eval(count.iteration)
        count.seconds += run.pop_iteration_seconds()
        modes = "+".join(sorted({t.mode for t in trajectories}))
        line = {"iteration": self.number, "mode": modes, **count.usage, **self._metrics}
        run.directory.append_metrics(line | {f"seconds/{name}": took for name, took in self._timings.items()})
        run.progress.update(line)
        best = count.best_iteration == count.iteration
        if best or count.iteration % self.config.train.save_every == 0 or run.is_finished:
            save_checkpoint(run)
        self.is_last = run.is_finished
        self.ended.set()

    async def _periodic_eval(self, done: int) -> None:
        """Validate and watch, where it is time to, with the weights as they are now."""
        train = self.config.train
        if not any(every and done % every == 0 for every in (train.eval_every, train.eval_notes_every)):
            return
        async with self.run.use_policy() as policy:
            if train.eval_every and done % train.eval_every == 0:
                with self._time_section("validate"):
                    self._metrics |= await self.run.validate(policy)
            if train.eval_notes_every and done % train.eval_notes_every == 0:
                with self._time_section("watch"):
                    self._metrics |= await evaluate_adaptation(
                        policy, self.run.pool, self.config, self.embedder(), self.run.use_author
                    )

    @contextlib.contextmanager
    def _time_section(self, name: str) -> Iterator[None]:
        """Add the seconds of a `with` block to the timings of this iteration."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._timings[name] = self._timings.get(name, 0.0) + time.monotonic() - started


def _validate_engine_match(difference: float, engine: EngineConfig) -> None:
    """Stop a run whose engine samples from something else than what is trained, before the update is saved."""
    if engine.name == "vllm" and not difference <= engine.tolerance:
        raise RunError(
            f"engine and learner drifted apart: of the tokens that the engine sampled, they say {difference:.3g} nats "
            f"apart on average, and engine.tolerance = {engine.tolerance:g}: the same command begins again at the last "
            'checkpoint; if that does not help, set engine.name = "hf", or raise engine.tolerance (bfloat16 rounds)'
        )

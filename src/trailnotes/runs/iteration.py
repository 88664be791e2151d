"""One iteration of a training run, with its services in the order in which a method calls them.

All randomness is drawn from (seed, iteration, purpose), so that a resumed run continues exactly as it would have,
unless iterations overlap.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trailnotes.config.methods_schema import Empo2Config
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_validation_tasks, select_batch
from trailnotes.errors import NonFiniteError, RunError
from trailnotes.learner.credit.episodes import Scores, compute_valid_share, score_group
from trailnotes.learner.samples import build_anchor_samples, build_observation_samples, build_samples
from trailnotes.reporting.episodes import log_traceback
from trailnotes.reporting.terminal import Activity
from trailnotes.rollout.episode import OnStep
from trailnotes.rollout.groups import (
    GroupRunner,
    OnTrajectory,
    SelectMemory,
    compute_rollout_metrics,
    replace_equal_groups,
    sample_further_tasks,
)
from trailnotes.rollout.tips import WrittenTip, compute_tip_metrics, write_tips
from trailnotes.runs.authors import compute_author_credit, compute_author_metrics
from trailnotes.runs.panels import play_panel
from trailnotes.runs.staleness import MAX_STALENESS_WEIGHT, MISMATCH_CAP, Correction, correct_samples
from trailnotes.runs.tip_effects import estimate_reliance, estimate_tip_effects
from trailnotes.runs.training import TrainingRun, save_checkpoint
from trailnotes.runs.usage import TRAINING_FIELDS
from trailnotes.types import Mode, Sample, Task, Tip, Trajectory, TrajectoryGroup, derive_seed

MAX_NAMED_TASKS = 5  # of a batch that cannot be learned from
MAX_EMPTY_ITERATIONS = 3  # without any group, after which the environment counts as broken


class Iteration:
    """One iteration, which a method (algorithms/), a coroutine, carries to its end.

    With `rollout.max_async_iterations` the part before `learning` runs while the learner works on earlier
    iterations; the block of `learning` begins when the iteration `before` has ended.
    """

    def __init__(self, run: TrainingRun, number: int, before: Iteration | None = None) -> None:
        self.run, self.number, self.before = run, number, before
        self.config, self.policy, self.learner = run.config, run.policy, run.learner
        self.prompt_memory, self.embedder = run.prompt_memory, run.embedder
        self.played, self.ended = asyncio.Event(), asyncio.Event()
        self.is_last = False  # known when it ends: none is learned from after it
        self._tips: list[Tip] = []  # written, and not stored yet
        self._timings: dict[str, float] = {}
        self._metrics: dict[str, float] = {}
        self._errors: list[Trajectory] = []
        self._left_out: list[Trajectory] = []  # ended well, but too few others of their group did
        self._tasks: list[str] = []  # of the trajectories that rows were built from
        self._tokens_written = 0
        self._version = 0  # of the weights that play
        self._tasks_with_tips: frozenset[str] = frozenset()  # before this iteration
        self._learning = False

    async def begin(self) -> None:
        await self.run.weights.acquire()
        self._version = self.run.policy.version
        self._tasks_with_tips = frozenset(self.run.tasks_with_tips)
        self._metrics |= self.run.weights.pop_metrics()
        self.policy.report()  # drops the figures of earlier play

    def seed(self, *purpose: object) -> int:
        return derive_seed(self.config.run.seed, self.number, *purpose)

    def rng(self, *purpose: object) -> random.Random:
        return random.Random(self.seed(*purpose))

    def tasks(self) -> list[Task]:
        return select_batch(self.run.tasks, self.config.rollout.num_tasks, self.config.run.seed, self.number)

    # -- playing

    async def rollout(
        self, tasks: Sequence[Task], modes: Sequence[Sequence[Mode]] | None = None, *,
        memory_of: SelectMemory | None = None, purpose: str = "rollout",
    ) -> list[TrajectoryGroup]:  # fmt: skip
        """Play every member of every group; failed groups are dropped, so the list may be shorter than `tasks`.

        With `algorithm.dynamic_sampling`, groups of equal returns give way to groups of further tasks: their usage is
        counted and logged, but they are not trained on.

        Args:
            tasks: B tasks.
            modes: a row for each task, a mode for each member; None plays all plain.
            memory_of: gives each member a memory of its own, as for `GroupRunner`; None: all read that of the run.
            purpose: a name of this call alone in an iteration, for its seeds.
        """
        run, ids = self.run, [task.id for task in tasks]
        ended: list[Trajectory] = []
        total = len(tasks) * self.config.rollout.group_size
        rows = modes or [["plain"] * self.config.rollout.group_size] * len(tasks)

        async def play_further(number: int, num: int) -> list[TrajectoryGroup]:
            further = sample_further_tasks(run.tasks, ids, num, self.rng(f"further-{number}"))
            ids.extend(task.id for task in further)
            return await self._play(further, rows, f"{purpose}-{number}", memory_of, record, activity.count_step)

        with self._time_section("rollout", total, "episodes") as activity:

            def record(trajectory: Trajectory) -> None:
                ended.append(trajectory)
                activity.end_unit()

            groups = await self._play(tasks, rows, purpose, memory_of, record, activity.count_step)
            if rounds := self.config.algorithm.dynamic_sampling:
                discount = self.config.algorithm.discount
                groups, replaced = await replace_equal_groups(groups, rounds, play_further, discount)
                success = sum(t.success for t in ended) / max(1, len(ended))
                self.add_metrics("dynamic", {"groups_replaced": float(replaced), "success": success})
        kept = {id(trajectory) for group in groups for trajectory in group.trajectories}
        self._left_out += sorted((t for t in ended if id(t) not in kept), key=lambda t: (t.task.id, t.member))
        if not ended:
            run.directory.append_trajectories(self.number, self._errors)
            raise RunError(
                f"no episode of iteration {self.number + 1} could be played; the first one: {self._errors[0].error}"
            )
        run.empty = 0 if groups else run.empty + 1
        if run.empty == MAX_EMPTY_ITERATIONS:
            raise RunError(
                f"no group could be played in {run.empty} iterations; the last error was: {self._errors[-1].error}"
            )
        return groups

    async def _play(
        self, tasks: Sequence[Task], rows: Sequence[Sequence[Mode]], phase: str, memory_of: SelectMemory | None,
        record: OnTrajectory, on_step: OnStep,
    ) -> list[TrajectoryGroup]:  # fmt: skip
        runner = GroupRunner(
            self.policy, self.run.pool, self.prompt_memory, self.config, seed=self.seed(phase),
            progress=record, on_error=self._record_error, on_step=on_step, memory_of=memory_of,
            once=f"{self.number}/{phase}",
        )  # fmt: skip
        return await runner.play(tasks, rows[: len(tasks)])

    def _record_error(self, trajectory: Trajectory) -> None:
        self._errors.append(trajectory)
        log_traceback(trajectory)

    async def write_tips(self, groups: Sequence[TrajectoryGroup], purpose: str = "tips") -> list[WrittenTip]:
        """Have the policy write about every episode; the memory of the run gets what it wrote when learning begins."""
        with self._time_section("write_tips"):
            async with self.run.weights.use_author() as author:
                seed = self.seed(purpose)
                written = await write_tips(author, groups, self.config, seed=seed, step=self.number)
        self._tips += [tip for each in written for tip in each.tips]
        self._metrics |= getattr(author, "metrics", dict)()  # of an endpoint
        self._tokens_written += sum(each.completion.num_tokens for each in written)
        self.add_metrics("tips", compute_tip_metrics(written))
        return written

    # -- learning

    @contextlib.asynccontextmanager
    async def learning(self) -> AsyncIterator[None]:
        """Run the block after the iteration before has ended; all state of a run changes here."""
        self.add_metrics("engine", self.policy.report())
        await self.policy.sleep()
        self.run.weights.release()
        self.played.set()
        if self.before is not None:
            await self.before.ended.wait()
            if self.before.is_last:
                await asyncio.Event().wait()  # until it is cancelled: nothing of it may be in the run's last state
            self.before = None  # or the last iteration would hold all earlier ones
        self.run.count.tokens_generated += self._tokens_written  # the rate of the update looks at what was spent
        if self.run.memory is not None and self._tips:
            with self._time_section("store_tips"):
                self.run.memory.add(self._tips)
            self.run.tasks_with_tips |= {tip.namespace for tip in self._tips}
        self._learning = True
        yield

    def samples(
        self, groups: Sequence[TrajectoryGroup], advantages: Sequence[Sequence[ArrayLike] | NDArray[np.float64]]
    ) -> list[Sample]:
        """Build the rows of all episodes; tokens of older weights are weighed by the ratio of their probabilities."""
        rows, stale = self.config.optim.rows, self.run.weights.version - self._version
        context = self.config.section(Empo2Config).distilled_context
        samples = build_samples(groups, advantages, rows, context)
        self._tasks = [group.task.id for group in groups for _ in group.trajectories]  # by `Sample.trajectory`
        if self.config.rollout.max_async_iterations:
            self.add_metrics("stale", {"versions": float(stale)})
        loss = self.config.loss
        if stale:
            section, correction = "stale", Correction(MAX_STALENESS_WEIGHT)
        elif loss.mismatch != "none" and self.config.has_other_sampler:
            section, correction = "engine", Correction(MISMATCH_CAP, "sequence", loss.mismatch)
        else:
            return samples
        with self._time_section("staleness"):
            samples, metrics = correct_samples(samples, groups, self.learner, rows=rows, correction=correction)
        if stale:
            del metrics["difference"]  # of other weights
        else:  # the update sees no difference any more
            _validate_engine_match(metrics["difference"], self.config)
        self.add_metrics(section, metrics)
        return samples

    def anchor_samples(self, written: Sequence[WrittenTip], groups: Sequence[TrajectoryGroup]) -> list[Sample]:
        """Build the rows that preserve the initial ability to write tips and to act on them."""
        tips = [each.completion for each in written]
        return build_anchor_samples(tips, groups, self.config.algorithm, self.config.optim.rows, self.seed("anchors"))

    def author_samples(self, written: Sequence[WrittenTip], groups: Sequence[TrajectoryGroup]) -> list[Sample]:
        """Build the rows that credit the authors of tips; none without `empo2.author_credit`."""
        if self.run.authors is None:
            return []
        with self._time_section("author_credit"):
            credit = compute_author_credit(groups, self.policy, self.learner, self.config)
        rows = self.run.authors.build_rows(credit, self.number)
        self.run.authors.remember(written, self.number)
        self.add_metrics("authors", compute_author_metrics(credit, rows))
        return rows

    def measure_tips(
        self, groups: Sequence[TrajectoryGroup], off_policy: Sequence[Sample], tip_free: Sequence[Sequence[float]]
    ) -> None:
        self.add_metrics("tips", {"reliance": estimate_reliance(off_policy, tip_free)})
        if record_effects := getattr(self.run.prompt_memory, "record_effects", None):
            effects = estimate_tip_effects(groups, off_policy, tip_free)
            record_effects(effects)
            mean = sum(effect.nats for effect in effects) / max(1, len(effects))
            self.add_metrics("tips", {"logprob_gain": mean, "measured": float(len(effects))})

    def add_novelty(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """Return the groups with the `reward_intrinsic` of each step, by `algorithm.intrinsic`."""
        return self.run.novelty.rate(groups)

    def scores(self, groups: Sequence[TrajectoryGroup]) -> list[Scores]:
        """Score the episodes of each group in the numbers that credit assignment takes."""
        self.add_metrics("credit", {"valid_actions": compute_valid_share(groups)})
        return [score_group(group, self.config.algorithm) for group in groups]

    def add_metrics(self, section: str, metrics: Mapping[str, float]) -> None:
        """Add metrics that the iteration logs as `section/name` when it ends."""
        self._metrics |= {f"{section}/{name}": value for name, value in metrics.items()}

    async def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Update the learner once on the samples and on rehearsed ones; return its metrics."""
        if not self._learning:
            raise RunError("a method updates inside `async with iteration.learning():` alone: put the call there")
        with self._time_section("update", unit="mini-batches") as activity:
            if self.config.loss.observations:
                samples = [*samples, *build_observation_samples(samples, self.config.loss.observations)]
            if self.run.rehearsal is not None:
                samples = [*samples, *self.run.rehearsal.sample_rows(self.rng("rehearsal"))]
            try:
                metrics = await self.run.learn(samples, self.seed("update"), activity)
            except NonFiniteError as error:
                tasks = dict.fromkeys(self._tasks[i] for i in error.trajectories if i < len(self._tasks))
                raise NonFiniteError(f"{error}; its tasks: {', '.join(islice(tasks, MAX_NAMED_TASKS))}") from error
        names = "difference", "ratio"
        fresh = {name: metrics.pop(name) for name in names if name in metrics}
        # Corrected rows hold the learner's own log-probabilities, see `staleness`.
        if self.run.weights.version == self._version + 1 and "engine/difference" not in self._metrics:
            self.add_metrics("engine", fresh)
            _validate_engine_match(fresh.get("difference", 0.0), self.config)
        return metrics

    async def end(self, groups: Sequence[TrajectoryGroup], metrics: Mapping[str, float]) -> None:
        """Count, log, validate and save the iteration."""
        run, count = self.run, self.run.count
        trajectories = [t for group in groups for t in group.trajectories]
        played = [*trajectories, *self._left_out, *self._errors]  # all have been paid for
        count.env_steps += sum(len(t.steps) for t in played)
        count.episodes += len(trajectories)
        count.tokens_generated += sum(t.num_tokens for t in played)
        count.tokens_trained += int(metrics.get("tokens_trained", 0))
        count.iteration += 1
        run.directory.append_trajectories(self.number, played)
        self.add_metrics("rollout", compute_rollout_metrics(groups, self._errors))
        bonuses = [step.reward_intrinsic for trajectory in trajectories for step in trajectory.steps]
        if run.novelty.kind != "none" and bonuses:
            self.add_metrics("novelty", {"bonus": sum(bonuses) / len(bonuses)})
        self.add_metrics("update", metrics)
        if run.memory is not None:
            self.add_metrics("memory", run.memory.stats())
        if self.config.train.eval_every and count.iteration % self.config.train.eval_every == 0:
            await self._validate()
        if run.ledger is not None:
            self.add_metrics("tinker", run.ledger.end_iteration())
        now = time.monotonic()
        count.seconds += now - run.ended_at
        run.ended_at = now
        usage = {name: value for name, value in asdict(count).items() if name in TRAINING_FIELDS}
        line = {"iteration": self.number, "mode": "+".join(sorted({t.mode for t in trajectories})), **usage}
        line |= self._metrics
        run.directory.append_metrics(line | {f"seconds/{name}": took for name, took in self._timings.items()})
        run.progress.update_metrics(line)
        self._warn_of_unread_tips(trajectories)
        is_best = count.best_iteration == count.iteration
        if is_best or count.iteration % self.config.train.save_every == 0 or run.is_finished:
            save_checkpoint(run)
        self.is_last = run.is_finished
        self.ended.set()

    def _warn_of_unread_tips(self, trajectories: Sequence[Trajectory]) -> None:
        """Warn once if the first episodes that could read tips about their task got none."""
        readers = [t for t in trajectories if t.mode != "plain" and t.task.id in self._tasks_with_tips]
        if self.run.checked_readers or not readers or not self.config.memory.top_k:
            return
        self.run.checked_readers = True
        if not any(step.tips for t in readers for step in t.steps):
            threshold = self.config.memory.threshold
            lower = f"lower memory.threshold = {threshold:g} (`trailnotes memory search` prints similarities), or "
            self.run.progress.note(
                f"warning: the memory has tips about their tasks, and none was displayed in {len(readers)} episodes: "
                f"{lower if threshold > -1 else ''}leave room for tips (rollout.max_context_tokens)"
            )

    async def _validate(self) -> None:
        run, config, count = self.run, self.config, self.run.count
        await run.weights.acquire()
        try:
            tasks = load_validation_tasks(config)
            with self._time_section("validate", len(tasks) * config.eval.num_samples, "episodes") as activity:
                episodes = await play_panel(
                    self.policy, run.pool, tasks, config, seed=config.run.seed, on_error=log_traceback,
                    progress=lambda _: activity.end_unit(), on_step=activity.count_step,
                )  # fmt: skip
        finally:
            run.weights.release()
        failed = len(tasks) * config.eval.num_samples - len(episodes)
        self.add_metrics("validation", {"errors": float(failed)})
        if failed:
            run.progress.note(f"{failed} validation episodes are missing, so this checkpoint cannot be the best one")
        if not episodes:
            return
        success = sum(t.success for t in episodes) / len(episodes)
        value = sum(t.episode_return for t in episodes) / len(episodes)
        self.add_metrics("validation", {"success": success, "return": value})
        score = success if config.eval.metric == "success" else value
        if not failed and (count.best_validation is None or score > count.best_validation):  # of the same games only
            count.best_validation, count.best_iteration = score, count.iteration

    @contextlib.contextmanager
    def _time_section(self, name: str, total: int = 0, unit: str = "") -> Iterator[Activity]:
        started = time.monotonic()
        try:
            with self.run.progress.activity(
                f"iteration {self.number + 1}: {name.replace('_', ' ')}", total, unit
            ) as activity:
                yield activity
        finally:
            self._timings[name] = self._timings.get(name, 0.0) + time.monotonic() - started


def _validate_engine_match(difference: float, config: Config) -> None:
    limit = config.engine.max_logprob_mismatch
    if config.has_other_sampler and not difference <= limit:
        advice = 'run the same command again, or set engine.name = "hf", or raise the limit (bfloat16 rounds)'
        if config.is_hosted:  # the same command would read the same completions
            advice = ("raise it where the server rounds (--allow-change engine.max_logprob_mismatch); where it sampled "
                      "from other weights, delete completions/ of the run, and run the same command again")  # fmt: skip
        raise RunError(
            f"engine and learner differ by {difference:.3g} nats a sampled token, more than "
            f"engine.max_logprob_mismatch = {limit:g}: {advice}"
        )

"""Episodes of one iteration: from states of the archive, and in groups of different returns."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trailnotes.errors import RunError
from trailnotes.rollout import run_groups
from trailnotes.rollout.dynamic import replace_equal_groups, sample_further_tasks

if TYPE_CHECKING:
    from trailnotes.memory import Memory
    from trailnotes.rollout import SelectMemory
    from trailnotes.training.run import TrainingRun
    from trailnotes.types import Mode, Task, Trajectory, TrajectoryGroup

MAX_EMPTY_ITERATIONS = 3  # without any episode, after which the environment counts as broken


class EpisodeCollector:
    """The groups of an iteration's rollouts, and the episodes beside them."""

    def __init__(self, run: TrainingRun, seed: Callable[..., int]) -> None:
        self._run, self._seed = run, seed
        self.errors: list[Trajectory] = []
        self.left_out: list[Trajectory] = []  # ended well, but too few others of their group did

    async def collect(
        self,
        tasks: Sequence[Task],
        modes: Sequence[Sequence[Mode]],
        memory: Memory | None,
        memory_of: SelectMemory | None,
        purpose: str,
    ) -> tuple[list[TrajectoryGroup], dict[str, float]]:
        """Play all members of all groups, and replace groups of equal returns by `algorithm.dynamic_sampling`.

        Args are as for `Iteration.rollout`.

        Returns:
            At most B groups, and the metrics of dynamic sampling.

        Raises:
            RunError: too many iterations in a row had no episode.
        """
        run, played = self._run, [task.id for task in tasks]
        ended: list[Trajectory] = []
        metrics: dict[str, float] = {}

        async def play(own: Sequence[Task], phase: str) -> list[TrajectoryGroup]:
            return await self._play_groups(own, modes[: len(own)], memory, memory_of, phase, ended)

        async def play_further(number: int, num: int) -> list[TrajectoryGroup]:
            further = sample_further_tasks(run.tasks, played, num, random.Random(self._seed(f"further-{number}")))
            played.extend(task.id for task in further)
            return await play(further, f"{purpose}-{number}")

        groups = await play(tasks, purpose)
        if rounds := run.config.algorithm.dynamic_sampling:
            groups, replaced = await replace_equal_groups(groups, rounds, play_further)
            success = sum(t.success for t in ended) / max(1, len(ended))
            metrics = {"groups_replaced": float(replaced), "success": success}
        kept = {id(trajectory) for group in groups for trajectory in group.trajectories}
        self.left_out += sorted((t for t in ended if id(t) not in kept), key=lambda t: (t.task.id, t.member))
        run.empty = 0 if groups else run.empty + 1
        if run.empty == MAX_EMPTY_ITERATIONS:
            raise RunError(
                f"no episode could be played in {run.empty} iterations; the last error was: {self.errors[-1].error}"
            )
        return groups, metrics

    async def _play_groups(
        self,
        tasks: Sequence[Task],
        modes: Sequence[Sequence[Mode]],
        memory: Memory | None,
        memory_of: SelectMemory | None,
        purpose: str,
        ended: list[Trajectory],
    ) -> list[TrajectoryGroup]:
        archive, pool, seed = self._run.archive, self._run.pool, self._seed(purpose)
        if archive is not None:
            tasks, modes = archive.plan(tasks, modes, random.Random(self._seed(f"archive-{purpose}")))
        groups = await run_groups(
            self._run.policy, archive.wrap_pool(pool) if archive else pool, tasks, modes, memory, self._run.config,
            seed=seed, progress=ended.append, on_error=self.errors.append, memory_of=memory_of,
        )  # fmt: skip
        return archive.regroup(groups) if archive else groups

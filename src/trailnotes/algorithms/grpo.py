"""GRPO on multi-step episodes: groups of episodes, advantages relative to the group, one clipped update.

Source: DeepSeekMath (arXiv 2402.03300), section 4.1, with the whole episode as the sampled output and its return as
the reward. See docs/algorithms/grpo.md for every metric and deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.credit import episode_return, group_relative
from trailnotes.samples import build_samples

if TYPE_CHECKING:
    from trailnotes.run import Run
    from trailnotes.types import Mode


async def grpo(run: Run) -> None:
    """Train until `run.finished`."""
    algorithm = run.config.algorithm
    plain: list[Mode] = ["plain"] * run.config.rollout.group_size
    while not run.finished:
        tasks = run.next_tasks()
        groups = await run.rollout(tasks, [plain] * len(tasks))

        groups = run.add_novelty(groups)
        advantages = [
            group_relative([episode_return(t, algorithm.beta) for t in group.trajectories], algorithm.normalize_std)
            for group in groups
        ]
        samples = build_samples(groups, advantages, rows=run.config.optim.rows)
        metrics = run.update(samples)
        await run.end_iteration(groups, metrics)

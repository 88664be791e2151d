"""GRPO on multi-step episodes: groups of episodes, advantages relative to the group, one clipped update.

Source: DeepSeekMath (arXiv 2402.03300), section 4.1, with the whole episode as the sampled output and its return as
the reward. See docs/algorithms/grpo.md for every metric, published variant and deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.credit import group_advantages
from trailnotes.learner.samples import build_samples

if TYPE_CHECKING:
    from trailnotes.runs.training import TrainingRun


async def grpo(run: TrainingRun) -> None:
    """Train until `run.finished`."""
    normalize_std = run.config.algorithm.normalize_std
    while not run.finished:
        groups = await run.rollout(run.next_tasks())
        groups = run.add_novelty(groups)
        advantages = [group_advantages(scores, normalize_std) for scores in run.scores(groups)]
        samples = build_samples(groups, advantages, rows=run.config.optim.rows)
        metrics = run.update(samples)
        await run.end_iteration(groups, metrics)

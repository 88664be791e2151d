"""RLOO on multi-step episodes: the baseline of an episode is the mean return of the others in its group.

Source: "Back to Basics" (Ahmadian et al., arXiv 2402.14740), with the whole episode as the action and PPO's clip around
it. See docs/algorithms/rloo.md for every deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.credit import leave_one_out_advantages
from trailnotes.learner.samples import build_samples

if TYPE_CHECKING:
    from trailnotes.runs.training import TrainingRun


async def rloo(run: TrainingRun) -> None:
    """Train until `run.finished`."""
    while not run.finished:
        groups = await run.rollout(run.next_tasks())
        groups = run.add_novelty(groups)
        advantages = [leave_one_out_advantages(scores) for scores in run.scores(groups)]
        samples = build_samples(groups, advantages, rows=run.config.optim.rows)
        await run.end_iteration(groups, run.update(samples))

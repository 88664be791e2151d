"""RLOO on multi-step episodes: the baseline of an episode is the mean return of the others in its group.

Source: "Back to Basics" (Ahmadian et al., arXiv 2402.14740), with the whole episode as the action and PPO's clip around
it. See docs/algorithms/rloo.md for every deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.config.methods import Method
from trailnotes.learner.credit.episodes import leave_one_out_advantages

if TYPE_CHECKING:
    from trailnotes.runs.iteration import Iteration


async def rloo(iteration: Iteration) -> None:
    groups = await iteration.rollout(iteration.tasks())
    async with iteration.learning():
        groups = iteration.add_novelty(groups)
        advantages = [leave_one_out_advantages(scores) for scores in iteration.scores(groups)]
        metrics = await iteration.update(iteration.samples(groups, advantages))
        await iteration.end(groups, metrics)


METHOD = Method("rloo", "RLOO", rloo, trains=True, colour="#cc79a7")

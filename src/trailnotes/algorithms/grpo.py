"""GRPO on multi-step episodes: groups of episodes, advantages relative to the group, one clipped update.

Source: DeepSeekMath (arXiv 2402.03300), section 4.1, with the whole episode as the sampled output and its return as
the reward. See docs/algorithms/grpo.md for every metric, published variant and deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.config.methods import Method
from trailnotes.learner.credit.episodes import group_advantages

if TYPE_CHECKING:
    from trailnotes.runs.iteration import Iteration


async def grpo(iteration: Iteration) -> None:
    algorithm = iteration.config.algorithm
    groups = await iteration.rollout(iteration.tasks())
    async with iteration.learning():
        groups = iteration.add_novelty(groups)
        advantages = [group_advantages(scores, algorithm) for scores in iteration.scores(groups)]
        metrics = await iteration.update(iteration.samples(groups, advantages))
        await iteration.end(groups, metrics)


METHOD = Method("grpo", "GRPO", grpo, trains=True, colour="#d55e00")

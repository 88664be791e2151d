"""The policy as it is: the panel, once. What every other method is measured against.

Few-shot examples come through `rollout.num_examples`, where the environment brings some. See docs/algorithms/naive.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trailnotes.runs.adaptation import Trials


async def naive(trials: Trials) -> None:
    """Play the panel without any memory."""
    groups = await trials.play("trial-0", trials.tasks, num_samples=trials.config.eval.num_samples)
    trials.log("trial-0", groups)
    trials.report("trial 0", groups, memory=False, trial=0)
    trials.examine(groups, memory=False)

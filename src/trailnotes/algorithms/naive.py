"""The unchanged policy, once on the panel: the baseline of every other method.

Few-shot examples come through `rollout.num_examples`, where the environment brings some. See docs/algorithms/naive.md.
"""

from __future__ import annotations

from trailnotes.config.methods import Method
from trailnotes.runs.adaptation import AdaptationRun


async def naive(run: AdaptationRun) -> None:
    groups = await run.play("trial-0", run.tasks, num_samples=run.config.eval.num_samples)
    run.log("trial-0", groups)
    run.report("trial 0", groups, memory=False, trial=0)
    run.write_panel(groups, memory=False)


METHOD = Method("naive", "naive", naive, trains=False, colour="#6f6f6f")

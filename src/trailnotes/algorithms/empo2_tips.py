"""EMPO2's memory without its training: adaptation to new games by notes alone.

Source: "Exploratory Memory-Augmented LLM Agent via Hybrid On- and Off-Policy Optimization" (arXiv 2602.23008), section
6, out-of-distribution adaptation. See docs/algorithms/empo2-tips.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.memory import open_memory
from trailnotes.rollout import tip_metrics, tip_requests, written_about, written_tips

if TYPE_CHECKING:
    from trailnotes.runs.adaptation import Trials


async def empo2_tips(trials: Trials) -> None:
    """Trial 0 without notes, then `eval.trials` trials with those of the earlier ones; every episode is written of."""
    config, policy = trials.config, trials.policy
    with open_memory(trials.directory.memory_path, config.memory) as memory:
        for trial in range(config.eval.trials + 1):
            phase, shown = f"trial-{trial}", memory if trial else None
            groups = await trials.play(phase, trials.tasks, memory=shown, num_samples=config.eval.num_samples)

            episodes = written_about([trajectory for group in groups for trajectory in group.trajectories])
            requests = tip_requests(policy, episodes, config, seed=trials.seed(phase, "notes"))
            written = written_tips(policy, episodes, await trials.write(phase, requests), config, step=trial)
            memory.add([tip for each in written for tip in each.tips], once=phase)

            trials.log(phase, groups, tips=tip_metrics(written), memory=memory.stats())
            trials.report(f"trial {trial}", groups, memory=trial > 0, trial=trial)
        trials.examine(groups, memory=config.eval.trials > 0)

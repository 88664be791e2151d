"""EMPO2's memory without its training: adaptation to new games by tips alone.

Source: "Exploratory Memory-Augmented LLM Agent via Hybrid On- and Off-Policy Optimization" (arXiv 2602.23008), section
6, out-of-distribution adaptation. See docs/algorithms/empo2-tips.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.memory import embedder_of, open_memory
from trailnotes.memory.controls import shown
from trailnotes.rollout import tip_metrics, tip_requests, written_about, written_tips

if TYPE_CHECKING:
    from trailnotes.runs.adaptation import AdaptationRun


async def empo2_tips(run: AdaptationRun) -> None:
    """Trial 0 without tips, then `eval.trials` trials with those of earlier trials; every episode gets a tip."""
    config, cast = run.config, run.cast
    with open_memory(run.directory.memory_path, config.memory, embedder=embedder_of(config)) as memory:
        for trial in range(config.eval.trials + 1):
            phase, tips = f"trial-{trial}", shown(memory, config.eval.show_tips) if trial else None
            player = cast.reader if trial else cast.explorer
            groups = await run.play(phase, run.tasks, memory=tips, num_samples=config.eval.num_samples, policy=player)

            episodes = written_about([trajectory for group in groups for trajectory in group.trajectories])
            requests = tip_requests(cast.author, episodes, config, seed=run.seed(phase, "notes"))
            completions = await run.write(phase, requests, policy=cast.author)
            written = written_tips(cast.author, episodes, completions, config, step=trial)
            memory.add([tip for each in written for tip in each.tips], once=phase)

            run.log(phase, groups, tips=tip_metrics(written), memory=memory.stats())
            run.report(f"trial {trial}", groups, memory=trial > 0, trial=trial)
        run.examine(groups, memory=config.eval.trials > 0)

"""EMPO2: GRPO with a memory of self-written tips, two rollout modes and two update modes.

Source: "Exploratory Memory-Augmented LLM Agent via Hybrid On- and Off-Policy Optimization" (arXiv 2602.23008).
`mode_unit = "trajectory"` (mixed groups) is our step past the paper. See docs/algorithms/empo2.md for every metric,
each settled choice, and where this departs from the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.credit import group_advantages
from trailnotes.learner.samples import build_samples, with_behavior

if TYPE_CHECKING:
    import random

    from trailnotes.config.methods_schema import AlgorithmConfig
    from trailnotes.runs.training import TrainingRun
    from trailnotes.types import Mode


def draw_modes(algorithm: AlgorithmConfig, num_tasks: int, group_size: int, rng: random.Random) -> list[list[Mode]]:
    """Mode of each member of each group, as [task][member].

    `mode_unit = "iteration"`: one draw for the whole batch (the paper). `"trajectory"`: mixed groups, in which
    round(p N) members act with tips when the draw is stratified, or each member draws for itself.
    """

    def tips_mode() -> Mode:
        return "off_policy" if rng.random() < algorithm.q_off_policy else "on_policy_tips"

    def member() -> Mode:
        return tips_mode() if rng.random() < algorithm.p_memory else "plain"

    if algorithm.mode_unit == "iteration":
        mode = member()
        return [[mode] * group_size for _ in range(num_tasks)]
    if algorithm.draw == "independent":
        return [[member() for _ in range(group_size)] for _ in range(num_tasks)]
    with_tips = round(algorithm.p_memory * group_size)
    return [[tips_mode() if i < with_tips else "plain" for i in range(group_size)] for _ in range(num_tasks)]


async def empo2(run: TrainingRun) -> None:
    """Train until `run.finished`."""
    algorithm = run.config.algorithm
    while not run.finished:
        tasks = run.next_tasks()
        modes = draw_modes(algorithm, len(tasks), run.config.rollout.group_size, run.rng("modes"))
        groups = await run.rollout(tasks, modes)
        written = await run.write_tips(groups)  # generated together, added in task order

        groups = run.add_novelty(groups)
        advantages = [group_advantages(scores, algorithm.normalize_std) for scores in run.scores(groups)]

        # A trajectory's mode says whether its row keeps the tips; the denominator stays that of the prompt acted on...
        samples = build_samples(groups, advantages, rows=run.config.optim.rows)
        if algorithm.old_logprobs == "tip_free":  # ...unless the old policy is asked without tips too (4.2)
            off_policy = [sample for sample in samples if sample.off_policy]
            tip_free = iter(with_behavior(off_policy, run.learner.logprobs(off_policy)))
            samples = [next(tip_free) if sample.off_policy else sample for sample in samples]
        metrics = run.update([*samples, *run.held(written, groups), *run.author_rows(written, groups)])
        await run.end_iteration(groups, metrics)

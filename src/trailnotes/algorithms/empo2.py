"""EMPO2: GRPO with a memory of self-written tips, two rollout modes and two update modes.

Source: "Exploratory Memory-Augmented LLM Agent via Hybrid On- and Off-Policy Optimization" (arXiv 2602.23008).
`mode_unit = "trajectory"` (mixed groups) goes beyond the paper. See docs/algorithms/empo2.md for every metric,
each settled choice, and where this departs from the paper.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from trailnotes.config.methods import Method
from trailnotes.config.methods_schema import Empo2Config
from trailnotes.learner.credit.episodes import group_advantages
from trailnotes.learner.samples import replace_behavior_logprobs
from trailnotes.types import Mode

if TYPE_CHECKING:
    from trailnotes.runs.iteration import Iteration


def draw_modes(settings: Empo2Config, num_tasks: int, group_size: int, rng: random.Random) -> list[list[Mode]]:
    """Draw the mode of each member of each group, as [task][member].

    `mode_unit = "iteration"`: one draw for the whole batch (the paper). `"trajectory"`: mixed groups, in which
    round(p N) members act with tips, each in a mode of its own.
    """

    def tips_mode() -> Mode:
        return "off_policy" if rng.random() < settings.q_off_policy else "on_policy_tips"

    if settings.mode_unit == "iteration":
        mode = tips_mode() if rng.random() < settings.p_memory else "plain"
        return [[mode] * group_size for _ in range(num_tasks)]
    with_tips = round(settings.p_memory * group_size)
    return [[tips_mode() if i < with_tips else "plain" for i in range(group_size)] for _ in range(num_tasks)]


async def empo2(iteration: Iteration) -> None:
    algorithm, settings = iteration.config.algorithm, iteration.config.section(Empo2Config)
    tasks = iteration.tasks()
    modes = draw_modes(settings, len(tasks), iteration.config.rollout.group_size, iteration.rng("modes"))
    groups = await iteration.rollout(tasks, modes)
    written = await iteration.write_tips(groups)  # generated together, added in task order

    async with iteration.learning():
        groups = iteration.add_novelty(groups)
        advantages = [group_advantages(scores, algorithm) for scores in iteration.scores(groups)]

        # A trajectory's mode says whether its row keeps the tips; the denominator stays that of the prompt acted on...
        samples = iteration.samples(groups, advantages)
        if settings.old_logprobs == "tip_free" or iteration.config.memory.distilled:
            off_policy = [sample for sample in samples if sample.off_policy]
            without_tips = iteration.learner.logprobs(off_policy)
            if settings.distilled_context == "tip_free":  # rows of "release" still have the newest turn's tips
                iteration.measure_tips(groups, off_policy, without_tips)
            if settings.old_logprobs == "tip_free":  # ...unless the denominator is tip-free, too (4.2)
                tip_free = iter(replace_behavior_logprobs(off_policy, without_tips))
                samples = [next(tip_free) if sample.off_policy else sample for sample in samples]
        samples += [*iteration.anchor_samples(written, groups), *iteration.author_samples(written, groups)]
        metrics = await iteration.update(samples)
        await iteration.end(groups, metrics)


METHOD = Method("empo2", "EMPO²", empo2, trains=True, memory=True, colour="#009e73", sections={"empo2": Empo2Config})

"""OPID: the policy, given the tip that was written about an episode afterwards, scores that episode token by token.

Nothing is retrieved, and no prompt that acts has a tip. Source: "On-Policy Skill Distillation for Agentic Reinforcement
Learning" (arXiv 2606.26790) and its release (jinyangwu/OPID, 37a15a5). See docs/algorithms/opid.md for the formula, and
where this departs from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from trailnotes.algorithms.opsd import OpsdConfig, build_lessons, distillation_metrics, rebuild_with_tips
from trailnotes.config.methods import Method
from trailnotes.config.section import Section, key
from trailnotes.learner.credit.episodes import group_advantages
from trailnotes.memory import TipMemory, open_memory
from trailnotes.rollout.tips import WrittenTip
from trailnotes.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from trailnotes.runs.iteration import Iteration


class OpidConfig(Section):
    """OPID: the policy scores an episode with the tip that was written about it afterwards in its prompt."""

    coefficient: float = key(0.001, "c, weight of the log ratio beside the group's advantage; 0 is GRPO",
                             "OPID release 37a15a5, its ALFWorld script", ge=0)  # fmt: skip


async def opid(iteration: Iteration) -> None:
    config, algorithm = iteration.config, iteration.config.algorithm
    coefficient = config.section(OpidConfig).coefficient
    options = OpsdConfig(form="additive", coefficient=coefficient, gate="none")
    groups = await iteration.rollout(iteration.tasks())
    written = await iteration.write_tips(groups)
    teachers = await rebuild_with_own_tips(iteration, groups, written)

    async with iteration.learning():
        groups = iteration.add_novelty(groups)
        advantages = [group_advantages(scores, algorithm) for scores in iteration.scores(groups)]
        lessons, num_tokens = build_lessons(iteration, groups, advantages, teachers)
        iteration.add_metrics("opsd", distillation_metrics(lessons, options, math.inf) | {"teacher_tokens": num_tokens})
        taught = [lesson.build_sample(options, math.inf) for lesson in lessons]
        metrics = await iteration.update([*taught, *iteration.anchor_samples(written, groups)])
        await iteration.end(groups, metrics)


async def rebuild_with_own_tips(
    iteration: Iteration, groups: Sequence[TrajectoryGroup], written: Sequence[WrittenTip]
) -> list[TrajectoryGroup]:
    """Rebuild each episode as if it had read the tip that was written about it.

    The tip of a whole episode stands in the first prompt; with `memory.entries = "step"` each turn shows that of its
    own state.
    """
    settings = iteration.config.memory.model_copy(update={"retrieval": "dense"})  # by its key alone
    if settings.entries != "step":  # it is about the end, and must match from the beginning
        settings = settings.model_copy(update={"threshold": -1.0})
    else:  # that of a state has its very key; a model writes one text about all of them
        top_k = min(1, settings.top_k)
        settings = settings.model_copy(update={"threshold": 0.999, "top_k": top_k, "repeat_shown": True})
    config = iteration.config.model_copy(update={"memory": settings})
    own = {id(each.trajectory): each.tips for each in written}
    with ExitStack() as opened:

        def memory_of(trajectory: Trajectory) -> TipMemory:
            memory = opened.enter_context(open_memory(None, settings, embedder=iteration.embedder()))
            memory.add(own.get(id(trajectory), ()))
            return memory

        return await rebuild_with_tips(iteration.policy, groups, config, memory_of)


METHOD = Method("opid", "OPID", opid, trains=True, writes=True, colour="#b5651d", sections={"opid": OpidConfig})

"""Reflexion: after each failure the policy writes a plan, and the next trial at the same task begins with the plans.

Source: "Reflexion: Language Agents with Verbal Reinforcement Learning" (arXiv 2303.11366), algorithm 1. See
docs/algorithms/reflexion.md for every metric, each settled choice, and departures from the paper and its release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trailnotes.algorithms.reflexion.plans import MAX_PLAN_WORDS, PlansActor, ReflectionMemory, build_plan_messages
from trailnotes.errors import ConfigError
from trailnotes.memory import clean_tip
from trailnotes.prompts import build_opening_messages
from trailnotes.rollout import CompletionRequest, WrittenTip, compute_tip_metrics, select_usable
from trailnotes.seeds import derive_seed
from trailnotes.types import Sampling, Tip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trailnotes.runs.adaptation import AdaptationRun
    from trailnotes.types import TrajectoryGroup


async def reflexion(run: AdaptationRun) -> None:
    """Play trial 0, then `eval.trials` trials with plans; a solved task is not played again."""
    config = run.config
    if config.eval.num_samples != 1:
        raise ConfigError("reflexion plays a task once in each trial: set eval.num_samples = 1")
    latest: dict[str, TrajectoryGroup] = {}  # of each task; a solved one stays
    solved: set[str] = set()
    with ReflectionMemory(run.directory.memory_path, config.reflexion.window) as memory:
        for trial in range(config.eval.trials + 1):
            phase, again = f"trial-{trial}", config.reflexion.replay_last and trial == config.eval.trials
            tasks = [task for task in run.tasks if again or task.id not in solved]
            act = (lambda seating: PlansActor(seating, memory)) if trial else None
            groups = await run.play(phase, tasks, make_actor=act)

            latest |= {group.task.id: group for group in groups if group.task.id not in solved}
            solved |= {group.task.id for group in groups if group.trajectories[0].success}
            written = await write_plans(run, trial, memory, [g for g in groups if g.task.id not in solved])
            memory.add([plan for each in written for plan in each.tips], once=phase)

            counts = {"attempted": len(tasks), "solved": len(solved), "solved_share": len(solved) / len(run.tasks)}
            run.log(phase, groups, **counts, tips=compute_tip_metrics(written), memory=memory.stats())
            so_far = [latest[task.id] for task in run.tasks if task.id in latest]
            run.report(f"solved by trial {trial}" if trial else "trial 0", so_far, memory=trial > 0, trial=trial)
        run.report("final trial only", groups, memory=config.eval.trials > 0)
        run.examine(groups if config.reflexion.replay_last else so_far, memory=config.eval.trials > 0)


async def write_plans(
    run: AdaptationRun, trial: int, memory: ReflectionMemory, failed: Sequence[TrajectoryGroup]
) -> list[WrittenTip]:
    """Write one plan for each failed episode, with the earlier plans of its task in the prompt."""
    config, policy, options = run.config, run.policy, run.config.reflexion
    episodes = select_usable([group.trajectories[0] for group in failed])
    requests = [
        CompletionRequest(
            build_plan_messages(
                t, memory.search(t.task.id, "", options.window), config.rollout, config.memory, policy.count_tokens,
                options.max_shown_tokens,
            ),
            Sampling(
                options.temperature, max_tokens=options.max_write_tokens,
                seed=derive_seed(run.seed("plans", trial), t.task.id, t.member, "plan"),
            ),
            opening=len(build_opening_messages(config.rollout)),
        )
        for t in episodes
    ]  # fmt: skip
    written = []
    for t, completion in zip(episodes, await run.write(f"trial-{trial}", requests), strict=True):
        author: dict[str, Any] = {"model": policy.name, "version": policy.version, "run": config.run.name}
        usable = [completion.text] if clean_tip(completion.text, MAX_PLAN_WORDS) else []
        plans = (Tip(t.task.id, text, "", t.score, t.max_score, step=trial, **author) for text in usable)
        written.append(WrittenTip(t, completion, tuple(plans)))
    return written

"""Reflexion: after each failure the policy writes a plan, and the next trial at the same task begins with the plans.

Source: "Reflexion: Language Agents with Verbal Reinforcement Learning" (arXiv 2303.11366), algorithm 1. See
docs/algorithms/reflexion.md for every metric, each settled choice, and departures from the paper and its release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.algorithms.reflexion.memory import MAX_PLAN_WORDS, ReflectionMemory
from trailnotes.algorithms.reflexion.plans import PlansActor, build_plan_messages
from trailnotes.errors import ConfigError
from trailnotes.memory import clean_tip
from trailnotes.prompts import build_opening_messages
from trailnotes.rollout import CompletionRequest, WrittenTip, compute_tip_metrics, select_usable
from trailnotes.seeds import derive_seed
from trailnotes.types import Sampling, Tip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trailnotes.policies.base import Policy
    from trailnotes.runs.adaptation import AdaptationRun
    from trailnotes.types import Trajectory, TrajectoryGroup


async def reflexion(run: AdaptationRun) -> None:
    """Trial 0, then `eval.trials` trials with plans; a solved task is not played again."""
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
    """One plan for each failed episode, written with the earlier plans of its task in view."""
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
    completions = await run.write(f"trial-{trial}", requests)
    return [
        WrittenTip(
            t, completion, tuple(build_plan(t, completion.text, author=policy, run=config.run.name, trial=trial))
        )
        for t, completion in zip(episodes, completions, strict=True)
    ]


def build_plan(trajectory: Trajectory, text: str, *, author: Policy, run: str, trial: int) -> list[Tip]:
    """The entry for one written plan, in its own words; none if cleaning would leave nothing of it."""
    if not clean_tip(text, MAX_PLAN_WORDS):
        return []
    return [
        Tip(
            trajectory.task.id, text, "", trajectory.score, trajectory.max_score, model=author.name,
            version=author.version, run=run, step=trial,
        )
    ]  # fmt: skip

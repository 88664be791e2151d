"""Learning curves of adaptation: the present weights periodically play panels with tips, from an empty memory.

A point of the curves equals `trailnotes adapt --method empo2-tips` of the same weights and games: the trials have its
seeds. Training is unaffected: the memory is thrown away, and no counter moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from trailnotes.envs.tasks import load_new_tasks, load_validation_tasks
from trailnotes.memory import open_memory
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.rollout import Pool, run_groups, write_tips
from trailnotes.runs.panels import build_eval_config, get_metric_value
from trailnotes.seeds import derive_seed

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from trailnotes.config.schema import Config
    from trailnotes.memory import Embedder
    from trailnotes.policies.base import Policy
    from trailnotes.types import Mode, Task

AuthorFactory = Callable[[], "AbstractAsyncContextManager[Policy]"]


async def evaluate_adaptation(
    policy: Policy, pool: Pool, config: Config, embedder: Embedder, author: AuthorFactory
) -> dict[str, float]:
    """Compute the means of `eval.metric`: ``validation_tips/trial_0`` and on, ``validation_new/...``.

    A pure function of weights and settings: `train.eval_notes_trials` trials after trial 0, on `train.validation_split`
    and on `train.new_split`, if there is one. A trial without any episode has no metric.
    """
    panels = {"validation_tips": load_validation_tasks(config)}
    if config.train.new_split:
        panels["validation_new"] = load_new_tasks(config)
    return {
        f"{name}/trial_{trial}": value
        for name, tasks in panels.items()
        for trial, value in (await _evaluate_trials(policy, pool, tasks, config, embedder, author)).items()
    }


async def _evaluate_trials(
    policy: Policy, pool: Pool, tasks: Sequence[Task], config: Config, embedder: Embedder, author: AuthorFactory
) -> dict[int, float]:
    seed, last = config.run.seed, config.train.eval_notes_trials
    means: dict[int, float] = {}
    with open_memory(None, config.memory, embedder=embedder) as memory:
        for trial in range(last + 1):
            phase = f"trial-{trial}"
            mode: Mode = "on_policy_tips" if trial else "plain"
            groups = await run_groups(
                policy, pool, tasks, [[mode] * config.eval.num_samples for _ in tasks],
                make_prompt_memory(memory, config.eval.show_tips) if trial else None,
                build_eval_config(config), seed=derive_seed(seed, phase),
            )  # fmt: skip
            if values := [get_metric_value(t, config.eval.metric) for group in groups for t in group.trajectories]:
                means[trial] = fmean(values)
            if trial < last:
                tips_seed = derive_seed(seed, phase, "notes")
                async with author() as writer:
                    memory.add((await write_tips(writer, groups, config, seed=tips_seed, step=trial)).tips)
    return means

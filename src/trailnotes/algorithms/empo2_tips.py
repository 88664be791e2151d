"""EMPO2's memory without its training: adaptation to new games by tips alone.

Source: "Exploratory Memory-Augmented LLM Agent via Hybrid On- and Off-Policy Optimization" (arXiv 2602.23008), section
6, out-of-distribution adaptation. See docs/algorithms/empo2-tips.md.
"""

from __future__ import annotations

from trailnotes.config.methods import Method
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_tasks, panel
from trailnotes.errors import ConfigError
from trailnotes.memory import make_config_embedder, open_memory
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.rollout.tips import (
    EXTRACT,
    build_tip_requests,
    compute_tip_metrics,
    extract_tips,
    parse_tips,
    select_usable,
)
from trailnotes.runs.adaptation import AdaptationRun
from trailnotes.types import Task


async def empo2_tips(run: AdaptationRun) -> None:
    """Play games of `eval.warmup_split`, then trial 0 and `eval.trials` more, with all earlier tips; each gets tips."""
    config, author, met = run.config, run.author, load_warmup_tasks(run.config)
    phases = [("met", met)] if met else []
    phases += [(f"trial-{trial}", run.tasks) for trial in range(config.eval.trials + 1)]
    with open_memory(run.directory.memory_path, config.memory, embedder=make_config_embedder(config)) as memory:
        for number, (phase, tasks) in enumerate(phases):
            trial, reads = number - bool(met), number > 0
            tips = make_prompt_memory(memory, config.eval.show_tips) if reads else None
            groups = await run.play(phase, tasks, memory=tips, num_samples=config.eval.num_samples)

            episodes = select_usable([trajectory for group in groups for trajectory in group.trajectories])
            if config.algorithm.author == EXTRACT:
                completions = extract_tips(run.policy, episodes, config)
            else:
                requests = build_tip_requests(author, episodes, config, seed=run.seed(phase, "notes"))
                completions = await run.write(phase, requests, policy=author)
            written = parse_tips(author, episodes, completions, config, step=max(0, trial))
            memory.register_tasks(tasks)
            memory.add([tip for each in written for tip in each.tips], once=phase)

            run.log(phase, groups, tips=compute_tip_metrics(written), memory=memory.stats())
            if trial >= 0:
                run.report(f"trial {trial}", groups, memory=reads, trial=trial)
        run.write_panel(groups, memory=reads)


def load_warmup_tasks(config: Config) -> list[Task]:
    """Return the games that get tips before the panel is played; raises `ConfigError` where nobody would read these."""
    split, readers = config.eval.warmup_split, {config.memory.shared_split, config.eval.split}
    if split and split not in readers:
        raise ConfigError(f'tips about games of eval.warmup_split = "{split}" are read by that split alone: set it to '
                          f'"{config.memory.shared_split}"')  # fmt: skip
    return panel(load_tasks(config, split), config.eval.warmup_tasks) if split else []


METHOD = Method(
    "empo2-tips", "EMPO², tips only", empo2_tips, trains=False, colour="#5fbf9f",
    learned_from=load_warmup_tasks,
)  # fmt: skip

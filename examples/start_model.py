"""What a start model can do on Waymarks games of every size, under fresh rules that no panel has.

    python examples/start_model.py models/waymarks-start

Training on tips needs all of it: without tips some episodes must read the archive, what was read must be written down
as it stands, and a right tip must be followed.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.config.toml import load_config
from trailnotes.envs.waymarks import env as waymarks
from trailnotes.envs.waymarks import spec as rules
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.memory import open_memory
from trailnotes.policies.base import Policy
from trailnotes.rollout import run_groups, write_tips
from trailnotes.runs.players import model_policy
from trailnotes.types import Task, Tip, Trajectory, TrajectoryGroup
from trailnotes.warmstart.demonstrations.waymarks import NOTHING_FOUND, WaymarksDemonstrator, rule_note

GAMES = 64  # of each size
SIZES: Sequence[tuple[rules.Kind, int]] = (("route", 7), ("route", 3), ("keys", 4), ("keys", 2))
COLUMNS = ("7 moves", "3 moves", "4 boxes", "2 boxes")


def games(config: Config, kind: rules.Kind, size: int) -> list[Task]:
    """Fresh games of one size, of any family."""
    demonstrator, rng = WaymarksDemonstrator(config, len, seed=0), random.Random(size)
    tasks = []
    for i in range(GAMES):
        family = rng.choice(rules.FAMILY_NAMES[kind])
        spec = rules.make_spec(kind, family, demonstrator.draw_rule(kind, family, size), rng.getrandbits(40))
        tasks.append(waymarks.task_of(spec, f"{kind}/{family}/fresh-{i}"))
    return tasks


def tips_for(task: Task, texts: Sequence[str]) -> list[Tip]:
    """Tips of one game, as an episode without reward would have left them."""
    return [Tip(task.id, text, key="", score=0.0) for text in texts]


async def play(policy: Policy, tasks: Sequence[Task], tips: Sequence[Tip], config: Config) -> list[Trajectory]:
    """One episode a game, with these tips or none."""
    with open_memory(None, config.memory) as memory, EnvPool(config.env) as pool:
        memory.add(tips)
        modes = [["on_policy_tips" if tips else "plain"] for _ in tasks]
        groups = await run_groups(policy, pool, tasks, modes, memory, config, seed=0)
    return [trajectory for group in groups for trajectory in group.trajectories]


async def written(policy: Policy, episodes: Sequence[Trajectory], config: Config) -> dict[str, str]:
    """The tip that is written about each of these episodes, by task."""
    groups = [TrajectoryGroup(episode.task, (episode,)) for episode in episodes]
    tips = (await write_tips(policy, groups, config, seed=0, step=0)).tips
    return {tip.namespace: tip.text.strip() for tip in tips}


def share(hits: Sequence[bool]) -> str:
    """As a table shows it; "-" where nothing was tried."""
    return f"{sum(hits) / len(hits):.2f}" if hits else "-"


async def column(policy: Policy, config: Config, kind: rules.Kind, size: int) -> list[str]:
    """The figures of one size."""
    tasks = games(config, kind, size)
    right = {task.id: rule_note(spec.family, spec.rule) for task in tasks for spec in [waymarks.spec_of(task)]}
    alone = await play(policy, tasks, [], config)
    read = [episode for episode in alone if episode.steps[0].action == rules.ARCHIVE_DIRECTION]
    failed = [episode for episode in alone if episode not in read and not episode.success]
    told = await play(policy, tasks, [t for task in tasks for t in tips_for(task, [right[task.id]])], config)
    both = [t for task in tasks for t in tips_for(task, [NOTHING_FOUND, right[task.id]])]
    beside = await play(policy, tasks, both, config)
    notes, empty = await written(policy, read, config), await written(policy, failed, config)
    return [
        share([episode in read for episode in alone]),
        share([episode.success for episode in told]),
        share([episode.success for episode in beside]),
        share([notes.get(episode.task.id) == right[episode.task.id] for episode in read]),
        share([empty.get(episode.task.id) == NOTHING_FOUND for episode in failed]),
    ]


def main(path: str) -> None:
    """Print the table."""
    settings = ["--model.path", path, "--env.name", "waymarks-simulator"]
    config = load_config(Path("configs/compare/textworld-base.toml"), settings)
    policy = model_policy(config)
    labels = ("reads the archive, without tips", "wins with the right tip", "... and an empty one",
              "writes what it read exactly", 'writes "nothing found" after a guess')  # fmt: skip
    cells = [asyncio.run(column(policy, config, kind, size)) for kind, size in SIZES]
    print("| | " + " | ".join(COLUMNS) + " |\n|---" + "|---:" * len(COLUMNS) + "|")
    for label, row in zip(labels, zip(*cells, strict=True), strict=True):
        print(f"| {label} | {' | '.join(row)} |")


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["models/waymarks-start"])

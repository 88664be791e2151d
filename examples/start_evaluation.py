"""What the tables of initial models share: a policy plays chosen tasks, with tips or without, and writes tips."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from trailnotes.config.schema import Config
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.memory import open_memory
from trailnotes.memory.tips import clean_tip
from trailnotes.policies.base import Policy
from trailnotes.rollout.groups import GroupRunner
from trailnotes.rollout.tips import write_tips
from trailnotes.types import Mode, Observation, Task, Tip, Trajectory, TrajectoryGroup


class StartEvaluation:
    """A policy, and the tasks that it is evaluated on.

    Args:
        policy: acts and writes.
        config: of the wording, the memory and the environment.
    """

    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy, self.config = policy, config
        self.pool = EnvPool(config.env)  # one for all episodes: simulators take long to start

    def close(self) -> None:
        self.pool.close()

    @property
    def tasks(self) -> list[Task]:
        raise NotImplementedError

    async def play(
        self, tips: Mapping[str, Sequence[Tip]] | None = None, tasks: Sequence[Task] = ()
    ) -> list[Trajectory]:
        """Play one episode of each task, or of these alone, with the tips of its id, or without any."""
        tasks = tasks or self.tasks
        mode: Mode = "plain" if tips is None else "on_policy_tips"
        with open_memory(None, self.config.memory) as memory:
            for of_task in (tips or {}).values():
                memory.add(list(of_task))
            runner = GroupRunner(self.policy, self.pool, memory, self.config, seed=0, progress=print_score)
            groups = await runner.play(tasks, [[mode]] * len(tasks))
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        with_tips = [episode for episode in episodes if (tips or {}).get(episode.task.id)]
        if unread := sum(not any(step.tips for step in episode.steps) for episode in with_tips):
            print(
                f"warning: {unread} of {len(with_tips)} episodes displayed none of their tips; if no room was left for "
                f"them, raise rollout.max_context_tokens = {self.config.rollout.max_context_tokens}",
                file=sys.stderr,
            )
        return episodes

    async def write(self, episodes: Sequence[Trajectory]) -> dict[str, list[Tip]]:
        """Have the policy write a tip about each episode; the ids of tasks whose tip is unusable are absent."""
        tips: dict[str, list[Tip]] = {}
        groups = [TrajectoryGroup(episode.task, (episode,)) for episode in episodes]
        for tip in await write_tips(self.policy, groups, self.config, seed=0, step=0):
            episode = tip.trajectory
            if self.config.memory.entries == "step":
                tips[episode.task.id] = list(tip.tips)
            elif text := clean_tip(tip.completion.text):
                name = episode.task.id
                tips[name] = [Tip(name, text, key="", score=episode.score, max_score=episode.max_score)]
        return tips


def print_score(episode: Trajectory) -> None:
    """Print a line on an episode that has ended: a large model on a processor takes minutes for one."""
    print(f"{episode.mode}  {episode.task.id}  score {episode.score:g} of {episode.max_score:g}", file=sys.stderr)


def get_answers(episode: Trajectory) -> list[Observation]:
    """Return the environment's answer to each action."""
    return [*(step.observation for step in episode.steps[1:]), episode.final_observation]


def count_to_last_gain(episode: Trajectory) -> int:
    """Count the actions up to the last that raised the score."""
    return max((number for number, step in enumerate(episode.steps, 1) if step.reward > 0), default=0)


def format_share(hits: Sequence[bool]) -> str:
    return f"{sum(hits) / len(hits):.2f}" if hits else "-"


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown, the first column to the left and the others to the right."""
    print(f"| {' | '.join(header)} |\n|---{'|---:' * (len(header) - 1)}|")
    for row in rows:
        print(f"| {' | '.join(row)} |")

"""What the tables of start models share: a policy that plays chosen tasks, with tips or without, and writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trailnotes.config.schema import Config
from trailnotes.envs.workers.pool import EnvPool
from trailnotes.memory import open_memory
from trailnotes.memory.tips import clean_tip
from trailnotes.policies.base import Policy
from trailnotes.rollout.groups import GroupRunner
from trailnotes.rollout.tips import WrittenTip, write_tips
from trailnotes.types import Mode, Observation, Task, Tip, Trajectory, TrajectoryGroup


class Examination:
    """A policy, and the tasks that it is examined on.

    Args:
        policy: acts and writes.
        config: of the wording, the memory and the environment.
    """

    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy, self.config = policy, config
        self.pool = EnvPool(config.env)  # one for all plays: simulators take long to start

    def close(self) -> None:
        """End the environments."""
        self.pool.close()

    @property
    def tasks(self) -> list[Task]:
        """What is played."""
        raise NotImplementedError

    async def play(
        self, tips: Mapping[str, Sequence[Tip]] | None = None, tasks: Sequence[Task] = ()
    ) -> list[Trajectory]:
        """One episode of each task, or of these alone, with the tips of its id, or without any."""
        tasks = tasks or self.tasks
        mode: Mode = "plain" if tips is None else "on_policy_tips"
        with open_memory(None, self.config.memory) as memory:
            for own in (tips or {}).values():
                memory.add(list(own))
            runner = GroupRunner(self.policy, self.pool, memory, self.config, seed=0)
            groups = await runner.play(tasks, [[mode]] * len(tasks))
        return [trajectory for group in groups for trajectory in group.trajectories]

    async def written(self, episodes: Sequence[Trajectory]) -> dict[str, list[Tip]]:
        """What the policy writes about each of these episodes; nothing usable is left out."""
        tips: dict[str, list[Tip]] = {}

        def keep(tip: WrittenTip) -> None:
            episode = tip.trajectory
            if self.config.memory.entries == "step":
                tips[episode.task.id] = list(tip.tips)
            elif text := clean_tip(tip.completion.text):
                name = episode.task.id
                tips[name] = [Tip(name, text, key="", score=episode.score, max_score=episode.max_score)]

        groups = [TrajectoryGroup(episode.task, (episode,)) for episode in episodes]
        await write_tips(self.policy, groups, self.config, seed=0, step=0, on_tip=keep)
        return tips


def answers(episode: Trajectory) -> list[Observation]:
    """What the environment said to each action."""
    return [*(step.observation for step in episode.steps[1:]), episode.final_observation]


def count_to_last_raise(episode: Trajectory) -> int:
    """How many actions the episode took up to the last that raised the score."""
    return max((number for number, step in enumerate(episode.steps, 1) if step.reward > 0), default=0)


def share(hits: Sequence[bool]) -> str:
    """As a table shows it; "-" where nothing was tried."""
    return f"{sum(hits) / len(hits):.2f}" if hits else "-"


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """In Markdown, the first column to the left and the others to the right."""
    print(f"| {' | '.join(header)} |\n|---{'|---:' * (len(header) - 1)}|")
    for row in rows:
        print(f"| {' | '.join(row)} |")

"""Scripted episodes of games with an expert: ALFWorld, Sokoban, TextWorldExpress.

The initial model learns the form of actions, to follow a tip with a full score, to do something else after one with a
bad score, and to write down its actions; and as much of the game as imitation teaches.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any

from trailnotes.config.schema import Config
from trailnotes.envs import get_env_identity, list_env_tasks, make_env
from trailnotes.envs.tasks import panel, select_unused
from trailnotes.errors import ConfigError
from trailnotes.storage.demonstrations import Demonstration
from trailnotes.types import Observation, Task, Trajectory
from trailnotes.warmstart.demonstrations.episodes import Script, play_script, replay_actions
from trailnotes_worlds.demonstrations.recorded import NUM_WANDERINGS, RecordedDemonstrator, RecordedGame, load_or_record

VERSION = 1  # of the scripts and their recordings


class ExpertDemonstrator(RecordedDemonstrator):
    """Endless demonstrations drawn from recorded episodes of the training games.

    The cache folder keeps the episodes, of `warmstart.variations` games of each family.
    """

    def hold_out(self, config: Config) -> None:
        left = {task.id for task in select_unused(type(self).choose_tasks(self.config), config)}
        if not left:
            raise ConfigError("every training game is trained on or evaluated: name others in rehearsal.options")
        self.recordings = [each for each in self.recordings if each.wandered[0].task.id in left]

    @staticmethod
    def choose_tasks(config: Config) -> list[Task]:
        return spread_by_family(list_env_tasks(config.env.name, "train", config.env.options), config)

    def __iter__(self) -> Iterator[Demonstration]:
        by_family: dict[str, list[RecordedGame]] = {}
        for recorded in self.recordings:
            by_family.setdefault(recorded.wandered[0].task.family, []).append(recorded)
        families = sorted(by_family)
        while True:
            yield from self.demonstrate_episode(self.rng.choice(by_family[self.rng.choice(families)]))

    @classmethod
    def record_episodes(cls, config: Config) -> Iterator[Trajectory]:
        """Play the expert's episode of each game, as member 0 if it fits `rollout.max_steps`, and wanderings."""
        options: dict[str, Any] = {**config.env.options, "max_steps": config.rollout.max_steps, "actions": True}
        env: Any = make_env(config.env.name, **options)  # with `solution(task)`: actions that win
        try:
            for task in cls.choose_tasks(config):
                best = play_script(env, task, partial(replay_actions, env.solution(task)))
                if best.success:
                    yield best
                for member in range(1, 1 + NUM_WANDERINGS):
                    yield play_script(env, task, partial(_act_randomly, random.Random(f"{task.id} {member}")), member)
        finally:
            env.close()

    @cached_property
    def recordings(self) -> list[RecordedGame]:
        config = self.config
        wanted = {
            "version": VERSION,
            "options": dict(config.env.options),
            "identity": get_env_identity(config.env.name, config.env.options),
            "variations": config.warmstart.variations,
            "max_steps": config.rollout.max_steps,
        }
        return load_or_record(config.env.name, wanted, lambda: self.record_episodes(config))


def spread_by_family(games: Iterable[Task], config: Config) -> list[Task]:
    """Choose `warmstart.variations` games of each family, evenly spaced."""
    by_family: dict[str, list[Task]] = {}
    for task in games:
        by_family.setdefault(task.family, []).append(task)
    return [task for tasks in by_family.values() for task in panel(tasks, config.warmstart.variations)]


def _act_randomly(rng: random.Random, observation: Observation) -> Script:
    while True:
        observation = yield rng.choice(observation.actions or ("look",))

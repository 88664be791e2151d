"""Scripted episodes of the games that bring an expert: ALFWorld, Sokoban, Minesweeper, TextWorldExpress.

What a start model learns here is what actions look like, to do what a tip with a full score says, to do something else
after one with a bad score, and to write down what it did; on the way, as much of the game as imitation teaches.
"""

from __future__ import annotations

import random
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from trailnotes.envs import Env, get_env_identity, list_env_tasks, make_env
from trailnotes.envs.tasks import panel, select_unused
from trailnotes.errors import ConfigError
from trailnotes.warmstart.demonstrations.episodes import apply_rehearsal_options, play_script, replay_actions
from trailnotes.warmstart.demonstrations.recorded import (
    NUM_WANDERINGS,
    RecordedDemonstrator,
    RecordedGame,
    load_or_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trailnotes.config.schema import Config
    from trailnotes.storage.demonstrations import Demonstration
    from trailnotes.types import Observation, Task, Trajectory
    from trailnotes.warmstart.demonstrations.episodes import Script

VERSION = 1  # of the scripts: recordings of another are not used


class ExpertEnv(Env, Protocol):
    """An environment that knows how its games are won."""

    def solution(self, task: Task) -> tuple[str, ...]:
        """Actions that win `task`."""
        ...


class ExpertDemonstrator(RecordedDemonstrator):
    """Endless demonstrations drawn from recorded episodes of the training games.

    The episodes are recorded once into the cache folder, of `warmstart.variations` games of each family.
    """

    @classmethod
    def build_held_out(cls, config: Config, count_tokens: Callable[[str], int], seed: int) -> Self:
        """Those of the games that `rehearsal.options` names and `config` neither trains on nor examines.

        Raises:
            ConfigError: none is left.
        """
        subject = cls(apply_rehearsal_options(config), count_tokens, seed)
        left = {task.id for task in select_unused(_choose_tasks(subject.config), config)}
        subject.recordings = [each for each in subject.recordings if each.wandered[0].task.id in left]
        if not subject.recordings:
            raise ConfigError(
                "every game of the train split is trained on or examined: name others in rehearsal.options"
            )
        return subject

    def __iter__(self) -> Iterator[Demonstration]:
        by_family: dict[str, list[RecordedGame]] = {}
        for recorded in self.recordings:
            by_family.setdefault(recorded.wandered[0].task.family, []).append(recorded)
        families = sorted(by_family)
        while True:
            yield from self.demonstrate_episode(self.rng.choice(by_family[self.rng.choice(families)]))

    @cached_property
    def recordings(self) -> list[RecordedGame]:
        """One for each game, from the cache or recorded now."""
        config = self.config
        wanted = {
            "version": VERSION,
            "options": dict(config.env.options),
            "identity": get_env_identity(config.env.name, config.env.options),
            "variations": config.warmstart.variations,
            "max_steps": config.rollout.max_steps,
        }
        return load_or_record(config.env.name, wanted, lambda: _record_episodes(config))


def _choose_tasks(config: Config) -> list[Task]:
    """`warmstart.variations` training games of each family, evenly spaced."""
    by_family: dict[str, list[Task]] = {}
    for task in list_env_tasks(config.env.name, "train", config.env.options):
        by_family.setdefault(task.family, []).append(task)
    return [task for tasks in by_family.values() for task in panel(tasks, config.warmstart.variations)]


def _record_episodes(config: Config) -> Iterator[Trajectory]:
    """Of each game the expert's episode (member 0) if it fits `rollout.max_steps`, and wanderings (members 1 on)."""
    options: dict[str, Any] = {**config.env.options, "max_steps": config.rollout.max_steps, "actions": True}
    env = cast("ExpertEnv", make_env(config.env.name, **options))
    try:
        for task in _choose_tasks(config):
            best = play_script(env, task, partial(replay_actions, env.solution(task)))
            if best.success:
                yield best
            for member in range(1, 1 + NUM_WANDERINGS):
                yield play_script(env, task, partial(_act_randomly, random.Random(f"{task.id} {member}")), member)
    finally:
        env.close()


def _act_randomly(rng: random.Random, observation: Observation) -> Script:
    """Any admissible action."""
    while True:
        observation = yield rng.choice(observation.actions or ("look",))

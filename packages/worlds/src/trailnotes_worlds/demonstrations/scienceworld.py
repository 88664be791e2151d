"""Scripted ScienceWorld episodes of training variations: gold paths and wanderings, with tips to act on and to write.

What a start model learns here is how actions are worded, to look before it acts, to repeat what a tip with a full
score says, to do something else after a tip with a bad one, and to write down what it did. To see a task learned
afterwards, leave it out of `env.options.task`.
"""

from __future__ import annotations

import logging
import random
from functools import cached_property, partial
from typing import TYPE_CHECKING, Self

from trailnotes.envs import make_env
from trailnotes.envs.tasks import select_unused
from trailnotes.errors import ConfigError
from trailnotes.types import Task, Trajectory
from trailnotes.warmstart.demonstrations.episodes import apply_rehearsal_options, play_script, replay_actions
from trailnotes.warmstart.demonstrations.recorded import (
    NUM_WANDERINGS,
    RecordedDemonstrator,
    RecordedGame,
    load_or_record,
)
from trailnotes_worlds.demonstrations.scienceworld_scripts import shorten_path, wander
from trailnotes_worlds.scienceworld.client import close_gold_path_finder, find_gold_path
from trailnotes_worlds.scienceworld.tasks import scienceworld_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trailnotes.config.schema import Config
    from trailnotes.envs import Env
    from trailnotes.storage.demonstrations import Demonstration

logger = logging.getLogger(__name__)
VERSION = 1  # of the scripts: recordings of another are not used


class ScienceWorldDemonstrator(RecordedDemonstrator):
    """Endless demonstrations drawn from recorded episodes of the training variations of `env.options.task`.

    The episodes are recorded once, by the simulator, into the cache folder (minutes), `warmstart.variations` of each
    task spread over its training variations.
    """

    @classmethod
    def build_held_out(cls, config: Config, count_tokens: Callable[[str], int], seed: int) -> Self:
        """Those of the tasks in `rehearsal.options`, without variations that `config` trains on or examines.

        Raises:
            ConfigError: none is left.
        """
        subject = cls(apply_rehearsal_options(config), count_tokens, seed)
        names = subject.config.env.options.get("task", "all")
        left = {task.id for task in select_unused(_choose_tasks(names, config.warmstart.variations), config)}
        if not left:
            raise ConfigError(
                f"every training variation of task = {names!r} is trained on or examined: name other tasks in "
                "rehearsal.options.task"
            )
        subject.recordings = [each for each in subject.recordings if each.wandered[0].task.id in left]
        return subject

    def __iter__(self) -> Iterator[Demonstration]:
        by_task: dict[str, list[RecordedGame]] = {}
        for recorded in self.recordings:
            by_task.setdefault(recorded.wandered[0].task.options["task"], []).append(recorded)
        names = sorted(by_task)
        while True:
            yield from self.demonstrate_episode(self.rng.choice(by_task[self.rng.choice(names)]))

    @cached_property
    def recordings(self) -> list[RecordedGame]:
        """One for each variation, from the cache or recorded now."""
        return load_recordings(self.config)


# --- recording --------------------------------------------------------------------------------------------------


def load_recordings(config: Config, folder: Path | None = None) -> list[RecordedGame]:
    """The recorded episodes that `config` asks for; the same in every process.

    Raises:
        ConfigError: no variation gives an episode that fits `rollout.max_steps`.
    """
    wanted = {
        "version": VERSION,
        "options": dict(config.env.options),
        "variations": config.warmstart.variations,
        "max_steps": config.rollout.max_steps,
    }
    found = load_or_record("scienceworld", wanted, lambda: _record_episodes(config), folder)
    if not found:
        raise ConfigError(f"no episode of {config.env.options.get('task')!r} fits rollout.max_steps: raise it")
    return found


def _record_episodes(config: Config) -> Iterator[Trajectory]:
    """Gold path (member 0) and wanderings (members 1 and up) of each variation."""
    options = {key: value for key, value in config.env.options.items() if key not in ("task", "protocol")}
    names = config.env.options.get("task", "all")
    env = make_env("scienceworld", **{**options, "max_steps": config.rollout.max_steps})
    try:
        for task in _choose_tasks(names, config.warmstart.variations):
            if gold := _play_gold_path(env, task, options.get("simplification", "easy"), config.rollout.max_steps):
                yield gold
            for member in range(1, 1 + NUM_WANDERINGS):
                rng = random.Random(f"{task.id} {member}")
                yield play_script(env, task, partial(wander, rng), member)
            logger.info("recorded %s", task.id)
    finally:
        env.close()
        close_gold_path_finder()


def _choose_tasks(names: str | list[str], num: int) -> list[Task]:
    """`num` training variations of each task, evenly spaced."""
    tasks = scienceworld_tasks("train", names, protocol="simulator")
    by_name: dict[str, list[Task]] = {}
    for task in tasks:
        by_name.setdefault(task.options["task"], []).append(task)
    return [
        group[i * len(group) // min(num, len(group))] for group in by_name.values() for i in range(min(num, len(group)))
    ]


def _play_gold_path(env: Env, task: Task, simplification: str | Sequence[str], max_steps: int) -> Trajectory | None:
    """The simulator's own solution, shortened if it still reaches the full score."""
    path = find_gold_path(task.options["task"], task.options["variation"], simplification)
    for actions in shorten_path(path):
        if (
            len(actions) <= max_steps
            and (trajectory := play_script(env, task, partial(replay_actions, actions), 0)).success
        ):
            return trajectory
    return None

"""Scripted ScienceWorld episodes of training variations: gold paths and wanderings, with tips to act on and to write.

What a start model learns here is how actions are worded, to look before it acts, to repeat what a tip with a full
score says, to do something else after a tip with a bad one, and to write down what it did. To see a task learned
afterwards, leave it out of `env.options.task`.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Self

from trailnotes.envs import make_env
from trailnotes.envs.scienceworld.client import close_gold_paths, gold_path
from trailnotes.envs.scienceworld.tasks import scienceworld_tasks
from trailnotes.envs.tasks import kept_apart
from trailnotes.envs.textworld.interpreter import cache_dir
from trailnotes.errors import ConfigError
from trailnotes.storage.files import encode_line, read_jsonl, write_bytes_atomic
from trailnotes.storage.records import trajectory_from_json, trajectory_to_json
from trailnotes.types import Task, Tip, Trajectory
from trailnotes.warmstart.demonstrations.episodes import actions_of, conversations, follow, of_rehearsal, played
from trailnotes.warmstart.demonstrations.scienceworld_scripts import shortened, wandering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trailnotes.config.schema import Config
    from trailnotes.envs import Env
    from trailnotes.storage.demonstrations import Demonstration

logger = logging.getLogger(__name__)
WANDERINGS = 4  # recorded for each variation
VERSION = 1  # of the scripts: recordings of another are not used


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded of one variation."""

    gold: Trajectory | None  # None where no short enough path reaches the full score
    wandered: tuple[Trajectory, ...]

    @property
    def everything(self) -> tuple[Trajectory, ...]:
        """All its episodes."""
        return (*self.wandered, self.gold) if self.gold else self.wandered


class ScienceWorldDemonstrator:
    """Endless demonstrations drawn from recorded episodes of the training variations of `env.options.task`.

    The episodes are recorded once, by the simulator, into the cache folder (minutes), `warmstart.variations` of each
    task spread over its training variations.

    Args:
        config: prompts, memory, `env.options`, and the shares of `config.warmstart`.
        count_tokens: of the tokenizer, for the length caps.
        seed: of everything drawn here; what was recorded does not depend on it.
    """

    def __init__(self, config: Config, count_tokens: Callable[[str], int], seed: int) -> None:
        self.config, self.count_tokens = config, count_tokens
        self.rng = random.Random(seed)

    @classmethod
    def apart(cls, config: Config, count_tokens: Callable[[str], int], seed: int) -> Self:
        """Those of the tasks in `rehearsal.options`, without variations that `config` trains on or examines.

        Raises:
            ConfigError: none is left.
        """
        subject = cls(of_rehearsal(config), count_tokens, seed)
        names = subject.config.env.options.get("task", "all")
        left = {task.id for task in kept_apart(_chosen(names, config.warmstart.variations), config)}
        if not left:
            raise ConfigError(
                f"every training variation of task = {names!r} is trained on or examined: name other tasks in "
                "rehearsal.options.task"
            )
        subject.recordings = [each for each in subject.recordings if each.wandered[0].task.id in left]
        return subject

    def __iter__(self) -> Iterator[Demonstration]:
        by_task: dict[str, list[Recorded]] = {}
        for recorded in self.recordings:
            by_task.setdefault(recorded.wandered[0].task.options["task"], []).append(recorded)
        names = sorted(by_task)
        while True:
            yield from self.episode(self.rng.choice(by_task[self.rng.choice(names)]))

    @cached_property
    def recordings(self) -> list[Recorded]:
        """One for each variation, from the cache or recorded now."""
        return recordings(self.config)

    def episode(self, recorded: Recorded) -> list[Demonstration]:
        """One episode's demonstrations: a row to act, and where it acted on tips, a tip-free row to write."""
        warm = self.config.warmstart
        if self.rng.random() < warm.obey:
            trajectory = self.rng.choice(recorded.everything)
            tips = self.praising(trajectory, recorded)
        elif recorded.gold and self.rng.random() >= warm.read:
            trajectory = recorded.gold
            tips = self.failures(recorded, trajectory) if self.rng.random() < 0.3 else ()
        else:
            trajectory = self.rng.choice(recorded.wandered)
            tips = self.failures(recorded, trajectory) if self.rng.random() < 0.3 else ()
        return self.rows(trajectory, tips)

    def praising(self, trajectory: Trajectory, recorded: Recorded) -> tuple[Tip, ...]:
        """Tips of which the first has a full score and tells `trajectory`, whatever that was really worth."""
        right = self.tip(trajectory, trajectory.max_score)
        others = self.failures(recorded, trajectory) if self.rng.random() < 0.4 else ()
        return (right, *others)[: self.config.memory.top_k]

    def failures(self, recorded: Recorded, trajectory: Trajectory) -> tuple[Tip, ...]:
        """Tips that tell other endings than that of `trajectory`, with the bad scores they had."""
        others = [t for t in recorded.wandered if t.score < 100 and actions_of(t)[-1] != actions_of(trajectory)[-1]]
        self.rng.shuffle(others)
        chosen = sorted(others[: self.rng.randint(1, 2)], key=lambda t: -t.score)
        return tuple(self.tip(t, t.score) for t in chosen)[: self.config.memory.top_k]

    def tip(self, trajectory: Trajectory, score: float) -> Tip:
        """What a memory would hold of an episode that ended with `score`."""
        return Tip(trajectory.task.id, self.note(trajectory, score), key="", score=score, max_score=100.0)

    def note(self, trajectory: Trajectory, score: float) -> str:  # noqa: ARG002 (told in English alone)
        """What is written about an episode that ended with `score`."""
        return note_of(trajectory)

    def rows(self, trajectory: Trajectory, tips: tuple[Tip, ...]) -> list[Demonstration]:
        """The conversations of an episode that showed `tips` in its first turn."""
        note = self.note(trajectory, trajectory.score)
        act, *write = conversations(trajectory, tips, note, self.config, self.count_tokens)
        return [act, *write] if tips and self.rng.random() < 0.2 else [act]  # every row without tips writes, too


def note_of(trajectory: Trajectory) -> str:
    """The tip that a good writer writes: what was done, in order; the score is shown beside every tip."""
    return " ; ".join(actions_of(trajectory))


# --- recording --------------------------------------------------------------------------------------------------


def recordings(config: Config, folder: Path | None = None) -> list[Recorded]:
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
    name = sha256(encode_line(wanted)).hexdigest()[:24]
    path = (folder or cache_dir()) / f"scienceworld-{name}.jsonl"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomic(path, b"".join(encode_line(trajectory_to_json(t)) for t in _record(config)))
    groups: dict[str, list[Trajectory]] = {}
    for record in read_jsonl(path):
        trajectory = trajectory_from_json(record)
        groups.setdefault(trajectory.task.id, []).append(trajectory)
    if not groups:
        raise ConfigError(f"no episode of {config.env.options.get('task')!r} fits rollout.max_steps: raise it")
    return [
        Recorded(next((t for t in group if t.member == 0), None), tuple(t for t in group if t.member))
        for group in groups.values()
    ]


def _record(config: Config) -> Iterator[Trajectory]:
    """Gold path (member 0) and wanderings (members 1 and up) of each variation."""
    options = {key: value for key, value in config.env.options.items() if key not in ("task", "protocol")}
    names = config.env.options.get("task", "all")
    env = make_env("scienceworld", **{**options, "max_steps": config.rollout.max_steps})
    try:
        for task in _chosen(names, config.warmstart.variations):
            if gold := _gold(env, task, options.get("simplification", "easy"), config.rollout.max_steps):
                yield gold
            for member in range(1, 1 + WANDERINGS):
                rng = random.Random(f"{task.id} {member}")
                yield played(env, task, partial(wandering, rng), member)
            logger.info("recorded %s", task.id)
    finally:
        env.close()
        close_gold_paths()


def _chosen(names: str | list[str], num: int) -> list[Task]:
    """`num` training variations of each task, evenly spaced."""
    tasks = scienceworld_tasks("train", names, protocol="simulator")
    by_name: dict[str, list[Task]] = {}
    for task in tasks:
        by_name.setdefault(task.options["task"], []).append(task)
    return [
        group[i * len(group) // min(num, len(group))] for group in by_name.values() for i in range(min(num, len(group)))
    ]


def _gold(env: Env, task: Task, simplification: str | Sequence[str], max_steps: int) -> Trajectory | None:
    """The simulator's own solution, shortened if it still reaches the full score."""
    path = gold_path(task.options["task"], task.options["variation"], simplification)
    for actions in shortened(path):
        if len(actions) <= max_steps and (trajectory := played(env, task, partial(follow, actions), 0)).success:
            return trajectory
    return None

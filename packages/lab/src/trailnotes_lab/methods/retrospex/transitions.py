"""Transitions from the episodes on disk of any run: training, adaptation, evaluation.

Fields are those of Retrospex (arXiv 2505.11807) for ALFWorld. Unlike in its release, a truncated episode bootstraps
from its last real observation, and no result depends on the number of rows in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from trailnotes.config.schema import Config
from trailnotes.config.section import Section, Text, key
from trailnotes.errors import ConfigError
from trailnotes.rollout.conversation import get_instruction
from trailnotes.storage.files import parse_json, read_jsonl, trajectory_from_json
from trailnotes.types import Task, Trajectory, derive_seed

RETROSPEX = "Retrospex, arXiv 2505.11807"


class RetrospexConfig(Section):
    """Retrospex: an offline critic that rescores what the policy proposes."""

    candidates: ClassVar[int] = 4  # k, actions that the policy proposes (release 6d169a4)

    data: tuple[Text, ...] = key((), "run directories whose trajectories.jsonl train the critic")
    critic: str = key("", "a critic trained before, instead of data")
    epochs: int = key(20, "passes over the transitions", "Retrospex release 6d169a4", ge=1)
    decay: float = key(0.97, "d: the policy weighs max(floor, d^t) at step t", RETROSPEX, gt=0, le=1)
    first_step: Literal[0, 1] = key(0, "t of the first action; 1 in ALFWorld", "Retrospex release 6d169a4")
    floor: float = key(0.6, "b: the policy's least weight", RETROSPEX, ge=0, le=1)


EPISODE_FILES = ("trajectories.jsonl", "episodes.jsonl")  # of a run or an adaptation, and of an evaluation


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of an episode without errors, in the texts that the critic reads."""

    task: str  # the instruction
    observation: str  # o_t
    action: str  # a_t as the environment received it
    reward: float  # r_t, in the environment's unit
    next_observation: str  # o_{t+1}; of an episode's last step the final observation
    terminated: bool  # the game ended here by its own rules: nothing follows that could be worth anything
    success: bool  # of the whole episode
    task_id: str
    episode: int  # number of the episode in the data


def read_episodes(places: Iterable[str | Path]) -> Iterator[Trajectory]:
    """Yield the episodes without errors of run directories or JSONL files; a truncated last line is skipped."""
    trajectories = map(trajectory_from_json, _iter_records(places))
    return (trajectory for trajectory in trajectories if trajectory.outcome != "error")


def _iter_records(places: Iterable[str | Path]) -> Iterator[dict[str, Any]]:
    return (record for place in places for record in read_jsonl(find_episode_file(Path(place))))


def read_games(places: Iterable[str | Path]) -> list[Task]:
    return list({task.id: task for task in (Task(**record["task"]) for record in _iter_records(places))}.values())


def load_critic_games(config: Config) -> list[Task]:
    settings = config.section(RetrospexConfig)
    if not settings.critic:
        return read_games(settings.data)
    file = Path(settings.critic) / "critic.json"
    try:
        games = parse_json(file.read_text(encoding="utf-8"))["games"]
    except (OSError, KeyError) as error:
        raise ConfigError(
            f"{file} does not say which games the critic learned from ({error}): train it again"
        ) from error
    return [Task(**game) for game in games]


def find_episode_file(place: Path) -> Path:
    """Return a file itself, or that of a directory: the first of `EPISODE_FILES` that exists."""
    for file in (place, *(place / name for name in EPISODE_FILES)):
        if file.is_file():
            return file
    raise ConfigError(f"{place} holds no episodes ({', '.join(EPISODE_FILES)}): name a run that has played")


def read_transitions(places: Sequence[str | Path]) -> list[Transition]:
    steps = [step for number, each in enumerate(read_episodes(places)) for step in build_transitions(each, number)]
    if not steps:
        raise ConfigError(f"no step of a good episode in {', '.join(map(str, places))}")
    return steps


def build_transitions(episode: Trajectory, number: int) -> list[Transition]:
    observations = [*(step.observation.text for step in episode.steps), episode.final_observation.text]
    return [
        Transition(
            task=get_instruction(episode), observation=observations[index], action=step.action,
            reward=step.reward, next_observation=observations[index + 1],
            terminated=index == len(episode.steps) - 1 and episode.outcome == "terminated",
            success=episode.success, task_id=episode.task.id, episode=number,
        )
        for index, step in enumerate(episode.steps)
    ]  # fmt: skip


def select_held_out_tasks(task_ids: Iterable[str], share: float, seed: int) -> frozenset[str]:
    """Select `share` of the tasks: at least one if `share` > 0 and another is left for training."""
    names = sorted(set(task_ids), key=lambda name: (derive_seed(seed, "held out", name), name))
    wanted = max(1, round(share * len(names))) if share else 0
    return frozenset(names[: min(wanted, len(names) - 1)])

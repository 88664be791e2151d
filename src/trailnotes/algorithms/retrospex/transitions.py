"""Transitions from the episodes on disk of any run: training, adaptation, evaluation.

Fields and reward rules are those of Retrospex (arXiv 2505.11807) for WebShop and ALFWorld. Unlike its release, a
truncated episode bootstraps from its last real observation, and no result depends on the number of rows in a file.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trailnotes.algorithms.retrospex import RetrospexConfig
from trailnotes.config.seeds import derive_seed
from trailnotes.errors import ConfigError
from trailnotes.storage.files import parse_json, read_jsonl
from trailnotes.storage.records import trajectory_from_json
from trailnotes.types import Task, Trajectory

if TYPE_CHECKING:
    from trailnotes.config.schema import Config

RewardRule = Literal["raw", "spread"]
FailureRule = Literal["raw", "floor0", "last_positive"]

EPISODE_FILES = ("trajectories.jsonl", "episodes.jsonl", "trial-*.jsonl")  # of a run, an evaluation, an adaptation


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
    """Yield the episodes without errors of run directories or JSONL files; a truncated last line is skipped.

    Raises:
        ConfigError: a place holds no episodes.
        RunError: a damaged line, by number.
    """
    trajectories = map(trajectory_from_json, _iter_records(places))
    return (trajectory for trajectory in trajectories if trajectory.outcome != "error")


def _iter_records(places: Iterable[str | Path]) -> Iterator[dict[str, Any]]:
    return (record for place in places for file in find_episode_files(Path(place)) for record in read_jsonl(file))


def read_games(places: Iterable[str | Path]) -> list[Task]:
    """Return the games of all episodes in `places`, each once. Raises as `read_episodes` does."""
    return list({task.id: task for task in (Task(**record["task"]) for record in _iter_records(places))}.values())


def load_critic_games(config: Config) -> list[Task]:
    """Return the games that the critic of a run was trained on, or will be.

    Raises:
        ConfigError: `retrospex.data` holds no episodes, or `retrospex.critic` lists no games.
    """
    settings = config.section(RetrospexConfig)
    if not settings.critic:
        return read_games(settings.data)
    file = Path(settings.critic) / "critic.json"
    try:
        games = parse_json(file.read_text(encoding="utf-8"))["games"]
    except OSError as error:
        raise ConfigError(f"{settings.critic} holds no critic ({error.strerror}): train one with "
                          "`trailnotes critic`") from error  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} does not say which games the critic learned from: train it again") from error
    return [Task(**game) for game in games]


def find_episode_files(place: Path) -> list[Path]:
    """Return the episode files of a directory: the first kind of `EPISODE_FILES` that exists.

    Raises:
        ConfigError: there is none.
    """
    if place.is_file():
        return [place]
    for pattern in EPISODE_FILES:
        if found := sorted(place.glob(pattern)):
            return found
    raise ConfigError(
        f"{place} holds no episodes ({', '.join(EPISODE_FILES)}): name the directory of a run that has played"
    )


def read_transitions(places: Iterable[str | Path], reward: RewardRule, failure: FailureRule) -> list[Transition]:
    """Read all steps of all episodes without errors, in the order of the files.

    Raises:
        ConfigError: there is not a single step.
    """
    places = list(places)
    episodes = enumerate(read_episodes(places))
    found = [step for number, episode in episodes for step in build_transitions(episode, number, reward, failure)]
    if not found:
        raise ConfigError(f"no step of a good episode in {', '.join(map(str, places)) or 'no directory'}")
    return found


def build_transitions(episode: Trajectory, number: int, reward: RewardRule, failure: FailureRule) -> list[Transition]:
    """Build the transitions of one episode; `number` identifies the episode."""
    if not episode.steps:
        return []
    observations = [step.observation.text for step in episode.steps] + [episode.final_observation.text]
    rewards = shape_rewards([step.reward for step in episode.steps], reward, failure)
    last = len(rewards) - 1
    return [
        Transition(
            task=episode.steps[0].observation.instruction or "", observation=observations[index], action=step.action,
            reward=rewards[index], next_observation=observations[index + 1],
            terminated=index == last and episode.outcome == "terminated",
            success=episode.success, task_id=episode.task.id, episode=number,
        )
        for index, step in enumerate(episode.steps)
    ]  # fmt: skip


def shape_rewards(rewards: Sequence[float], reward: RewardRule, failure: FailureRule) -> list[float]:
    """Shape the rewards of one episode by the named rules; the score is their running sum.

    A negative final score stays (`raw`), becomes 0 (`floor0`), or the last positive one before it, 0 if there was none
    (`last_positive`, Retrospex release 6d169a4); the last reward makes up the difference. Then `spread` gives each of
    the T steps the T-th part of the final score (release, WebShop).
    """
    shaped = list(rewards)
    score = math.fsum(shaped)
    if score < 0 and failure != "raw":
        positive = [running for running in itertools.accumulate(shaped) if running > 0]
        kept = positive[-1] if failure == "last_positive" and positive else 0.0
        shaped[-1] += kept - score
        score = kept
    return [score / len(shaped)] * len(shaped) if reward == "spread" else shaped


def select_held_out_tasks(task_ids: Iterable[str], share: float, seed: int) -> frozenset[str]:
    """Select `share` of the tasks: at least one if `share` > 0 and another is left for training."""
    names = sorted(set(task_ids), key=lambda name: (derive_seed(seed, "held out", name), name))
    wanted = max(1, round(share * len(names))) if share else 0
    return frozenset(names[: min(wanted, len(names) - 1)])


def compute_fingerprint(transitions: Sequence[Transition]) -> str:
    """Compute a hash of all training data of a critic."""
    digest = hashlib.sha256()
    for step in transitions:
        digest.update(repr(step).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:16]

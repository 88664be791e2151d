"""Forecast of a training's usage, extrapolated from a shrunk copy of it.

Rough: first iterations also fill caches, and episodes change in length as the policy does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_recorded_tasks
from trailnotes.runs.usage import USAGE_FIELDS
from trailnotes.storage.checkpoint import read_json

NUM_TRIAL_GAMES = 4  # to rehearse, that are played for it
NO_USAGE: Mapping[str, float] = {}


def shrink_config(config: Config) -> Config:
    """Shrink a training to one iteration, with few recorded games."""
    changes: dict[str, dict[str, Any]] = {
        "train": {"iterations": 1, "keep_optimizer": True},  # the optimizer's size is to be known
        "run": {"name": "dry run", "trackers": ()},
    }
    if count_rehearsal_episodes(config):
        changes["rehearsal"] = {"num_tasks": min(NUM_TRIAL_GAMES, config.rehearsal.num_tasks) or NUM_TRIAL_GAMES}
    sections = {name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    return config.model_copy(update=sections)


def estimate_iterations(config: Config, first: Mapping[str, Any], before: Mapping[str, float] = NO_USAGE) -> int:
    """Estimate the number of iterations from the usage of the `first` one, and of the run `before` it."""

    def done(number: int) -> bool:
        spent = {name: before.get(name, 0) + number * value for name, value in first.items() if name in USAGE_FIELDS}
        return config.train.compute_progress({**spent, "iteration": number}) > 1 - 1e-9

    return 1 + bisect_left(range(1, config.train.iterations), True, key=done)


def split_usage(
    config: Config, copy: Config, line: Mapping[str, Any], recorded: Mapping[str, float]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Split the copy's usage into its first iteration's and the run's recording.

    `line` is the first of the copy's metrics.jsonl, `recorded` the copy's usage for recording a rehearsal, if any.
    """
    first = {**line, **{name: line[name] - spent for name, spent in recorded.items()}}
    times = count_rehearsal_episodes(config) / count_rehearsal_episodes(copy) if recorded else 0.0
    return first, {name: spent * times for name, spent in recorded.items()}


class DiskUsage(NamedTuple):
    """Bytes of disk that a run takes."""

    most: float
    kept: float  # once it has ended


def estimate_disk(config: Config, copy: Path, repeats: float) -> DiskUsage:
    """Estimate the disk of a training: its checkpoints, one more during a write, and its episodes.

    `copy` is the directory of the shrunk run, with one checkpoint; `repeats` is the number of its logs in the run.
    """
    from trailnotes.learner.states import REST, STATE

    (saved,) = (copy / "checkpoints").glob("step-*")
    state = sum(count_bytes(saved / name) for name in STATE)
    model = count_bytes(saved) - state
    if not read_json(saved / REST)["steps"]:
        state *= 3  # where no step was taken it holds the weights, and neither of their two moments
    num = config.train.keep_last + bool(config.train.eval_every)
    episodes = (copy / "trajectories.jsonl").stat().st_size * repeats
    kept = model + state if config.train.keep_optimizer else model
    return DiskUsage((model + state) * (num + 1) + episodes, kept * num + episodes)


def count_bytes(place: Path) -> int:
    """Count the bytes of a file, or of all files below a directory; deleted files count 0."""
    size = 0
    for file in (place, *place.rglob("*")):
        with suppress(FileNotFoundError):
            size += file.stat().st_size if file.is_file() else 0
    return size


def count_rehearsal_episodes(config: Config) -> int:
    """Count the episodes that a training's initial model records."""
    return 2 * len(load_recorded_tasks(config))  # a trial without tips, and one with

"""What a run will take: a small copy of it is played, and what it played is extrapolated.

Rough: first iterations also fill caches, episodes change in length as the policy does, and games that are solved are
not played again. What fitting a critic takes grows with its data and is not extrapolated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trailnotes.config.methods import resolve_method
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import load_panel, load_recorded_tasks, panel, tasks_of
from trailnotes.runs.usage import USAGE_FIELDS
from trailnotes.storage.checkpoint import read_json

NUM_TRIAL_GAMES = 4  # of the panel, or to rehearse, that are played for it
NO_USAGE: Mapping[str, float] = {}


def shrink_config(config: Config) -> Config:
    """One iteration of a method that trains; of any other, one trial at a few games."""
    changes: dict[str, dict[str, Any]] = {
        "eval": {"num_tasks": min(NUM_TRIAL_GAMES, config.eval.num_tasks) or NUM_TRIAL_GAMES, "trials": 1},
        "rememberer": {"epochs": min(1, config.rememberer.epochs)},
        "retrospex": {"epochs": 1},
    }
    if resolve_method(config.algorithm.name).trains:
        changes = {"train": {"iterations": 1, "keep_optimizer": True}}  # whose size is to be known
        if count_rehearsal_episodes(config):
            rehearsal = config.rehearsal
            num_tasks, trials = min(NUM_TRIAL_GAMES, rehearsal.num_tasks) or NUM_TRIAL_GAMES, min(1, rehearsal.trials)
            changes["rehearsal"] = {"num_tasks": num_tasks, "num_samples": 1, "trials": trials}
    changes["run"] = {"name": "dry run", "tensorboard": False, "trackers": ()}
    sections = {name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    return config.model_copy(update=sections)


def compute_scale(config: Config, copy: Config) -> float:
    """How many times what its small copy played a run without training plays, of settings `config`."""
    return _count_episodes(config) / max(1, _count_episodes(copy))


def estimate_iterations(config: Config, first: Mapping[str, Any], before: Mapping[str, float] = NO_USAGE) -> int:
    """As often as the `first` iteration goes into the nearest limit of a training run.

    Args:
        config: of the run.
        first: what the iteration spent, by the names of `Usage`.
        before: what the run spends before it.
    """

    def done(number: int) -> bool:
        spent = {name: before.get(name, 0) + number * value for name, value in first.items() if name in USAGE_FIELDS}
        return config.train.compute_progress({**spent, "iteration": number}) > 1 - 1e-9

    return 1 + bisect_left(range(1, config.train.iterations), True, key=done)


def split_usage(
    config: Config, copy: Config, line: Mapping[str, Any], recorded: Mapping[str, float]
) -> tuple[dict[str, Any], dict[str, float]]:
    """What the copy's first iteration spent by itself, and what the run will spend before its own.

    Args:
        config: of the run.
        copy: as `small` made it.
        line: the first of the copy's metrics.jsonl.
        recorded: what the copy spent on recording what it rehearses; {} for nothing.
    """
    first = {**line, **{name: line[name] - spent for name, spent in recorded.items()}}
    times = count_rehearsal_episodes(config) / count_rehearsal_episodes(copy) if recorded else 0.0
    return first, {name: spent * times for name, spent in recorded.items()}


class DiskUsage(NamedTuple):
    """Bytes that a run takes."""

    most: float
    kept: float  # once it has ended


def estimate_disk(config: Config, copy: Path, repeats: float) -> DiskUsage:
    """What a training run will take at most: its checkpoints, one more while it is written, and its episodes.

    Args:
        config: of the run.
        copy: directory of the run made small, which has saved one checkpoint.
        repeats: how often what the copy logged goes into the run.
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
    """Of a file, or of all files below a directory; 0 where it is not. What a run deletes meanwhile is none."""
    size = 0
    for file in (place, *place.rglob("*")):
        with suppress(FileNotFoundError):
            size += file.stat().st_size if file.is_file() else 0
    return size


def count_rehearsal_episodes(config: Config) -> int:
    """Episodes that the start model of a training plays before it begins."""
    return len(load_recorded_tasks(config)) * config.rehearsal.num_samples * (config.rehearsal.trials + 1)


def _count_episodes(config: Config) -> int:
    """That a method without training plays at most."""
    played = len(load_panel(config)) * config.eval.num_samples
    if resolve_method(config.algorithm.name).repeats:
        return played * (config.eval.trials + 1)
    if config.algorithm.name == "rememberer":
        training = panel(tasks_of(config, config.train.split), config.rememberer.num_tasks)
        return played + len(training) * config.rememberer.epochs * config.rememberer.group_size
    return played

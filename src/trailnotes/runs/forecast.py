"""What a run will take: a small copy of it is played, and what it played is extrapolated.

Rough: first iterations also fill caches, episodes change in length as the policy does, and games that are solved are
not played again. What fitting a critic takes grows with its data and is not extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trailnotes.config.methods import method_of
from trailnotes.config.schema import Config
from trailnotes.envs.tasks import panel, panel_of, tasks_of

GAMES = 4  # of the panel that are played for it


def small(config: Config) -> Config:
    """One iteration of a method that trains; of any other, one trial at a few games."""
    changes: dict[str, dict[str, Any]] = {
        "eval": {"num_tasks": min(GAMES, config.eval.num_tasks) or GAMES, "trials": 1},
        "rememberer": {"epochs": min(1, config.rememberer.epochs)},
        "retrospex": {"epochs": 1},
    }
    if method_of(config.algorithm.name).trains:
        changes = {"train": {"iterations": 1}}
    changes["run"] = {"name": "dry run"}
    sections = {name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    return config.model_copy(update=sections)


def times(config: Config, copy: Config, line: Mapping[str, Any]) -> float:
    """How many times what its small copy played a run plays.

    Args:
        config: of the run.
        copy: as `small` made it.
        line: the last of the copy's metrics.jsonl.
    """
    if method_of(config.algorithm.name).trains:
        return iterations(config, line)
    return _num_episodes(config) / max(1, _num_episodes(copy))


def iterations(config: Config, first: Mapping[str, Any]) -> int:
    """As often as the `first` iteration goes into the nearest limit of a training run."""
    return math.ceil(round(1 / config.train.share({**first, "iteration": 1}), 6))  # 1 / (1 / n) may be above n


def _num_episodes(config: Config) -> int:
    """That a method without training plays at most."""
    played = len(panel_of(config)) * config.eval.num_samples
    if method_of(config.algorithm.name).repeats:
        return played * (config.eval.trials + 1)
    if config.algorithm.name == "rememberer":
        training = panel(tasks_of(config, config.train.split), config.rememberer.num_tasks)
        return played + len(training) * config.rememberer.epochs * config.rememberer.group_size
    return played

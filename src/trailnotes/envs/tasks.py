"""Which games are played, and when: every list here is a pure function of its arguments, in every process."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trailnotes.envs import env_tasks
from trailnotes.errors import ConfigError
from trailnotes.seeds import derive_seed
from trailnotes.types import Task

if TYPE_CHECKING:
    from trailnotes.config.schema import Config


def tasks_of(config: Config, split: str) -> list[Task]:
    """All tasks of `split` of the configured environment.

    Raises:
        ConfigError: the split is unknown or empty, or two tasks share an id (an id is a memory namespace).
    """
    tasks = env_tasks(config.env.name, split, config.env.options)
    if not tasks:
        raise ConfigError(f"split {split!r} of env.name = {config.env.name!r} has no tasks: name another split")
    repeated = [task_id for task_id, count in Counter(task.id for task in tasks).items() if count > 1]
    if repeated:
        raise ConfigError(f"split {split!r} of env.name = {config.env.name!r} has task id {repeated[0]!r} twice")
    return tasks


def batch_of(tasks: Sequence[Task], num: int, seed: int, iteration: int) -> list[Task]:
    """The `num` tasks of one iteration (from 0), cut from an endless row of shuffled epochs.

    Each epoch holds every task once, in an order of its own; a batch may span epochs.
    """
    if not tasks or num < 1 or iteration < 0:
        raise ValueError(f"need tasks, num >= 1 and iteration >= 0, got {len(tasks)} tasks, {num} and {iteration}")
    orders: dict[int, list[int]] = {}
    batch = []
    for position in range(iteration * num, (iteration + 1) * num):
        epoch, place = divmod(position, len(tasks))
        if epoch not in orders:
            orders[epoch] = _order(len(tasks), seed, epoch)
        batch.append(tasks[orders[epoch][place]])
    return batch


def panel(tasks: Sequence[Task], num: int) -> list[Task]:
    """`num` evenly spaced tasks, so that families listed one after the other all appear; 0 = all."""
    if num < 0:
        raise ValueError(f"a panel needs num >= 0, got {num}")
    if num == 0 or num >= len(tasks):
        return list(tasks)
    return [tasks[index * len(tasks) // num] for index in range(num)]


def _order(num: int, seed: int, epoch: int) -> list[int]:
    """Permutation of `num` indices. The same in every process."""
    order = list(range(num))
    random.Random(derive_seed(seed, "tasks", epoch)).shuffle(order)
    return order

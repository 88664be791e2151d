"""Lists of tasks and their schedule: pure functions of their arguments."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.config.methods import find_method, resolve_method
from trailnotes.envs.base import get_env_identity, list_env_tasks
from trailnotes.errors import ConfigError, EnvError, MissingExtraError
from trailnotes.types import Task, derive_seed

if TYPE_CHECKING:
    from trailnotes.config.schema import Config


def load_tasks(config: Config, split: str) -> list[Task]:
    """List all tasks of `split` of the configured environment."""
    tasks = list_env_tasks(config.env.name, split, config.env.options)
    if not tasks:
        raise ConfigError(f"split {split!r} of env.name = {config.env.name!r} has no tasks: name another split")
    [(most_common, count)] = Counter(task.id for task in tasks).most_common(1)
    if count > 1:  # an id is a memory namespace
        raise ConfigError(f"split {split!r} of env.name = {config.env.name!r} has task id {most_common!r} twice")
    return tasks


def load_identity(config: Config) -> dict[str, Any]:
    """Load what comparable results must share; {} where the environment is absent or does not say."""
    try:
        return get_env_identity(config.env.name, config.env.options)
    except (ConfigError, EnvError, MissingExtraError):
        return {}


def select_batch(tasks: Sequence[Task], num: int, seed: int, iteration: int) -> list[Task]:
    """Select the tasks of one iteration (from 0), cut from an endless row of shuffled epochs.

    Each epoch holds every task once, in an order of its own; a batch may span epochs.
    """
    orders: dict[int, list[int]] = {}
    batch = []
    for position in range(iteration * num, (iteration + 1) * num):
        epoch, place = divmod(position, len(tasks))
        if epoch not in orders:
            orders[epoch] = list(range(len(tasks)))
            random.Random(derive_seed(seed, "tasks", epoch)).shuffle(orders[epoch])
        batch.append(tasks[orders[epoch][place]])
    return batch


def panel(tasks: Sequence[Task], num: int) -> list[Task]:
    """Select `num` evenly spaced tasks, so that all families appear; 0 = all."""
    if num == 0 or num >= len(tasks):
        return list(tasks)
    return [tasks[index * len(tasks) // num] for index in range(num)]


def load_training_tasks(config: Config) -> list[Task]:
    return panel(load_tasks(config, config.train.split), config.train.num_tasks)


def load_panel(config: Config) -> list[Task]:
    """Load the tasks of the panel that `config.eval` plays: always the same."""
    if not config.eval.split:
        raise ConfigError("eval.split is empty, so there is no panel to play: name the split, as in --eval.split test")
    return panel(load_tasks(config, config.eval.split), config.eval.num_tasks)


def load_validation_tasks(config: Config) -> list[Task]:
    """Load the validation tasks, as many as the panel's, of `train.validation_split`."""
    return panel(load_tasks(config, config.train.validation_split), config.eval.num_tasks)


def validate_splits(config: Config) -> None:
    """Refuse to learn from games of the panel or the validation. Plays and loads nothing."""
    method, train = resolve_method(config.algorithm.name), config.train
    if method.trains:
        games, source = load_tasks(config, train.split), f"train.split = {train.split!r}"
        if train.eval_every:
            validation = load_validation_tasks(config)
            chosen_by = f"train.validation_split = {train.validation_split!r}"
            _require_disjoint(games, source, validation, f"the validation ({chosen_by})")
            validate_learning_tasks(validation, chosen_by, config)
        validate_learning_tasks(games, source, config)
    if learned_from := method.load_task_lister():
        validate_learning_tasks(learned_from(config), f"what {method.label} learns from", config)


def validate_learning_tasks(games: Iterable[Task], source: str, config: Config) -> None:
    """Refuse to learn from `games`, which `source` names, where the panel of `config`, if any, holds one of them."""
    _require_disjoint(games, source, _load_panel_if_any(config), f"the panel (eval.split = {config.eval.split!r})")


def _load_panel_if_any(config: Config) -> list[Task]:
    try:
        return load_panel(config) if config.eval.split else []
    except (ConfigError, EnvError):
        return []


def validate_rehearsal_tasks(games: Sequence[Task], source: str, config: Config) -> None:
    """Refuse to rehearse games that are trained on or evaluated.

    A game anchored to the start model cannot be learned, and a rehearsed game is not new to the model.
    """
    validate_learning_tasks(games, source, config)
    for name, own in load_used_tasks(config).items():
        if both := find_shared_tasks(games, own):
            raise ConfigError(f"{source}: {both[0].id} is a game of {name}: rehearse games that no other split has")


def select_unused(games: Sequence[Task], config: Config) -> list[Task]:
    used = [task for own in load_used_tasks(config).values() for task in own] + _load_panel_if_any(config)
    taken = {task.id for task in find_shared_tasks(used, games)}
    return [task for task in games if task.id not in taken]


def load_used_tasks(config: Config) -> dict[str, list[Task]]:
    """Load the games that a training itself plays, by the setting that names them."""
    train = config.train
    used = {f"train.split = {train.split!r}": load_tasks(config, train.split)}
    if train.eval_every:
        used[f"train.validation_split = {train.validation_split!r}"] = load_validation_tasks(config)
    return used


def load_rehearsal_tasks(config: Config) -> list[Task]:
    """Load the games that a run rehearses, as far as they are known: of a split, or named by a file."""
    path = config.rehearsal.path
    if path and resolve_method(config.algorithm.name).writes_tips:
        from trailnotes.storage.demonstrations import read_demonstrations

        return [each.task for each in read_demonstrations(Path(path), "rehearsal.path") if each.task]
    return load_recorded_tasks(config)


def load_recorded_tasks(config: Config) -> list[Task]:
    """Load the games that the start model plays before a training for rehearsal; none where a file is given."""
    rehearsal, method = config.rehearsal, resolve_method(config.algorithm.name)
    if rehearsal.path or not (rehearsal.split and method.trains and method.writes_tips):
        return []
    env = config.env.model_copy(update={"options": {**config.env.options, **rehearsal.options}})
    return panel(load_tasks(config.model_copy(update={"env": env}), rehearsal.split), rehearsal.num_tasks)


def describe_training_overlap(trained: Config | None, config: Config) -> str:
    """Describe the games of the panel that a run of settings `trained` learned from; "" for none.

    Data of another identity is reported too, since the overlap is then unknown.
    """
    if trained is None or has_other_env_code(trained, config):
        return ""
    method = find_method(trained.algorithm.name)
    if not method.trains:
        return ""
    try:
        games, examined = load_tasks(trained, trained.train.split), load_panel(config)
    except (ConfigError, EnvError, MissingExtraError):  # an environment that is not here has nothing to compare
        return ""
    overlap = _format_overlap(find_shared_tasks(games, examined), examined, "the model was trained on")
    with contextlib.suppress(ConfigError, EnvError):  # the file of a run may have gone
        rehearsed = load_rehearsal_tasks(trained) if method.writes_tips else []
        overlap = overlap or _format_overlap(find_shared_tasks(rehearsed, examined), examined, "the model rehearsed")
    before, now = load_identity(trained), load_identity(config)
    if overlap or not (differing := [key for key in before if key in now and before[key] != now[key]]):
        return overlap
    return f"the model was trained with another {', '.join(differing)}: whether this panel is unseen cannot be told"


def has_other_env_code(trained: Config, config: Config) -> bool:
    """Tell whether a possibly untrusted run names a module that `config` does not: listing its tasks imports it."""
    return ":" in trained.env.name and trained.env.name != config.env.name


def describe_tip_overlap(namespaces: Iterable[str], config: Config) -> str:
    """Describe the games of the panel that tips of these namespaces are about; "" for none."""
    examined, known = load_panel(config), set(namespaces)
    return _format_overlap([task for task in examined if task.id in known], examined, "the tips are about")


def _format_overlap(both: Sequence[Task], examined: Sequence[Task], how: str) -> str:
    if not both:
        return ""
    return f"{how} {len(both)} of the {len(examined)} games of this panel, {both[0].id} for one: they are not unseen"


def _require_disjoint(games: Iterable[Task], source: str, kept: Sequence[Task], name: str) -> None:
    if both := find_shared_tasks(games, kept):
        raise ConfigError(
            f"{source}: {len(both)} of the {len(kept)} games of {name} are among them, {both[0].id} for one, and what "
            'is learned from cannot be examined: give each split games of its own, or set eval.split = ""'
        )


def find_shared_tasks(games: Iterable[Task], others: Sequence[Task]) -> list[Task]:
    """Find the tasks of `others` that are among `games`, under any name and in any split.

    Two tasks are one game if they have the same id, or the same environment, seed and options. The latter does not
    count where tasks of one list have them in common, or where there is nothing but seed 0: then the id is the game.
    """
    known = {task.id: task for task in games}
    mine, theirs = (Counter(map(_build_game_key, tasks)) for tasks in (known.values(), others))
    unclear = {game for counts in (mine, theirs) for game, count in counts.items() if count > 1}
    clear = {game for game in mine if game not in unclear}
    return [task for task in others if task.id in known or _build_game_key(task) in clear]


def _build_game_key(task: Task) -> str:
    if not task.seed and not task.options:
        return task.id
    return json.dumps([task.env, task.seed, dict(task.options)], sort_keys=True, default=str)

"""Which games are played, and when: every list here is a pure function of its arguments, in every process."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.config.methods import find_method, resolve_method
from trailnotes.envs import get_env_identity, list_env_tasks
from trailnotes.errors import ConfigError, EnvError, MissingExtraError
from trailnotes.seeds import derive_seed
from trailnotes.types import Task

if TYPE_CHECKING:
    from trailnotes.config.schema import Config


def tasks_of(config: Config, split: str) -> list[Task]:
    """All tasks of `split` of the configured environment.

    Raises:
        ConfigError: the split is unknown or empty, or two tasks share an id (an id is a memory namespace).
    """
    tasks = list_env_tasks(config.env.name, split, config.env.options)
    if not tasks:
        raise ConfigError(f"split {split!r} of env.name = {config.env.name!r} has no tasks: name another split")
    repeated = [task_id for task_id, count in Counter(task.id for task in tasks).items() if count > 1]
    if repeated:
        raise ConfigError(f"split {split!r} of env.name = {config.env.name!r} has task id {repeated[0]!r} twice")
    return tasks


def load_identity(config: Config) -> dict[str, Any]:
    """What results must have in common to be comparable, as the environment says; {} where it says nothing.

    An environment that is not here says so itself when it is played.
    """
    try:
        return get_env_identity(config.env.name, config.env.options)
    except (ConfigError, EnvError, MissingExtraError):
        return {}


def select_batch(tasks: Sequence[Task], num: int, seed: int, iteration: int) -> list[Task]:
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
            orders[epoch] = _shuffle_indices(len(tasks), seed, epoch)
        batch.append(tasks[orders[epoch][place]])
    return batch


def panel(tasks: Sequence[Task], num: int) -> list[Task]:
    """`num` evenly spaced tasks, so that families listed one after the other all appear; 0 = all."""
    if num < 0:
        raise ValueError(f"a panel needs num >= 0, got {num}")
    if num == 0 or num >= len(tasks):
        return list(tasks)
    return [tasks[index * len(tasks) // num] for index in range(num)]


def load_training_tasks(config: Config) -> list[Task]:
    """The tasks of the training."""
    return panel(tasks_of(config, config.train.split), config.train.num_tasks)


def load_panel(config: Config) -> list[Task]:
    """The tasks of the panel that `config.eval` examines: always the same."""
    if not config.eval.split:
        raise ConfigError("eval.split is empty, so there is no panel to play: name the split, as in --eval.split test")
    return panel(tasks_of(config, config.eval.split), config.eval.num_tasks)


# -- what is learned from is never examined


def load_validation_tasks(config: Config) -> list[Task]:
    """The tasks of the validation: as many as the panel, of `train.validation_split`."""
    return panel(tasks_of(config, config.train.validation_split), config.eval.num_tasks)


def load_new_tasks(config: Config) -> list[Task]:
    """The tasks of families never trained that are played during training: as many, of `train.new_split`."""
    return panel(tasks_of(config, config.train.new_split), config.eval.num_tasks)


def validate_splits(config: Config) -> None:
    """Refuse a method that learns from a game of the panel, or whose validation plays one. Plays and loads nothing.

    Raises:
        ConfigError: names both lists, a game that they share, and the fix; or a list cannot be made.
    """
    method, train = resolve_method(config.algorithm.name), config.train
    if method.trains:
        games, source = tasks_of(config, train.split), f"train.split = {train.split!r}"
        if train.eval_every or train.eval_notes_every:
            validation = load_validation_tasks(config)
            chosen_by = f"train.validation_split = {train.validation_split!r}"
            _require_disjoint(games, source, validation, f"the validation ({chosen_by})")
            validate_learning_tasks(validation, chosen_by, config)
        validate_learning_tasks(games, source, config)
        if train.eval_notes_every and train.new_split:
            require_outside_panel(tasks_of(config, train.new_split), f"train.new_split = {train.new_split!r}", config)
    if learned_from := method.load_task_lister():
        validate_learning_tasks(learned_from(config), f"what {method.label} learns from", config)


def validate_learning_tasks(games: Iterable[Task], source: str, config: Config) -> None:
    """Refuse to learn from `games` where a panel of `config` holds one of them; `source` says what they are.

    The panels are the one that is examined, and the new families that are watched during training.

    An environment without the split `eval.split` has nothing to examine, and nothing is refused.

    Raises:
        ConfigError: as `validate_splits`.
    """
    games = list(games)
    if config.train.eval_notes_every and (split := config.train.new_split):
        _require_disjoint(games, source, tasks_of(config, split), f"the new families (train.new_split = {split!r})")
    require_outside_panel(games, source, config)


def require_outside_panel(games: Iterable[Task], source: str, config: Config) -> None:
    """Refuse `games`, which `source` names, where the panel of `config` holds one of them. Raises `ConfigError`."""
    _require_disjoint(games, source, _load_panel_if_any(config), f"the panel (eval.split = {config.eval.split!r})")


def _load_panel_if_any(config: Config) -> list[Task]:
    """The panel; none where there is no such split: whoever asks for the panel itself is told why."""
    try:
        return load_panel(config) if config.eval.split else []
    except (ConfigError, EnvError):
        return []


def validate_rehearsal_tasks(games: Sequence[Task], source: str, config: Config) -> None:
    """Refuse to rehearse `games` of which one is trained on or examined; `source` says what they are.

    What is held to the start model cannot be learned; what is shown to the model is not new to it.

    Raises:
        ConfigError: names both lists, a game that they share, and the fix.
    """
    validate_learning_tasks(games, source, config)
    for name, own in load_used_tasks(config).items():
        if both := find_shared_tasks(games, own):
            raise ConfigError(f"{source}: {both[0].id} is a game of {name}: rehearse games that no other split has")


def select_unused(games: Sequence[Task], config: Config) -> list[Task]:
    """Those of `games` that `config` neither trains on nor examines."""
    used = [task for own in load_used_tasks(config).values() for task in own] + _load_panel_if_any(config)
    taken = {task.id for task in find_shared_tasks(used, games)}
    return [task for task in games if task.id not in taken]


def load_used_tasks(config: Config) -> dict[str, list[Task]]:
    """The games that a training itself plays, by the setting that names them."""
    train = config.train
    used = {f"train.split = {train.split!r}": tasks_of(config, train.split)}
    if train.eval_every or train.eval_notes_every:
        used[f"train.validation_split = {train.validation_split!r}"] = load_validation_tasks(config)
    if train.eval_notes_every and train.new_split:
        used[f"train.new_split = {train.new_split!r}"] = tasks_of(config, train.new_split)
    return used


def load_rehearsal_tasks(config: Config) -> list[Task]:
    """The games that a run of these settings rehearses, as far as they are known: of a split, or told by a file.

    Raises:
        ConfigError: the split is unknown, or the file cannot be read.
    """
    path = config.rehearsal.path
    if path and resolve_method(config.algorithm.name).writes_tips:
        from trailnotes.storage.demonstrations import read_demonstrations

        return [each.task for each in read_demonstrations(Path(path), "rehearsal.path") if each.task]
    return load_recorded_tasks(config)


def load_recorded_tasks(config: Config) -> list[Task]:
    """The games that the start model plays before a training, to record what is rehearsed; none where a file is given.

    Raises:
        ConfigError: the split is unknown.
    """
    rehearsal, method = config.rehearsal, resolve_method(config.algorithm.name)
    if rehearsal.path or not (rehearsal.split and method.trains and method.writes_tips):
        return []
    env = config.env.model_copy(update={"options": {**config.env.options, **rehearsal.options}})
    return panel(tasks_of(config.model_copy(update={"env": env}), rehearsal.split), rehearsal.num_tasks)


def describe_training_overlap(trained: Config | None, config: Config) -> str:
    """A sentence if the panel of `config` holds games that a run of settings `trained` learned from; else "".

    Also where the environment says that the run had goals or data of another identity: then nobody can tell.
    """
    if trained is None or has_other_env_code(trained, config):
        return ""
    method = find_method(trained.algorithm.name)
    if not method.trains:
        return ""
    try:
        games, examined = tasks_of(trained, trained.train.split), load_panel(config)
    except (ConfigError, EnvError, MissingExtraError):  # an environment that is not here has nothing to compare
        return ""
    said = _format_overlap(find_shared_tasks(games, examined), examined, "the model was trained on")
    with contextlib.suppress(ConfigError, EnvError):  # the file of a run may have gone
        rehearsed = load_rehearsal_tasks(trained) if method.writes_tips else []
        said = said or _format_overlap(find_shared_tasks(rehearsed, examined), examined, "the model rehearsed")
    return said or _describe_identity_mismatch(load_identity(trained), load_identity(config))


def has_other_env_code(trained: Config, config: Config) -> bool:
    """Whether a run of settings `trained`, which may be somebody else's, names a module that `config` in use does not.

    What it was trained on is not asked then: listing the tasks of an environment imports it.
    """
    return ":" in trained.env.name and trained.env.name != config.env.name


def describe_tip_overlap(namespaces: Iterable[str], config: Config) -> str:
    """A sentence if tips of these namespaces were written about games of the panel; else ""."""
    examined, known = load_panel(config), set(namespaces)
    return _format_overlap([task for task in examined if task.id in known], examined, "the tips are about")


def _format_overlap(both: Sequence[Task], examined: Sequence[Task], how: str) -> str:
    if not both:
        return ""
    return f"{how} {len(both)} of the {len(examined)} games of this panel, {both[0].id} for one: they are not unseen"


def _describe_identity_mismatch(trained: Mapping[str, Any], examined: Mapping[str, Any]) -> str:
    differing = [key for key in trained if key in examined and trained[key] != examined[key]]
    if not differing:
        return ""
    return f"the model was trained with another {', '.join(differing)}: whether this panel is unseen cannot be told"


def _require_disjoint(games: Iterable[Task], source: str, kept: Sequence[Task], name: str) -> None:
    if both := find_shared_tasks(games, kept):
        raise ConfigError(
            f"{source}: {len(both)} of the {len(kept)} games of {name} are among them, {both[0].id} for one, and what "
            "is learned from cannot be examined: give each split games of its own (another id, and another seed or "
            'other options), name another split, or set eval.split = "" to hold no games back'
        )


def find_shared_tasks(games: Iterable[Task], others: Sequence[Task]) -> list[Task]:
    """Those of `others` that are among `games`, under whatever name and in whichever split.

    Two tasks are one game if they have the same id, or the same environment, seed and options. The latter does not
    count where tasks of one list have them in common, or where there is nothing but seed 0: then the id is the game.
    """
    known = {task.id: task for task in games}
    mine, theirs = _count_games(known.values()), _count_games(others)
    unclear = {game for counts in (mine, theirs) for game, count in counts.items() if count > 1}
    return [
        task
        for task in others
        if task.id in known or (mine[_build_game_key(task)] and _build_game_key(task) not in unclear)
    ]


def _count_games(tasks: Iterable[Task]) -> Counter[str]:
    return Counter(_build_game_key(task) for task in tasks)


def _build_game_key(task: Task) -> str:
    """What is played, whatever it is called."""
    if not task.seed and not task.options:
        return task.id
    return json.dumps([task.env, task.seed, dict(task.options)], sort_keys=True, default=str)


def _shuffle_indices(num: int, seed: int, epoch: int) -> list[int]:
    """Permutation of `num` indices. The same in every process."""
    order = list(range(num))
    random.Random(derive_seed(seed, "tasks", epoch)).shuffle(order)
    return order

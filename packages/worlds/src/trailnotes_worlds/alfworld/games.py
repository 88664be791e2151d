"""Games of ALFWorld: generated from floor plans, or published in its data.

Source: Shridhar et al. 2021, "ALFWorld: Aligning Text and Embodied Environments for Interactive Learning" (arXiv
2010.03768), package 0.4.2.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from trailnotes.envs.base import require_choice, require_int
from trailnotes.errors import ConfigError
from trailnotes.storage.files import parse_json
from trailnotes.types import Task
from trailnotes_worlds.alfworld.rooms import FLOOR_PLANS, TASK_TYPES, list_floor_plans
from trailnotes_worlds.third_party import resolve_names

GAMES = ("generated", "published")
# Split -> its folder in the data. The test split has unseen rooms.
FOLDERS = {"train": "train", "validation": "valid_seen", "test": "valid_unseen"}
GAME_FILE = "game.tw-pddl"
_SEEDS_PER_SPLIT = 100_000
_UNSUPPORTED = ("movable", "Sliced")  # in folder names of kinds of task that the package leaves out


def alfworld_tasks(
    split: str,
    games: str = "generated",
    task_types: str | Sequence[str] = "all",
    num_games: int = 20,
    dataset_seed: int = 0,
    data: str = "",
) -> list[Task]:
    """List the games of one split, one kind of task after the other.

    Args:
        split: train, validation or test. Their floor plans are disjoint, except those of published validation games
            (valid_seen), which are rooms of the train split.
        games: "generated" from the floor plans, or "published" by `alfworld-download`.
        task_types: a kind of task, "all", or a list.
        num_games: of each kind; published ones are the first by name, and 0 takes all of them.
        dataset_seed: of generated games.
        data: folder of the published ones; "" takes that of ALFWORLD_DATA.

    Raises:
        ConfigError: an unknown name, a number out of range, or no data.
        MissingExtraError: the package is not installed.
    """
    require_choice("split", split, FOLDERS)
    kinds = resolve_names("task_types", task_types, TASK_TYPES)
    published = require_choice("games", games, GAMES) == "published"
    require_int("num_games", num_games, 0 if published else 1, _SEEDS_PER_SPLIT)
    require_int("dataset_seed", dataset_seed, 0, 9999)
    if published:
        names = _list_published_games(find_data_folder(data) / FOLDERS[split])
        by_kind = {kind: [name for name in names if name.split("/")[1].partition("-")[0] == kind] for kind in kinds}
        return [
            Task(f"alfworld/{name}", "alfworld", 0, split, {"type": kind, "game": name}, f"alfworld/{kind}")
            for kind, own in by_kind.items()
            for name in (own[:num_games] if num_games else own)
        ]
    first = (dataset_seed * len(FLOOR_PLANS) + list(FOLDERS).index(split)) * _SEEDS_PER_SPLIT
    tasks = []
    for kind in kinds:
        plans, family = list_floor_plans(split, kind), f"alfworld/{kind}"
        for seed in range(first, first + num_games):
            options = {"type": kind, "plan": plans[seed % len(plans)]}
            tasks.append(Task(f"{family}/{split}-{seed}", "alfworld", seed, split, options, family))
    return tasks


def find_data_folder(data: str) -> Path:
    """Find the folder ``json_2.1.1`` of the published games. Raises `ConfigError` if there is none."""
    root = data or os.environ.get("ALFWORLD_DATA", "")
    if not root:
        raise ConfigError('games = "published" needs them: run alfworld-download, and set data or ALFWORLD_DATA')
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: correct env.options.data or ALFWORLD_DATA")
    inner = folder / "json_2.1.1"
    return inner if inner.is_dir() else folder


@lru_cache(8)
def _list_published_games(folder: Path) -> tuple[str, ...]:
    # The package plays only solvable games of supported kinds.
    names = []
    for file in sorted(folder.glob(f"*/*/{GAME_FILE}")):
        name = file.parent.relative_to(folder.parent).as_posix()
        if any(word in name for word in _UNSUPPORTED):
            continue
        if parse_json(file.read_text(encoding="utf-8")).get("solvable"):
            names.append(name)
    if not names:
        raise ConfigError(f"there are no games in {folder}: run alfworld-download, or alfworld-generate")
    return tuple(names)

"""ALFWorld as an environment: find things in a room, clean, heat or cool them, and put them in their places.

Source: Shridhar et al. 2021 (arXiv 2010.03768), package 0.4.2. See ``docs/envs/alfworld.md``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trailnotes.envs.base import match_offered, require_choice, require_int
from trailnotes.errors import ConfigError, EnvError
from trailnotes.storage.files import parse_json
from trailnotes.types import Observation, Task
from trailnotes_worlds.alfworld.engine import AlfworldEngine, read_game, translate_game
from trailnotes_worlds.alfworld.rooms import (
    FLOOR_PLANS,
    TASK_TYPES,
    VERSION,
    generate_game,
    import_alfworld_module,
    list_floor_plans,
)
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
    require_choice("split", split, FOLDERS, where="")
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


MAX_STEPS = 50  # as in the literature


class AlfworldEnv:
    """Household tasks in text: find things, clean, heat or cool them, and put them in their places.

    The games are generated or downloaded, and played on the package's engine.
    """

    memory_bytes = 33e6  # measured

    def __init__(
        self, *, games: str = "generated", data: str = "", max_steps: int = MAX_STEPS, actions: bool = True
    ) -> None:
        """Set the options; the first reset loads the engine.

        Args:
            games: "generated", or "published" ones, whose folder is looked for.
            data: folder of the published games; "" takes that of ALFWORLD_DATA.
            max_steps: actions until the episode is truncated.
            actions: offer the admissible actions.
        """
        import_alfworld_module("info")  # reports missing packages early
        if require_choice("games", games, GAMES) == "published":
            find_data_folder(data)
        self._max_steps, self._offers, self._data = require_int("max_steps", max_steps, 1, 100_000), bool(actions), data
        self._engine: AlfworldEngine | None = None
        self._steps_left = 0

    tasks = staticmethod(alfworld_tasks)

    @staticmethod
    def identity(games: str = "generated") -> dict[str, Any]:
        """Return the versions of the package, which determines the texts, and of the generator."""
        generator = {"generator": VERSION} if games == "generated" else {}
        return {"alfworld": version("alfworld"), "games": games, **generator}

    def reset(self, task: Task) -> Observation:
        """Start `task`. The first time in a process this translates its game, which takes most of a second."""
        self._steps_left = 0
        problem, words = self._load_game(task)
        self._engine = self._engine or AlfworldEngine()
        seen = self._engine.begin(translate_game(problem), words)
        self._steps_left = self._max_steps
        return Observation(seen, actions=self._get_offered_actions(), instruction=f"{words}.")

    def step(self, action: str) -> Observation:
        """Take one action; case and final punctuation of an admissible one do not matter, and others have no effect."""
        if not self._steps_left or self._engine is None:
            raise EnvError("the episode is over, or it failed, or none has begun: call reset before step")
        left, self._steps_left = self._steps_left - 1, 0  # an error below ends the episode
        feedback = self._engine.step(match_offered(action, self._engine.commands))
        won = self._engine.won
        self._steps_left = 0 if won else left
        return Observation(
            feedback,
            reward=float(won),
            terminated=won,
            truncated=not won and not left,
            actions=self._get_offered_actions(over=won),
            success=won,
            score=float(won),
        )

    def solution(self, task: Task) -> tuple[str, ...]:
        """Return actions that win `task`, from an expert or the published game, and end the current episode."""
        self.reset(task)
        self._steps_left = 0
        if "game" in task.options:
            walk = parse_json(self._read_game_file(task)).get("walkthrough")
            if not isinstance(walk, list) or not walk:
                raise EnvError(f"{task.id} has no walkthrough: make one with alfworld-generate --expert_type planner")
            return tuple(map(str, walk))
        assert self._engine
        return self._engine.format_plan(generate_game(task.options["plan"], task.options["type"], task.seed).plan)

    def close(self) -> None:
        self._steps_left = 0
        if self._engine:
            self._engine.close()
        self._engine = None

    def _load_game(self, task: Task) -> tuple[str, str]:
        if "game" in task.options:
            return read_game(self._read_game_file(task))
        plan, kind = task.options.get("plan"), task.options.get("type")
        if not isinstance(plan, int) or kind not in TASK_TYPES:
            raise ConfigError(f"task {task.id} is no task of ALFWorld: it has neither a game nor a plan and a type")
        game = generate_game(plan, kind, task.seed)
        return game.problem, game.task

    def _read_game_file(self, task: Task) -> str:
        path = find_data_folder(self._data) / str(task.options["game"]) / GAME_FILE
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise EnvError(f"{task.id} cannot be read: download the data again") from error

    def _get_offered_actions(self, *, over: bool = False) -> tuple[str, ...] | None:
        if not self._offers:
            return None
        assert self._engine
        return () if over else self._engine.commands

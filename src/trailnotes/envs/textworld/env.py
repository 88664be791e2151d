"""TextWorld: any compiled ``.z8`` game with its ``.json`` beside it, a folder of them, or TextWorld's own generators.

Source: Côté et al. 2018, "TextWorld: A Learning Environment for Text-based Games" (arXiv 1806.11532).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from trailnotes.envs.base import strip_intent
from trailnotes.envs.options import require_int, suggest_nearest
from trailnotes.envs.textworld.interpreter import (
    GameAnswer,
    GamePosition,
    build_cached_game,
    clean_answer,
    get_textworld_version,
    open_interpreter,
    play_command,
    require_complete_game,
    require_textworld,
    sanitize_action,
)
from trailnotes.errors import ConfigError, EnvError
from trailnotes.types import Observation, Task

SPLITS = ("train", "validation", "test")
_SEEDS_PER_SPLIT = 100_000
_BOOLEANS = (False, True)

# Settings of each generator with what they may be; the first is the default.
GENERATORS: dict[str, dict[str, Collection[Any]]] = {
    "treasure_hunter": {"level": range(1, 31)},
    "coin_collector": {"level": range(1, 301)},
    "cooking": {
        "recipe": range(1, 6), "take": range(6), "go": (1, 6, 9, 12), "open": _BOOLEANS, "cook": _BOOLEANS,
        "cut": _BOOLEANS, "drop": _BOOLEANS, "recipe_seed": range(2**31),
    },
    "simple": {"rewards": ("dense", "balanced", "sparse"), "goal": ("detailed", "brief", "none")},
}  # fmt: skip

# Commands that would leave the game, write files, or show what only its author may see.
_FORBIDDEN = re.compile(
    r"(?:^|[.,;]|\bthen\b)\s*(?:quit|q|restart|restore|save|script|transcript|verify|undo|restrict"
    r"|print_sta\w*|enable|disable|tw-\S*)(?:\s|[.,;]|$)",
    re.IGNORECASE,
)


class TextWorldEnv:
    """TextWorld games. The action is one line for the game's own parser."""

    def __init__(
        self, actions: bool = False, max_steps: int = 50, cache_dir: str | Path | None = None, **task_options: Any
    ) -> None:
        """Choose what is offered and for how long.

        `actions` offers admissible actions, which is slower; `task_options` are checked here and used by `tasks`.
        """
        _validate_source(**task_options)
        self._offers_actions = actions
        self._max_steps = require_int("max_steps", max_steps)
        self._folder = Path(cache_dir) if cache_dir else None
        self._game: _GameSession | None = None
        self._steps_left = 0
        self._score = 0
        self._max_score = 1.0

    @staticmethod
    def tasks(split: str, **options: Any) -> list[Task]:
        """List the games of `split` (train, validation, test), from `path` or from `generator`.

        ``path`` is a ``.z8`` file or a folder of them; its subfolders train, validation and test are the splits, if
        they exist. ``generator`` takes ``num_games`` (20), ``dataset_seed`` (0) and its own settings (`GENERATORS`);
        seeds of splits are disjoint.
        """
        if split not in SPLITS:
            raise ConfigError(f"unknown split {split!r}; use one of {', '.join(SPLITS)}")
        source = {key: value for key, value in options.items() if key not in ("actions", "max_steps", "cache_dir")}
        path, generator, num_games, dataset_seed, settings = _validate_source(**source)
        if path:
            return _list_file_tasks(split, Path(path))
        first = (dataset_seed * len(SPLITS) + SPLITS.index(split)) * _SEEDS_PER_SPLIT
        family = "textworld/" + "-".join([generator, *(f"{key}{settings[key]}" for key in sorted(settings))])
        chosen = {"generator": generator, "settings": settings}
        seeds = range(first, first + num_games)
        return [Task(f"{family}/{split}-{seed}", "textworld", seed, split, chosen, family) for seed in seeds]

    def reset(self, task: Task) -> Observation:
        path = self._resolve_path(task)
        objective, self._max_score = _load_game_info(path)
        self.close()
        self._game = _TrackedSession(path) if self._offers_actions else _GameSession(path)
        self._steps_left = self._max_steps
        answer = self._game.answer
        self._score = answer.score or 0
        return Observation(
            answer.text, actions=self._game.actions, instruction=objective, score=float(self._score),
            max_score=self._max_score,
        )  # fmt: skip

    def step(self, action: str) -> Observation:
        """Say one line to the game; ``info["action_refused"]`` when it was cut or is forbidden."""
        if self._game is None or not self._steps_left:
            raise EnvError("the episode is over: call reset before step")
        command, refused = sanitize_action(strip_intent(action))
        if refused or _FORBIDDEN.search(command):
            command, refused = "", True
        answer = self._game.send(command)
        over = answer.won or answer.lost
        self._steps_left = 0 if over else self._steps_left - 1
        before, self._score = self._score, self._score if answer.score is None else answer.score
        return Observation(
            answer.text, reward=float(self._score - before), terminated=over,
            truncated=not over and not self._steps_left,
            actions=() if over and self._offers_actions else self._game.actions, success=answer.won,
            score=float(self._score), max_score=self._max_score, info={"action_refused": True} if refused else {},
        )  # fmt: skip

    def close(self) -> None:
        if self._game:
            self._game.close()
        self._game = None
        self._steps_left = 0

    def _resolve_path(self, task: Task) -> Path:
        if "path" in task.options:
            return _require_game_file(Path(task.options["path"]))
        generator = task.options["generator"]
        description = {
            "generator": generator, "settings": dict(task.options["settings"]),
            "split": task.split if generator in ("cooking", "simple") else "", "seed": task.seed,
            "textworld": get_textworld_version(),
        }  # fmt: skip
        return build_cached_game(description, lambda path: _generate_game(task, path), self._folder)


class _GameSession:
    """One episode on the shared, open game."""

    actions: tuple[str, ...] | None = None

    def __init__(self, path: Path) -> None:
        self._position: GamePosition = open_interpreter(path).start
        self.answer: GameAnswer = self._position.answer

    def send(self, command: str) -> GameAnswer:
        self._position = play_command(self._position, command)
        return self._position.answer

    def close(self) -> None:
        """Nothing is held but a position."""


class _TrackedSession(_GameSession):
    """One episode through TextWorld's wrappers, which know the admissible actions."""

    def __init__(self, path: Path) -> None:
        require_textworld()
        import textworld

        require_complete_game(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jericho's, about every game that it has no walkthrough for
            self._env: Any = textworld.start(str(path), textworld.EnvInfos(admissible_commands=True))
        self.answer = self._parse_state(self._env.reset())

    def send(self, command: str) -> GameAnswer:
        state, _, _ = self._env.step(command)
        return self._parse_state(state)

    def close(self) -> None:
        self._env.close()

    def _parse_state(self, state: Any) -> GameAnswer:
        self.actions = tuple(state.admissible_commands)
        answer = clean_answer(state.feedback)
        return GameAnswer(answer.text, answer.won, answer.lost, state.score)


@lru_cache(maxsize=1024)
def _load_game_info(path: Path) -> tuple[str, float]:
    require_textworld()
    from textworld import Game

    game: Any = Game.load(str(path.with_suffix(".json")))
    return " ".join(game.objective.split()), float(game.max_score or 1)


def _validate_source(
    path: str | Path | None = None, generator: str | None = None, num_games: int = 20, dataset_seed: int = 0,
    **settings: Any,
) -> tuple[str, str, int, int, dict[str, Any]]:  # fmt: skip
    if path is None and generator is None and not settings:
        generator = "treasure_hunter"
    if (path is None) == (generator is None):
        raise ConfigError("TextWorld needs either path (a .z8 game or a folder) or generator, and not both")
    if path is not None:
        if settings:
            raise ConfigError(f"the option {min(settings)!r} belongs to a generator, and path was given")
        return str(path), "", num_games, dataset_seed, {}
    if generator not in GENERATORS:
        raise ConfigError(f"unknown generator {generator!r}{suggest_nearest(str(generator), GENERATORS)}")
    if not 1 <= num_games <= _SEEDS_PER_SPLIT or not 0 <= dataset_seed < 10_000:
        raise ConfigError(f"num_games must be 1 to {_SEEDS_PER_SPLIT} and dataset_seed 0 to 9999")
    return "", str(generator), num_games, dataset_seed, _complete_settings(str(generator), settings)


def _complete_settings(generator: str, given: Mapping[str, Any]) -> dict[str, Any]:
    known = GENERATORS[generator]
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"the generator {generator} has no option {key!r}{suggest_nearest(key, known)}")
        if value not in (values := known[key]):
            is_range = isinstance(values, range)
            allowed = f"{min(values)} to {max(values)}" if is_range else ", ".join(map(str, values))
            raise ConfigError(f"{key} = {value!r} is not allowed; {generator} takes {allowed}")
    settings = {key: given.get(key, next(iter(allowed))) for key, allowed in known.items()}
    if generator == "cooking" and settings["take"] > settings["recipe"]:
        raise ConfigError(f"take = {settings['take']} is more than recipe = {settings['recipe']}; lower take")
    if generator == "cooking" and settings["recipe_seed"] and not settings["take"]:
        raise ConfigError("recipe_seed needs take to be at least 1")
    return settings


def _list_file_tasks(split: str, path: Path) -> list[Task]:
    files = [path]
    if path.is_dir():
        has_splits = any((path / name).is_dir() for name in SPLITS)
        files = sorted((path / split if has_splits else path).glob("*.z8"))
        if not files and not has_splits:
            raise ConfigError(f"no .z8 game in {path}; make one with: tw-make tw-simple --output game.z8 ...")
    return [
        Task(f"textworld/{split}/{file.stem}", "textworld", 0, split, {"path": str(_require_game_file(file))})
        for file in files
    ]


def _require_game_file(path: Path) -> Path:
    if path.suffix != ".z8" or not path.is_file() or not path.with_suffix(".json").is_file():
        raise ConfigError(f"{path} must be a .z8 file with its .json beside it: tw-make writes both")
    return path


def _generate_game(task: Task, path: Path) -> None:
    from textworld import GameOptions
    from textworld.challenges import CHALLENGES
    from textworld.generator import compile_game

    generator = task.options["generator"]
    settings = dict(task.options["settings"])
    if generator == "cooking":
        settings["split"] = {"train": "train", "validation": "valid", "test": "test"}[task.split]
    if generator == "simple":
        settings["test"] = task.split == "test"
    options: Any = GameOptions()
    options.seeds = task.seed
    options.path = str(path)
    _, make, _ = CHALLENGES[f"tw-{generator}"]
    compile_game(make(settings, options), options)

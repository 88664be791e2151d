"""TextWorld: any compiled ``.z8`` game with its ``.json`` next to it, a folder of them, or TextWorld's own generators.

Source: Côté et al. 2018, "TextWorld: A Learning Environment for Text-based Games" (arXiv 1806.11532). Its interpreter,
jericho's, is driven directly because TextWorld's wrappers spend most of a step on unused information: `GameInterpreter`
holds one game open, and any number of environments may continue from a `GamePosition`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trailnotes.envs.base import require_choice, require_int, strip_intent, suggest_nearest
from trailnotes.errors import ConfigError, EnvError, MissingExtraError, format_install_command
from trailnotes.storage.files import get_cache_dir
from trailnotes.types import Observation, Task

MAX_ACTION_CHARS = 160  # the interpreter's line holds 198 bytes
_WON = "*** The End ***"
_LOST = "*** You lost! ***"
_STATUS = re.compile(r"(?:=-|\s)(-?\d+)/\d+\s*$")  # the status line's end: "-= Room =-score/turns"
_FINAL_SCORE = re.compile(r"You scored (?:a total of )?(-?\d+) ")  # the status line is not drawn again at the end
_SCORE_LINE = re.compile(r"Your score (?:has just gone up|changed) by [^.]*\.")
_TITLE = re.compile(r"-= *(.*?) *=-")


def require_textworld() -> None:
    """Raise `MissingExtraError` unless TextWorld and its interpreter can be imported."""
    try:
        importlib.import_module("jericho")
        importlib.import_module("textworld")
    except ImportError as error:
        raise MissingExtraError(f"it needs TextWorld ({error}): {format_install_command('textworld')}") from error


@dataclass(frozen=True, slots=True)
class GameAnswer:
    """A game's text, cleaned of everything that is not the story."""

    text: str  # one line
    won: bool
    lost: bool
    score: int | None  # from the status line; None when the game shows none


def clean_answer(raw: str) -> GameAnswer:
    """Cut banner, status line, prompt, score remarks, end marks and the restart question from `raw`."""
    body, _, status = raw.rpartition("\n>")
    score = _FINAL_SCORE.search(body) or _STATUS.search(status)
    won, lost = _WON in body, _LOST in body
    body = body.split(_WON)[0].split(_LOST)[0]
    if "$$$" in body:  # the banner, the objective under it
        body = body[max(body.find("-= "), 0) :]
    body = _TITLE.sub(r"\1.", _SCORE_LINE.sub("", body))
    return GameAnswer(" ".join(body.split()), won, lost, int(score[1]) if score else None)


def sanitize_action(action: str) -> tuple[str, bool]:
    """Make `action` one printable line of bounded length; returns it, and whether more than spaces was lost."""
    head = action[: 4 * MAX_ACTION_CHARS]
    line = " ".join("".join(c if c.isprintable() else " " for c in head).split())
    line = line.encode("ascii", "replace").decode()[:MAX_ACTION_CHARS].rstrip()
    return line, line != " ".join(action.split()) if len(action) <= len(head) else True


class GameInterpreter:
    """One compiled game, open in its own interpreter; about 1.7 MB, threads take turns."""

    def __init__(self, path: Path) -> None:
        require_textworld()
        jericho = importlib.import_module("jericho")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jericho warns about every game that it has no walkthrough for
            self._machine: Any = jericho.FrotzEnv(str(path), seed=1)
            raw, _ = self._machine.reset()
        self.path = path
        self._lock = threading.Lock()
        self.start = GamePosition(self, self._machine.get_state(), clean_answer(raw))

    def play(self, state: Any, command: str) -> GamePosition:
        """Send one line from `state`; returns the position that follows."""
        with self._lock:
            self._machine.set_state(state)
            raw = self._machine.frotz_lib.step(command.encode("ascii", "replace") + b"\n").decode("cp1252")
            return GamePosition(self, self._machine.get_state(), clean_answer(raw))


@dataclass(frozen=True, eq=False, slots=True)
class GamePosition:
    """A moment of a game; equal only to itself, as a key of `play_command`."""

    story: GameInterpreter
    state: Any = field(repr=False)  # the interpreter's memory, about 40 kB
    answer: GameAnswer


@lru_cache(maxsize=1024)
def play_command(position: GamePosition, command: str) -> GamePosition:
    """Play a command; games have no chance, so each move is computed once and cached."""
    return position.story.play(position.state, command)


open_interpreter = lru_cache(maxsize=160)(GameInterpreter)  # once for each path in each process


def build_cached_game(
    description: Mapping[str, Any], build: Callable[[Path], None], folder: Path | None = None
) -> Path:
    """Build the ``.z8`` of `description` by `build(path)`, unless it is in the cache.

    Two processes may build the same game at once: each builds in a folder of its own and renames.
    """
    folder = folder or get_cache_dir("games")
    text = json.dumps(description, sort_keys=True, default=str)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.z8"
    if path.is_file() and path.with_suffix(".json").is_file():
        return path
    require_textworld()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix="build-", dir=folder))
    except OSError as error:
        raise EnvError(f"cannot write the game cache {folder} ({error}); set TRAILNOTES_CACHE to a folder") from error
    try:
        with Path(os.devnull).open("w") as sink, contextlib.redirect_stdout(sink), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some generators play the game, see `GameInterpreter`
            build(draft / path.name)
        for suffix in (".json", ".z8"):  # the game last: its presence says that both are there
            (draft / path.name).with_suffix(suffix).replace(path.with_suffix(suffix))
    except RuntimeError as error:  # TextWorld's own, when Inform refuses the source
        raise EnvError(f"the game does not compile: {str(error).strip().splitlines()[0]}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


SPLITS = ("train", "validation", "test")
_SEEDS_PER_SPLIT = 100_000
_BOOLEANS = (False, True)
_ENV_OPTIONS = ("actions", "max_steps", "cache_dir")  # of the class alone, not of its tasks

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
    """Text adventures of TextWorld, generated or compiled by you: find, open, cook, carry."""

    def __init__(
        self, actions: bool = False, max_steps: int = 50, cache_dir: str | Path | None = None, **task_options: Any
    ) -> None:
        """`actions` offers admissible actions, which is slower; `task_options` are those of `tasks`."""
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
        require_choice("split", split, SPLITS, where="")
        source = {key: value for key, value in options.items() if key not in _ENV_OPTIONS}
        generator, num_games, dataset_seed, settings = _validate_source(**source)
        if not generator:
            return _list_file_tasks(split, Path(source["path"]))
        first = (dataset_seed * len(SPLITS) + SPLITS.index(split)) * _SEEDS_PER_SPLIT
        family = "textworld/" + "-".join([generator, *(f"{key}{settings[key]}" for key in sorted(settings))])
        chosen = {"generator": generator, "settings": settings}
        seeds = range(first, first + num_games)
        return [Task(f"{family}/{split}-{seed}", "textworld", seed, split, chosen, family) for seed in seeds]

    @staticmethod
    def identity(path: str | Path | None = None) -> dict[str, Any]:
        """Return a hash of the compiled games of `path`: a name alone may stand for another game later."""
        if path is None:
            return {}
        files = sorted(Path(path).rglob("*.z8")) if Path(path).is_dir() else [_require_game_file(Path(path))]
        contents = b"".join(file.name.encode() + hashlib.sha256(file.read_bytes()).digest() for file in files)
        return {"games": hashlib.sha256(contents).hexdigest()}

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
        self._game.send(command)
        answer = self._game.answer
        over = answer.won or answer.lost
        self._steps_left = 0 if over else self._steps_left - 1
        before, self._score = self._score, self._score if answer.score is None else answer.score
        return Observation(
            answer.text, reward=float(self._score - before), terminated=over,
            truncated=not over and not self._steps_left,
            actions=() if over and self._offers_actions else self._game.actions, success=answer.won,
            score=float(self._score), max_score=self._max_score, info={"action_refused": True} if refused else {},
        )  # fmt: skip

    def solution(self, task: Task) -> tuple[str, ...]:
        """Return the actions of the game's walkthrough, which win `task`; () where the file has none."""
        require_textworld()
        from textworld import Game

        game: Any = Game.load(str(self._resolve_path(task).with_suffix(".json")))
        return tuple(step for step in game.metadata.get("walkthrough") or () if step != "inventory")

    def close(self) -> None:
        if self._game:
            self._game.close()
        self._game = None
        self._steps_left = 0

    def _resolve_path(self, task: Task) -> Path:
        if "path" in task.options:
            return _require_game_file(Path(task.options["path"]))
        require_textworld()
        generator = task.options["generator"]
        description = {
            "generator": generator, "settings": dict(task.options["settings"]),
            "split": task.split if generator in ("cooking", "simple") else "", "seed": task.seed,
            "textworld": version("textworld"),
        }  # fmt: skip
        return build_cached_game(description, lambda path: _generate_game(task, path), self._folder)


class _GameSession:
    """One episode on the shared, open game."""

    actions: tuple[str, ...] | None = None

    def __init__(self, path: Path) -> None:
        self._position: GamePosition = open_interpreter(path).start
        self.answer = self._position.answer

    def send(self, command: str) -> None:
        self._position = play_command(self._position, command)
        self.answer = self._position.answer

    def close(self) -> None: ...


class _TrackedSession(_GameSession):
    """One episode through TextWorld's wrappers, which know the admissible actions."""

    def __init__(self, path: Path) -> None:
        require_textworld()
        import textworld

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jericho's, about every game that it has no walkthrough for
            self._env: Any = textworld.start(str(path), textworld.EnvInfos(admissible_commands=True))
        self._read(self._env.reset())

    def send(self, command: str) -> None:
        self._read(self._env.step(command)[0])

    def close(self) -> None:
        self._env.close()

    def _read(self, state: Any) -> None:
        self.actions = tuple(state.admissible_commands)
        self.answer = replace(clean_answer(state.feedback), score=state.score)


@lru_cache(maxsize=1024)
def _load_game_info(path: Path) -> tuple[str, float]:
    require_textworld()
    from textworld import Game

    game: Any = Game.load(str(path.with_suffix(".json")))
    return " ".join(game.objective.split()), float(game.max_score or 1)


def _validate_source(
    path: str | Path | None = None, generator: str | None = None, **settings: Any
) -> tuple[str, int, int, dict[str, Any]]:
    known = {"path", "generator", "num_games", "dataset_seed", *_ENV_OPTIONS}.union(*GENERATORS.values())
    if unknown := settings.keys() - known:
        raise ConfigError(f"TextWorld has no option {min(unknown)!r}{suggest_nearest(min(unknown), known)}")
    if path is None and generator is None and not settings:
        generator = "treasure_hunter"
    if (path is None) == (generator is None):
        raise ConfigError("TextWorld needs either path (a .z8 game or a folder) or generator, and not both")
    if path is not None:
        if settings:
            raise ConfigError(f"the option {min(settings)!r} belongs to a generator, and path was given")
        return "", 0, 0, {}
    if generator not in GENERATORS:
        raise ConfigError(f"unknown generator {generator!r}{suggest_nearest(str(generator), GENERATORS)}")
    num_games, dataset_seed = settings.pop("num_games", 20), settings.pop("dataset_seed", 0)
    if not 1 <= num_games <= _SEEDS_PER_SPLIT or not 0 <= dataset_seed < 10_000:
        raise ConfigError(f"num_games must be 1 to {_SEEDS_PER_SPLIT} and dataset_seed 0 to 9999")
    return generator, num_games, dataset_seed, _complete_settings(generator, settings)


def _complete_settings(generator: str, given: Mapping[str, Any]) -> dict[str, Any]:
    known = GENERATORS[generator]
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"the generator {generator} has no option {key!r}{suggest_nearest(key, known)}")
        if value not in (values := known[key]):
            is_range = isinstance(values, range)
            allowed = f"{min(values)} to {max(values)}" if is_range else ", ".join(map(str, values))
            raise ConfigError(f"{key} = {value!r} is not allowed; {generator} takes {allowed}")
    return {key: given.get(key, next(iter(allowed))) for key, allowed in known.items()}


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
        raise ConfigError(f"{path} must be a .z8 file with its .json next to it: tw-make writes both")
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

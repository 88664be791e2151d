"""Interpreter of compiled games: plays them, cleans their text, and caches them on disk.

`GameInterpreter` holds one ``.z8`` open; any number of environments may continue from a `GamePosition`. The interpreter
is jericho's, driven directly because TextWorld's wrappers spend most of a step on unused information.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from trailnotes.errors import EnvError, MissingExtraError, format_install_command
from trailnotes.storage.files import get_cache_dir

MAX_ACTION_CHARS = 160  # the interpreter's line holds 198 bytes
_HEADER = 64  # bytes of a game that its checksum leaves out
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
        fix = format_install_command("textworld")
        raise MissingExtraError(f"this environment needs TextWorld ({error}): {fix}") from error


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


def require_complete_game(path: Path) -> None:
    """Refuse a damaged ``.z8`` by length and checksum (Z-Machine Standard 1.1, 11.1.6); raises `EnvError`.

    The interpreter is a C library: a damaged game ends its process, or never answers.
    """
    if not path.is_file():
        raise EnvError(f"no game at {path}")
    game = path.read_bytes()
    version, length, checksum = game[:1], 8 * int.from_bytes(game[26:28]), int.from_bytes(game[28:30])
    if version != b"\x08" or not _HEADER < length <= len(game) or sum(game[_HEADER:length]) % 65_536 != checksum:
        raise EnvError(f"{path} is no whole .z8 game: delete it, or compile it again")


class GameInterpreter:
    """One compiled game, open in its own interpreter; about 1.7 MB, threads take turns."""

    def __init__(self, path: Path) -> None:
        require_textworld()
        jericho = importlib.import_module("jericho")
        require_complete_game(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jericho warns about every game that it has no walkthrough for
            self._machine: Any = jericho.FrotzEnv(str(path), seed=1)
            raw, _ = self._machine.reset()
        self.path = path
        self._lock = threading.Lock()
        self.start = GamePosition(self, raw, self._machine.get_state(), clean_answer(raw))

    def play(self, state: Any, command: str) -> GamePosition:
        """Send one line from `state`; returns the position that follows."""
        with self._lock:
            self._machine.set_state(state)
            raw = self._machine.frotz_lib.step(command.encode("ascii", "replace") + b"\n").decode("cp1252")
            return GamePosition(self, raw, self._machine.get_state(), clean_answer(raw))


@dataclass(frozen=True, eq=False, slots=True)
class GamePosition:
    """A moment of a game. Equal only to itself, so that it can be the key of remembered answers."""

    story: GameInterpreter
    raw: str
    state: Any = field(repr=False)  # the interpreter's memory, about 40 kB
    answer: GameAnswer


@lru_cache(maxsize=1024)
def play_command(position: GamePosition, command: str) -> GamePosition:
    """Play a command; games hold no chance, so each move is computed once and remembered."""
    return position.story.play(position.state, command)


@lru_cache(maxsize=160)
def open_interpreter(path: Path) -> GameInterpreter:
    """Open the game at `path`, once in each process."""
    return GameInterpreter(path)


def get_games_dir() -> Path:
    return get_cache_dir("games")


def build_cached_game(
    description: Mapping[str, Any], build: Callable[[Path], None], folder: Path | None = None
) -> Path:
    """Build the ``.z8`` of `description` by `build(path)`, unless it is in the cache.

    Two processes may build the same game at once: each builds aside and renames.
    """
    folder = folder or get_games_dir()
    text = json.dumps(description, sort_keys=True, default=str)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.z8"
    if path.is_file() and path.with_suffix(".json").is_file():
        return path
    require_textworld()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix="build-", dir=folder))
    except OSError as error:
        raise EnvError(f"cannot write the game cache {folder} ({error}); set TRAILNOTES_CACHE to a folder") from error
    try:
        with Path(os.devnull).open("w") as sink, contextlib.redirect_stdout(sink), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some generators play the game, see `GameInterpreter`
            build(aside / path.name)
        for suffix in (".json", ".z8"):  # the game last: its presence says that both are there
            (aside / path.name).with_suffix(suffix).replace(path.with_suffix(suffix))
    except RuntimeError as error:  # TextWorld's own, when Inform refuses the source
        raise EnvError(f"the game does not compile: {str(error).strip().splitlines()[0]}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def get_textworld_version() -> str:
    """Return the installed version of `textworld`; raises `MissingExtraError` where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("textworld")
    except PackageNotFoundError:
        fix = format_install_command("textworld")
        raise MissingExtraError(f"compiled games need the package textworld: {fix}") from None

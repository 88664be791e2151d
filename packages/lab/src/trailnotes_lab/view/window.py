"""The runs and comparisons below a directory as the pages of `trailnotes view` read them, each with a name."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from trailnotes.config.methods import find_method
from trailnotes.config.schema import Config
from trailnotes.config.toml import flatten_config
from trailnotes.errors import RunError, TrailnotesError
from trailnotes.runs.directory import load_run_config
from trailnotes.storage.files import parse_record
from trailnotes_lab.view.lines import EpisodeRow, LineReader, MetricsLine, is_number, parse_episode_row

MAX_DEPTH: Final = 4  # folders below the one that is viewed
MAX_FOLDERS: Final = 5_000  # folders that are looked into
SKIPPED_FOLDERS: Final = frozenset({
    "checkpoints", "tensorboard", "trackers", "phases", "rehearsal", "logs", "settings", "eval", "roles"
})  # fmt: skip
RUN_FILES: Final = ("metrics.jsonl", "trajectories.jsonl", "memory.db", "run.json")  # any of them beside config.toml
COMPARISON_FILE: Final = "table.json"
HIDDEN_KEYS: Final = ("run.name", "algorithm.name")  # keys that have a place of their own

Kind = Literal["run", "comparison"]


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """One run or comparison; `slug` names it in addresses, and is the same as long as it is not moved."""

    slug: str
    name: str  # its path below the directory that is viewed
    path: Path
    kind: Kind


def find_entries(root: Path) -> list[ViewEntry]:
    entries: list[ViewEntry] = []
    for path in _walk_folders(root):
        relative = path.relative_to(root)
        name = relative.as_posix() if relative.parts else root.resolve().name
        if (path / "config.toml").is_file() and any((path / sign).is_file() for sign in RUN_FILES):
            entries.append(ViewEntry(_make_slug(relative), name, path, "run"))
        elif (path / COMPARISON_FILE).is_file() and (path / "runs").is_dir():
            entries.append(ViewEntry(_make_slug(relative), name, path, "comparison"))
    return sorted(entries, key=lambda place: [_natural_sort_key(part) for part in Path(place.name).parts])


def _make_slug(relative: Path) -> str:
    """Letters, digits, ``-._``, ``~`` between folders, and codes of all others, so that no two paths share a slug."""
    words = [re.sub(r"[^A-Za-z0-9._-]", lambda match: f"!{ord(match[0]):x}.", part) for part in relative.parts]
    return "~".join(words) or "here"


def find_differing_settings(runs: Sequence[tuple[Path, Config | None]]) -> list[dict[str, str]]:
    """Find for each run, given with its folder, the settings that differ among the runs of this folder.

    Runs that are alone in their folders are compared with each other; {} if the settings are unreadable.
    """
    flat = [{} if config is None else {name: str(value) for name, value in flatten_config(config).items()}
            for _, config in runs]  # fmt: skip
    counts = Counter(folder for folder, _ in runs)
    groups = [folder if counts[folder] > 1 else None for folder, _ in runs]
    values_by_name: dict[tuple[Path | None, str], set[str]] = {}
    for group, values in zip(groups, flat, strict=True):
        for name, value in values.items():
            values_by_name.setdefault((group, name), set()).add(value)
    differing = [
        {name: value for name, value in values.items() if len(values_by_name[group, name]) > 1}
        for group, values in zip(groups, flat, strict=True)
    ]
    return [{name: own[name] for name in sorted(own, key="run.seed".__ne__) if name not in HIDDEN_KEYS}
            for own in differing]  # fmt: skip


def estimate_progress(config: Config | None, lines: Sequence[MetricsLine]) -> float | None:
    """Estimate the progress of a training by its own limits, 0 to 1; None for other runs, or where it is unknown."""
    if config is None or not lines or not find_method(config.algorithm.name).trains:
        return None
    numbers = {name: value for name, value in lines[-1].items() if is_number(value)}
    return min(1.0, config.train.compute_progress({**numbers, "iteration": numbers.get("iteration", 0) + 1}))


def _walk_folders(root: Path) -> Iterator[Path]:
    for folder, inside, _ in itertools.islice(os.walk(root), MAX_FOLDERS):
        path = Path(folder)
        yield path
        is_deepest = len(path.relative_to(root).parts) == MAX_DEPTH
        kept = [name for name in inside if name not in SKIPPED_FOLDERS and not name.startswith(".")]
        inside[:] = [] if is_deepest else kept  # where `os.walk` goes on


def _natural_sort_key(name: str) -> list[str]:
    return [part.zfill(20) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


ENTRIES_TTL_S: Final = 2.0  # seconds until the directory is searched again

Query = Mapping[str, list[str]]


class PageNotFound(RunError):  # noqa: N818 (it is an answer)
    """There is no page of this address."""


class Window:
    """The runs at and below the directory `root`; a thread holds `lock` while it renders a page."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = threading.Lock()
        self._metrics: dict[Path, LineReader[MetricsLine | None]] = {}
        self._episodes: dict[Path, LineReader[EpisodeRow]] = {}
        self._settings: dict[Path, tuple[object, tuple[Config | None, str]]] = {}
        self._places: tuple[float, list[ViewEntry]] = (-ENTRIES_TTL_S, [])

    def list_entries(self) -> list[ViewEntry]:
        """List runs and comparisons, which are searched again after `ENTRIES_TTL_S`."""
        seen, places = self._places
        if time.monotonic() - seen >= ENTRIES_TTL_S:
            places = find_entries(self.root)
            self._places = (time.monotonic(), places)
        return places

    def get_entry(self, kind: str, slug: str) -> ViewEntry:
        entry = next((place for place in self.list_entries() if (place.kind, place.slug) == (kind, slug)), None)
        if entry is None or not entry.path.is_dir():
            raise PageNotFound(f"there is no {kind} of this name below {self.root.resolve().name} (any more)")
        return entry

    def get_settings(self, place: ViewEntry) -> tuple[Config | None, str]:
        """Load the settings of a run, or None and why they cannot be read; again where config.toml has changed."""
        try:
            stat = (place.path / "config.toml").stat()
        except OSError as error:
            return None, f"{place.path / 'config.toml'}: {error.strerror}"
        state = (stat.st_mtime_ns, stat.st_size)
        if place.path not in self._settings or self._settings[place.path][0] != state:
            try:
                loaded: tuple[Config | None, str] = load_run_config(place.path), ""
            except (TrailnotesError, OSError, UnicodeDecodeError) as error:
                loaded = None, str(error)
            self._settings[place.path] = state, loaded
        return self._settings[place.path][1]

    def read_metrics(self, run: Path) -> tuple[list[MetricsLine], int]:
        reader = self._metrics.setdefault(
            run, LineReader(run / "metrics.jsonl", lambda _number, _offset, line: parse_record(line))
        )
        lines = reader.read()
        whole = [line for line in lines if line is not None]
        return whole, len(lines) - len(whole)

    def read_episodes(self, run: Path) -> list[EpisodeRow]:
        """Read the episodes of a run; the first call reads all of the file, later ones what is new."""
        reader = self._episodes.setdefault(run, LineReader(run / "trajectories.jsonl", parse_episode_row))
        return reader.read()

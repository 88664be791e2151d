"""The runs below a directory as the pages of `trailnotes view` read them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trailnotes.config.schema import Config
from trailnotes.errors import RunError
from trailnotes_lab.view.lines import EpisodeRow, LineReader, MetricsLine, parse_episode_row, parse_metrics
from trailnotes_lab.view.places import ViewEntry, find_entries, load_settings

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
        """Get one of them, or raise `PageNotFound`."""
        entry = next((place for place in self.list_entries() if (place.kind, place.slug) == (kind, slug)), None)
        if entry is None or not entry.path.is_dir():
            raise PageNotFound(f"there is no {kind} of this name below {self.root.resolve().name} (any more)")
        return entry

    def get_settings(self, place: ViewEntry) -> tuple[Config | None, str]:
        """Load settings as `load_settings` does, again where config.toml has changed."""
        try:
            stat = (place.path / "config.toml").stat()
        except OSError as error:
            return None, f"{place.path / 'config.toml'}: {error.strerror}"
        state = (stat.st_mtime_ns, stat.st_size)
        if place.path not in self._settings or self._settings[place.path][0] != state:
            self._settings[place.path] = state, load_settings(place.path)
        return self._settings[place.path][1]

    def read_metrics(self, run: Path) -> tuple[list[MetricsLine], int]:
        reader = self._metrics.setdefault(run, LineReader(run / "metrics.jsonl", parse_metrics))
        lines = reader.read()
        whole = [line for line in lines if line is not None]
        return whole, len(lines) - len(whole)

    def read_episodes(self, run: Path) -> list[EpisodeRow]:
        """Read the episodes of a run; the first call reads all of the file, later ones what is new."""
        reader = self._episodes.setdefault(run, LineReader(run / "trajectories.jsonl", parse_episode_row))
        return reader.read()

"""The state of the window, whose pages `app.py` serves and `export.py` writes to files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from trailnotes.config.schema import Config
from trailnotes.errors import RunError, TrailnotesError
from trailnotes_lab.view.drawing import Href, render_template
from trailnotes_lab.view.index import EpisodeIndex
from trailnotes_lab.view.lines import LinesCache
from trailnotes_lab.view.places import ViewEntry, find_entries, load_settings
from trailnotes_lab.view.tips import TipSearcher

READ_SLICE_S: Final = 0.04  # that a page spends on reading on; a thread does the rest
ENTRIES_TTL_S: Final = 2.0  # for which the list of places is believed

Query = Mapping[str, list[str]]
PageRenderer = Callable[["Window", str, Query, Href], str]  # from an address to its page


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """A rendered page with its status."""

    text: str
    status: int = 200


class PageNotFound(RunError):  # noqa: N818 (it is an answer)
    """There is no page of this address."""


def make_url(path: str, **query: Any) -> str:
    """Make an address of the served window."""
    asked = [(name, value) for name, value in query.items() if value not in (None, "")]
    return f"{path}?{urlencode(asked, doseq=True)}" if asked else path


class Window:
    """The runs below a directory, with their open files; any thread may ask for pages.

    Args:
        root: a directory with runs below it, or one run.
        write: whether pages offer to change tips.
        exported: whether pages are written to files, and so have no forms.
        embedder: the one that the user names, as for `load_file_embedder`.
    """

    def __init__(self, root: Path, *, write: bool = False, exported: bool = False, embedder: str = "") -> None:
        self.root, self.write, self.exported, self.embedder = root, write, exported, embedder
        self.lines, self.searcher = LinesCache(), TipSearcher()
        self._lock = threading.Lock()
        self._indices: dict[Path, EpisodeIndex] = {}
        self._reading: set[Path] = set()
        self._kept: dict[str, tuple[object, Any]] = {}
        self._places: tuple[float, list[ViewEntry]] = (-ENTRIES_TTL_S, [])

    def close(self) -> None:
        """Close all open files."""
        self.searcher.close()
        with self._lock:
            for index in self._indices.values():
                index.close()
            self._indices.clear()

    def list_entries(self) -> list[ViewEntry]:
        """List runs and comparisons, which are searched again after `ENTRIES_TTL_S`."""
        seen, places = self._places
        if time.monotonic() - seen >= ENTRIES_TTL_S:
            places = find_entries(self.root)
            self._places = (time.monotonic(), places)
        return places

    def place(self, kind: str, slug: str) -> ViewEntry:
        """Get one of them, or raise `PageNotFound`."""
        found = next((place for place in self.list_entries() if (place.kind, place.slug) == (kind, slug)), None)
        if found is None or not found.path.is_dir():
            raise PageNotFound(f"there is no {kind} of this name below {self.root.resolve().name} (any more)")
        return found

    def get_settings(self, place: ViewEntry) -> tuple[Config | None, str]:
        """Load settings as `load_settings` does, again where config.toml has changed."""
        try:
            stat = (place.path / "config.toml").stat()
        except OSError as error:
            return None, f"{place.path / 'config.toml'}: {error.strerror}"
        found: tuple[Config | None, str] = self.get_cached(
            f"settings {place.slug}", (stat.st_mtime_ns, stat.st_size), lambda: load_settings(place.path)
        )
        return found

    def get_cached(self, name: str, state: object, make: Callable[[], Any]) -> Any:
        """Get the value that `make` returned when `state` last changed."""
        if name not in self._kept or self._kept[name][0] != state:
            self._kept[name] = (state, make())
        return self._kept[name][1]

    def get_index(self, run: Path) -> tuple[EpisodeIndex, float]:
        """Get the index of a run's episodes, and the share of them that it knows; a thread reads the rest."""
        file = run / "trajectories.jsonl"
        with self._lock:
            if file not in self._indices:
                self._indices[file] = EpisodeIndex(file)
            index = self._indices[file]
        known = index.catch_up(float("inf") if self.exported else READ_SLICE_S)
        if known < 1:
            with self._lock:
                begin = file not in self._reading
                self._reading.add(file)
            if begin:
                threading.Thread(target=self._read_in_background, args=(index,), daemon=True).start()
        return index, known

    def render(self, draw_page: PageRenderer, path: str, query: Query, href: Href = make_url) -> RenderedPage:
        """Render the page of an address; an error is a page, too."""
        try:
            return RenderedPage(draw_page(self, path, query, href))
        except (TrailnotesError, OSError) as error:
            status = 404 if isinstance(error, PageNotFound) else 409
            return RenderedPage(render_error(status, str(error), href), status)

    def _read_in_background(self, index: EpisodeIndex) -> None:
        try:
            while index.catch_up(READ_SLICE_S) < 1:
                time.sleep(0.001)  # pages come first
        except (TrailnotesError, OSError):
            pass  # the next page will say so
        finally:
            with self._lock:
                self._reading.discard(index.file)


ERROR_HEADINGS: Final = {
    400: "That cannot be read", 403: "Not without the token", 404: "Nothing here", 405: "Not that way",
    408: "That took too long", 409: "That cannot be shown", 413: "That is too much", 415: "Not a form",
    421: "Not by that name", 500: "Something went wrong",
}  # fmt: skip


def render_error(status: int, text: str, href: Href = make_url) -> str:
    """Render a page that explains an error."""
    heading = ERROR_HEADINGS.get(status, "That did not work")
    return render_template("error", href, heading=heading, text=text, live=False, way=[])

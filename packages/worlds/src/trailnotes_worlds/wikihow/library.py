"""Library: all pages of an app in one folder, which any number of processes read without a copy of their own.

::

    meta.json   version, name (a hash of all pages), sizes, counts of skipped pages
    pages.db    SQLite: one row for each page, by its path
    search/     the index over the titles of the articles
    report.jsonl  skipped pages, and the reasons

It is written once, whole or not at all, and never changes: its name is a hash of its content.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote

from trailnotes.errors import ConfigError
from trailnotes_worlds.search.building import IndexBuilder
from trailnotes_worlds.search.index import SearchIndex
from trailnotes_worlds.search.mapped import MappedFolder, NamedFolder, write_folder, write_meta
from trailnotes_worlds.wikihow.articles import Article, Category, LibraryPage, from_record, to_record

KIND, VERSION = "wikihow library", 1
PAGES, SEARCH, REPORT = "pages.db", "search", "report.jsonl"

_TABLES = (
    "CREATE TABLE pages (path TEXT PRIMARY KEY, place INTEGER, record TEXT) WITHOUT ROWID",
    "CREATE INDEX places ON pages (place)",
)
_CACHE_SIZE = 512  # decoded pages that a process keeps
_REQUIRED_META = {"name": str, "counts": dict}  # fields of ``meta.json``


class Library(NamedFolder):
    """Pages of one app. Open it with `Library.open`; processes may share it.

    Its `meta` has ``counts``: kind -> pages, and ``left_out``: reason -> pages.

    ::

        library = Library.open(Path("pages"))
        article = library[library.search("boil an egg")[0]]
    """

    def __init__(self, files: MappedFolder, hidden: frozenset[str] = frozenset()) -> None:
        super().__init__(files)
        self._hidden = hidden
        files.open_file(PAGES)  # compares its size
        self._index = SearchIndex.open(files.folder / SEARCH)
        path = quote(str((files.folder / PAGES).resolve()))
        self._pages = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        self.get: Callable[[str], LibraryPage | None] = lru_cache(maxsize=_CACHE_SIZE)(self._read_page)
        """Return the page at a path, or None."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        return cls(MappedFolder(Path(path), KIND, VERSION, _REQUIRED_META))

    def without(self, paths: Iterable[str]) -> Self:
        """Open the same pages once more, as if the articles at `paths` had never been written."""
        return type(self)(self._files, self._hidden.union(paths))

    def __iter__(self) -> Iterator[LibraryPage]:
        for path, record in self._pages.execute("SELECT path, record FROM pages ORDER BY place"):
            if path not in self._hidden:
                yield self._remove_hidden(from_record(json.loads(record)))

    def __contains__(self, path: object) -> bool:
        sql = "SELECT 1 FROM pages WHERE path = ?"
        return path not in self._hidden and self._pages.execute(sql, (path,)).fetchone() is not None

    def __getitem__(self, path: str) -> LibraryPage:
        page = self.get(path)
        if page is None:
            raise KeyError(path)
        return page

    def articles(self, paths: Iterable[str]) -> Iterator[Article]:
        """Yield the articles at `paths` in their order; skip missing pages and pages of other kinds."""
        for path in paths:
            if isinstance(page := self.get(path), Article):
                yield page

    def search(self, query: str, limit: int) -> list[str]:
        ranked = self._index.search(query, limit + len(self._hidden))
        return [path for path, _ in ranked if path not in self._hidden][:limit]

    def close(self) -> None:
        """Close the files; later queries raise an error of `sqlite3`."""
        self._pages.close()
        self._files.close()

    def _read_page(self, path: str) -> LibraryPage | None:
        if path in self._hidden:
            return None
        row = self._pages.execute("SELECT record FROM pages WHERE path = ?", (path,)).fetchone()
        return self._remove_hidden(from_record(json.loads(row[0]))) if row else None

    def _remove_hidden(self, page: LibraryPage) -> LibraryPage:
        # Lists of articles skip hidden paths when they are rendered; the text of a category names some, too.
        if not self._hidden or not isinstance(page, Category):
            return page
        return replace(page, about=tuple(part for part in page.about if part[1] not in self._hidden))


def write_library(
    folder: Path, pages: Iterable[LibraryPage], facts: Mapping[str, Any] | None = None, report: Iterable[object] = ()
) -> Library:
    """Write the library of `pages` into `folder`, whole or not at all, and open it."""
    with write_folder(folder) as made:
        name, counts = _write_pages(made, pages)
        lines = (json.dumps(line, ensure_ascii=True) + "\n" for line in report)
        (made / REPORT).write_text("".join(lines), encoding="utf-8")
        write_meta(made, KIND, VERSION, [PAGES, REPORT], {"name": name, "counts": counts, **(facts or {})})
    return Library.open(folder)


def _write_pages(folder: Path, pages: Iterable[LibraryPage]) -> tuple[str, Counter[str]]:
    digest, counts = hashlib.sha256(), Counter[str]()
    base = sqlite3.connect(folder / PAGES)
    try:
        base.execute("PRAGMA journal_mode = OFF")  # an unfinished file is thrown away
        base.execute(_TABLES[0])
        with IndexBuilder(folder / SEARCH) as search:
            for place, given in enumerate(pages):
                page = from_record(to_record(given))  # as readers will get it
                record = {**to_record(page), "slug": page.path}
                text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
                try:
                    base.execute("INSERT INTO pages VALUES (?, ?, ?)", (page.path, place, text))
                except sqlite3.IntegrityError as error:
                    raise ConfigError(f"two pages have the path {page.path}: leave one out") from error
                digest.update(text.encode() + b"\n")
                counts[record["kind"]] += 1
                if isinstance(page, Article):
                    search.add(page.path, unquote(page.path).replace("-", " "))  # as in the published data
            if not counts["article"]:
                raise ConfigError("there is no article among the pages: a library needs at least one")
            search.finish()
        base.execute(_TABLES[1])
        base.commit()
    finally:
        base.close()
    return digest.hexdigest()[:16], counts

"""Import of recorded pages of the real site into a library.

The licence of wikiHow's texts (CC BY-NC-SA) does not let this package ship them; users import the published archive or
pages of their own.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from trailnotes.errors import ConfigError
from trailnotes_worlds.wikihow.articles import MAX_LISTED, LibraryPage, author_path, category_path, from_record
from trailnotes_worlds.wikihow.library import Library, write_library
from trailnotes_worlds.wikihow.recorded import ParsedPage, make_name, parse_doc_id, parse_page, read_html

Progress = Callable[[int, int], None]  # (pages read, of how many)

_VERIFIED = {"E": "Expert Co-Authored", "Q": "Quality Tested"}
_NOT_AUTHORS = ("", "Author Info")
_MIN_INTRO_CHARS = 40  # of a paragraph that may be an introduction


def import_library(
    folder: Path, pages: Path, meta: Path | None = None, *, limit: int | None = None, progress: Progress | None = None
) -> Library:
    """Write the library of recorded pages into `folder`, and open it.

    Args:
        folder: a missing one.
        pages: a file for each page, named by its path (``%2fBoil-an-Egg?wh_an=1&amp=1``, or ``Boil-an-Egg.html``).
        meta: the archive's ``doc_meta.csv``: views, date and mark of each article.
        limit: number of files, in the order of their names; None: all.
        progress: receives the number of files read and of all.

    Raises:
        ConfigError: `folder` is taken, a source is unreadable, or no page is an article.
        RunError: the disk is full or the place not writable.
    """
    reading = _PageReader(pages, _read_facts(meta) if meta else {}, limit, progress)
    facts = {"again": "import it again", "left_out": reading.left_out}
    return write_library(folder, reading.iter_pages(), facts, reading.report)


class _PageReader:
    def __init__(
        self, folder: Path, facts: Mapping[str, Mapping[str, str]], limit: int | None, progress: Progress | None
    ) -> None:
        self.left_out = Counter[str]()
        self.report: list[dict[str, str]] = []
        self._facts, self._tell = facts, progress or (lambda *_: None)
        self._taken: set[str] = set()
        self._names: dict[str, str] = {}  # path of an author -> name in articles
        try:
            files = sorted(path for path in folder.iterdir() if path.is_file())[:limit]
        except OSError as error:
            raise ConfigError(f"{folder} cannot be read: {error.strerror}") from error
        if not files:
            raise ConfigError(f"{folder} holds no files: name the folder of the recorded pages, dumps in the archive")
        # Articles come first, since they hold the names of their authors.
        slugs = {path: parse_doc_id(path.name) for path in files}
        self._files = sorted(files, key=lambda path: (slugs[path].startswith(("Author/", "Category:")), slugs[path]))

    def iter_pages(self) -> Iterator[LibraryPage]:
        for place, path in enumerate(self._files):
            self._tell(place, len(self._files))
            try:
                page = from_record(self._read_record(path))
            except ConfigError as error:
                self.left_out[str(error).partition(":")[0]] += 1
                self.report.append({"file": path.name, "reason": str(error)})
                continue
            self._taken.add(page.path)
            yield page

    def _read_record(self, path: Path) -> dict[str, Any]:
        slug = parse_doc_id(path.name)
        if slug in self._taken:
            raise ConfigError("its path comes twice")
        page = parse_page(read_html(path))
        if slug.startswith("Author/"):
            return self._parse_author(slug, page)
        if slug.startswith("Category:"):
            return self._parse_category(slug, page)
        return self._parse_article(slug, page)

    def _parse_article(self, slug: str, page: ParsedPage) -> dict[str, Any]:
        heading = " ".join(page.texts["title"][:1]).strip()
        if not heading:
            raise ConfigError("no title, so no article")
        is_usual = heading.startswith("How to ")
        authors = [link for link in page.links["byline"] if link.text not in _NOT_AUTHORS]
        for link in authors:
            self._names.setdefault(link.path, link.text)
        facts = self._facts.get(slug, {})
        views = facts.get("sr_view", "").replace(",", "").strip()
        steps = page.texts["step"][:MAX_LISTED]
        return {
            "kind": "article",
            "title": heading.removeprefix("How to ").strip() if is_usual else make_name(slug),
            "heading": "" if is_usual else heading,
            "slug": slug,
            "categories": _list_categories(page),
            "authors": list(dict.fromkeys(link.text for link in authors if author_path(link.text) == link.path)),
            "updated": _parse_day(facts.get("sr_updated", "")),
            "views": int(views) if views.isascii() and views.isdecimal() and len(views) < 12 else 0,
            "verified": _VERIFIED.get(facts.get("sr_verif", ""), ""),
            "intro": _find_intro(page),
            "methods": [("Steps", steps)] if steps else [],
            "references": page.texts["references"][:MAX_LISTED],
            "related": _list_articles(page, slug),
        }

    def _parse_author(self, slug: str, page: ParsedPage) -> dict[str, Any]:
        name, articles = self._names.get(slug, make_name(slug)), _list_articles(page, slug)
        return {"kind": "author", "name": name, "slug": slug, "bio": _find_intro(page), "articles": articles}

    def _parse_category(self, slug: str, page: ParsedPage) -> dict[str, Any]:
        name, about = make_name(slug), _find_intro(page)
        around = [each for each in _list_categories(page) if each != name]
        topics = [make_name(link.path) for link in page.links["listed"] if link.path.startswith("Category:")]
        return {
            "kind": "category",
            "name": name,
            "slug": slug,
            "parent": around[-1] if around else "",
            "about": [(about, "")] if about else [],
            "topics": topics,
            "articles": _list_articles(page, slug),
        }


def _find_intro(page: ParsedPage) -> str:
    return next((text for text in page.texts[""] if len(text) > _MIN_INTRO_CHARS), "")


def _list_categories(page: ParsedPage) -> list[str]:
    links = [link for link in page.links["crumbs"] if link.path.startswith("Category:")]
    return [link.text for link in links if category_path(link.text) == link.path]


def _list_articles(page: ParsedPage, slug: str) -> list[str]:
    paths = (link.path for link in page.links["listed"])
    return list(dict.fromkeys(path for path in paths if path != slug and path.isascii() and ":" not in path))


def _read_facts(path: Path) -> dict[str, dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if "doc_id" not in (rows.fieldnames or ()):
                raise ConfigError(f"{path} has no column doc_id: name the archive's doc_meta.csv")
            return {
                parse_doc_id(row["doc_id"]): {key: value or "" for key, value in row.items() if key} for row in rows
            }
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as doc_meta.csv: {error}") from error


def _parse_day(text: str) -> str:
    try:
        return datetime.strptime(text.strip(), "%B %d, %Y").date().isoformat()  # noqa: DTZ007 (a day, of no zone)
    except ValueError:
        return ""

"""Import of recorded pages of the real site (HTTP responses in files) into a library.

The parser finds titles, authors, categories, and the articles of authors and categories, by which tasks are judged, by
the same marks as Mobile-Env's own scripts (``collect_web_info.py``, commit 8223087). It takes paragraphs, steps and
references as they come. The licence of wikiHow's texts (CC BY-NC-SA) does not let this package ship them; users import
the published archive or pages of their own.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from trailnotes.errors import ConfigError
from trailnotes_worlds.wikihow.articles import MAX_LISTED, LibraryPage, author_path, category_path, from_record
from trailnotes_worlds.wikihow.library import Library, write_library

_VOID_TAGS: Final = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
)
_BY_ID: Final = {"section_0": "title", "coauthor_byline": "byline", "breadcrumb": "crumbs", "author_articles": "listed"}
_BY_CLASS: Final = {"responsive_thumb": "listed", "step": "step", "references": "references"}
_MARKS: Final = tuple(dict.fromkeys((*_BY_ID.values(), *_BY_CLASS.values())))
_IGNORED_TAGS: Final = frozenset(("script", "style", "template", "noscript"))
_TEXT_TAGS: Final = frozenset(("p", "li", "h1", "h2", "h3"))


class PageLink(NamedTuple):
    path: str  # after the host, without query
    text: str


class ParsedPage(NamedTuple):
    """Texts and links of a page by the mark around them, "" for none."""

    texts: Mapping[str, list[str]]
    links: Mapping[str, list[PageLink]]


def read_html(path: Path) -> str:
    """Read the HTML of a file: the body of an HTTP response, or plain HTML; either may be gzipped."""
    try:
        content = path.read_bytes()
        if content.startswith(b"HTTP/"):
            head, _, content = content.partition(b"\r\n\r\n")
            if not re.match(rb"HTTP/[\d.]+ 200\b", head):
                raise ConfigError("answered with an error")
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot be read: {error}") from error
    return content.decode("utf-8", "replace")


def parse_page(html: str) -> ParsedPage:
    reader = _PageParser()
    try:
        reader.feed(html)
        reader.close()
    except AssertionError as error:  # Python's parser raises it for unknown marked sections, <![x[
        raise ConfigError(f"its markup is damaged: {error}") from error
    return ParsedPage(reader.texts, reader.links)


def parse_link_path(href: str) -> str:
    """Return the path of a link, without host, query and leading slash; "" for a link to another site."""
    try:
        parts = urlsplit(href.strip())
    except ValueError:
        return ""
    if parts.netloc and parts.netloc.removeprefix("www.").removeprefix("m.") != "wikihow.com":
        return ""
    return parts.path.removeprefix("/")


class _PageParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: defaultdict[str, list[str]] = defaultdict(list)
        self.links: defaultdict[str, list[PageLink]] = defaultdict(list)
        self._open: list[tuple[str, str]] = []  # tag, mark
        self._tags, self._marks = Counter[str](), Counter[str]()
        self._text: list[str] | None = None  # of the paragraph that is open
        self._link: list[str] | None = None
        self._href = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in _VOID_TAGS:
            self.handle_data(" ")  # a break parts words
            return
        classes = values.get("class", "").split()
        mark = _BY_ID.get(values.get("id", ""), "") or next(filter(None, map(_BY_CLASS.get, classes)), "")
        if tag in _TEXT_TAGS or mark in ("step", "title"):
            self.end_text()
            self._text = []
        if tag == "a":
            self.end_link()
            self._link, self._href = [], values.get("href", "")
        self._open.append((tag, mark))
        self._tags[tag] += 1
        self._marks[mark] += 1

    def handle_endtag(self, tag: str) -> None:
        if not self._tags[tag]:
            return
        while self._open:
            closed, mark = self._open[-1]
            if closed in _TEXT_TAGS or mark in ("step", "title"):
                self.end_text()
            if closed == "a":
                self.end_link()
            self._open.pop()
            self._tags[closed] -= 1
            self._marks[mark] -= 1
            if closed == tag:
                return

    def handle_data(self, data: str) -> None:
        if any(self._tags[tag] for tag in _IGNORED_TAGS):
            return
        for kept in (self._text, self._link):
            if kept is not None:
                kept.append(data)

    def end_text(self) -> None:
        if self._text is not None and (text := " ".join("".join(self._text).split())):
            self.texts[self._find_mark()].append(text)
        self._text = None

    def end_link(self) -> None:
        if self._link is not None and (path := parse_link_path(self._href)):
            self.links[self._find_mark()].append(PageLink(path, " ".join("".join(self._link).split())))
        self._link = None

    def close(self) -> None:
        super().close()
        self.end_text()
        self.end_link()

    def _find_mark(self) -> str:
        return next((mark for mark in _MARKS if self._marks[mark]), "")


def parse_doc_id(name: str) -> str:
    """Parse a file name into the path of its page: ``%2fBoil-an-Egg?wh_an=1&amp=1`` is Boil-an-Egg."""
    bare = re.sub(r"(?:\.html?)?(?:\.gz)?$", "", name.partition("?")[0])
    return bare.replace("%2f", "/").replace("%2F", "/").removeprefix("/")


def make_name(path: str) -> str:
    return unquote(path.rpartition("/")[2].removeprefix("Category:")).replace("-", " ")


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
        self._facts, self._progress = facts, progress or (lambda *_: None)
        self._taken: set[str] = set()
        self._names: dict[str, str] = {}  # path of an author -> name in articles
        files = sorted(path for path in folder.glob("*") if path.is_file())[:limit]
        if not files:
            raise ConfigError(f"{folder} holds no files: name the folder of the recorded pages, dumps in the archive")
        # Articles come first, since they hold the names of their authors.
        slugs = {path: parse_doc_id(path.name) for path in files}
        self._files = sorted(files, key=lambda path: (slugs[path].startswith(("Author/", "Category:")), slugs[path]))

    def iter_pages(self) -> Iterator[LibraryPage]:
        for place, path in enumerate(self._files):
            self._progress(place, len(self._files))
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
            name, articles = self._names.get(slug, make_name(slug)), _list_articles(page, slug)
            return {"kind": "author", "name": name, "slug": slug, "bio": _find_intro(page), "articles": articles}
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
        with path.open(encoding="utf-8-sig", newline="") as file:
            return {parse_doc_id(row["doc_id"]): row for row in csv.DictReader(file, restval="")}
    except (OSError, UnicodeDecodeError, csv.Error, KeyError) as error:
        raise ConfigError(f"{path} cannot be read as the archive's doc_meta.csv: {error}") from error


def _parse_day(text: str) -> str:
    try:
        return datetime.strptime(text.strip(), "%B %d, %Y").date().isoformat()  # noqa: DTZ007 (a day, of no zone)
    except ValueError:
        return ""

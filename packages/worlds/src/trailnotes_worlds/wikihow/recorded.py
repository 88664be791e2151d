"""A recorded page of the real site: an HTTP response in a file, and what of its HTML the app shows.

What tasks are judged by is found by the marks that Mobile-Env's own scripts go by (``collect_web_info.py``, commit
8223087): title, authors, categories, and the articles that authors and categories list. Paragraphs, steps and
references are taken as they come.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from trailnotes.errors import ConfigError

Kept = TypeVar("Kept", str, "PageLink")

MAX_BYTES: Final = 8_000_000  # of a page; a larger one is none that was meant to be read
MAX_TAGS: Final = 50_000  # of a page, the same; wikiHow's have some thousands
_MAX_VALUES: Final = 5_000  # texts of a kind that are kept of a page
_MAX_TEXT: Final = 20_000  # characters of one of them
_VOID_TAGS: Final = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
)
_BY_ID: Final = {"section_0": "title", "coauthor_byline": "byline", "breadcrumb": "crumbs",
                 "author_articles": "listed"}  # fmt: skip
_BY_CLASS: Final = {"responsive_thumb": "listed", "step": "step", "references": "references"}
_IGNORED_TAGS: Final = frozenset(("script", "style", "template", "noscript"))
_TEXT_TAGS: Final = frozenset(("p", "li", "h1", "h2", "h3"))
# An attribute and a tag as browsers read them. No part is tried twice, and a tag fails only at the end of the page.
_ATTRIBUTE: Final = r"""(=[^\s/>=]*+|[^\s/>=]++)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|(?!["'])[^\s>]*+))?"""
_ATTRIBUTES: Final = re.compile(_ATTRIBUTE)
_TAG: Final = re.compile(rf"<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*+)(?P<attributes>(?:[\s/]++|{_ATTRIBUTE})*+)>")
_OPENING: Final = re.compile("</?[A-Za-z]")
_RAW_ENDS: Final = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}


class PageLink(NamedTuple):
    """A link of a page, within the marked part that it is in."""

    path: str  # after the host, without query
    text: str


class ParsedPage(NamedTuple):
    """What a page holds: texts and links by the mark that they lie in, "" for none."""

    texts: Mapping[str, list[str]]
    links: Mapping[str, list[PageLink]]


def read_html(path: Path) -> str:
    """The HTML of a file: the body of an HTTP response, or HTML as it is; gzip is undone.

    Raises:
        ConfigError: it cannot be read, is too large, was cut off, or was answered with an error.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError("too large")
    if content.startswith(b"HTTP/"):
        head, found, content = content.partition(b"\r\n\r\n")
        if not found:
            raise ConfigError("cut off in its head")
        if not re.match(rb"HTTP/[\d.]+ 200\b", head):
            raise ConfigError("answered with an error")
    if content.startswith(b"\x1f\x8b"):
        content = _decompress(content)
    if content.count(b"<") > MAX_TAGS:
        raise ConfigError("too many tags")
    return content.decode("utf-8", "replace")


def _decompress(content: bytes) -> bytes:
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        plain = unzip.decompress(content, MAX_BYTES)
    except zlib.error as error:
        raise ConfigError("its gzip is damaged") from error
    if unzip.unconsumed_tail:
        raise ConfigError("too large")
    if not unzip.eof:
        raise ConfigError("its gzip was cut off")
    return plain


def parse_page(html: str) -> ParsedPage:
    """What of a page's HTML is looked at; whatever it is, it is read to its end."""
    reader, place = _MarkupReader(), 0
    while (start := html.find("<", place)) >= 0:
        reader.handle_data(unescape(html[place:start]))
        place = _read_markup(html, start, reader)
    reader.handle_data(unescape(html[place:]))
    reader.finish()
    return ParsedPage(reader.texts, reader.links)


def _read_markup(html: str, start: int, reader: _MarkupReader) -> int:
    """Read what begins with the ``<`` at `start`; returns where it ends.

    `html.parser` takes quadratic time for what is not closed. Here that ends the page, so that nothing is read twice:
    a comment or script is dropped to the end of the page, a tag is its last text.
    """
    if _OPENING.match(html, start):
        return _read_tag(html, start, reader)
    if not html.startswith(("<!", "<?", "</"), start):
        reader.handle_data("<")
        return start + 1
    end = "-->" if html.startswith("<!--", start) else ">"
    found = html.find(end, start + len(end) + 1)
    return len(html) if found < 0 else found + len(end)


def _read_tag(html: str, start: int, reader: _MarkupReader) -> int:
    found = _TAG.match(html, start)
    if found is None:  # it goes to the end of the page
        reader.handle_data(unescape(html[start:]))
        return len(html)
    name, attributes = found["name"].lower(), found["attributes"]
    if found["close"]:
        reader.handle_endtag(name)
        return found.end()
    values, last = {}, 0
    for each in _ATTRIBUTES.finditer(attributes):
        value = each[2] or ""
        values[each[1].lower()] = unescape(value[1:-1] if value[:1] in ("'", '"') else value)
        last = each.end()
    reader.handle_starttag(name, values)
    if attributes.endswith("/", last):
        reader.handle_endtag(name)
    elif name in _RAW_ENDS:
        closing = _RAW_ENDS[name].search(html, found.end())
        return closing.start() if closing else len(html)
    return found.end()


def parse_link_path(href: str) -> str:
    """The path of a link, without host, query and leading slash; "" where it leads elsewhere."""
    try:
        parts = urlsplit(href.strip())
    except ValueError:
        return ""
    if parts.netloc and parts.netloc.removeprefix("www.").removeprefix("m.") != "wikihow.com":
        return ""
    return parts.path.removeprefix("/")


class _OpenTag(NamedTuple):
    tag: str
    mark: str


class _MarkupReader:
    """Keeps the texts of paragraphs and headings, and links, each under the marked part that it lies in."""

    def __init__(self) -> None:
        self.texts: defaultdict[str, list[str]] = defaultdict(list)
        self.links: defaultdict[str, list[PageLink]] = defaultdict(list)
        self._open: list[_OpenTag] = []
        self._tags, self._marks = Counter[str](), Counter[str]()
        self._text: list[str] | None = None  # of the paragraph that is open
        self._link: list[str] | None = None
        self._href = ""

    def handle_starttag(self, tag: str, values: Mapping[str, str]) -> None:
        if tag in _VOID_TAGS:
            self.handle_data(" ")  # a break parts words
            return
        classes = values.get("class", "").split()
        mark = _BY_ID.get(values.get("id", ""), "") or next(filter(None, map(_BY_CLASS.get, classes)), "")
        if tag in _TEXT_TAGS or mark in ("step", "title"):
            self._end_text()
            self._text = []
        if tag == "a":
            self._end_link()
            self._link, self._href = [], values.get("href", "")
        self._open.append(_OpenTag(tag, mark))
        self._tags[tag] += 1
        self._marks[mark] += 1

    def handle_endtag(self, tag: str) -> None:
        if not self._tags[tag]:
            return
        while self._open:
            closed = self._open[-1]
            if closed.tag in _TEXT_TAGS or closed.mark in ("step", "title"):
                self._end_text()
            if closed.tag == "a":
                self._end_link()
            self._open.pop()
            self._tags[closed.tag] -= 1
            self._marks[closed.mark] -= 1
            if closed.tag == tag:
                return

    def handle_data(self, data: str) -> None:
        if any(self._tags[tag] for tag in _IGNORED_TAGS):
            return
        for kept in (self._text, self._link):
            if kept is not None:
                kept.append(data)

    def finish(self) -> None:
        """The file is over, whatever is still open."""
        self._end_text()
        self._end_link()

    def _get_current_mark(self) -> str:
        return next((mark for mark in _MARKS if self._marks[mark]), "")

    def _end_text(self) -> None:
        if self._text is not None and (text := " ".join("".join(self._text).split())):
            _append_bounded(self.texts[self._get_current_mark()], text[:_MAX_TEXT])
        self._text = None

    def _end_link(self) -> None:
        if self._link is not None and (path := parse_link_path(self._href)):
            _append_bounded(
                self.links[self._get_current_mark()], PageLink(path, " ".join("".join(self._link).split())[:_MAX_TEXT])
            )
        self._link = None


_MARKS: Final = tuple(dict.fromkeys((*_BY_ID.values(), *_BY_CLASS.values())))


def _append_bounded(values: list[Kept], value: Kept) -> None:
    if len(values) < _MAX_VALUES:
        values.append(value)


def parse_doc_id(name: str) -> str:
    """The path of the page that a file is of: ``%2fBoil-an-Egg?wh_an=1&amp=1`` is that of Boil-an-Egg."""
    bare = re.sub(r"(?:\.html?)?(?:\.gz)?$", "", name.partition("?")[0])
    return bare.replace("%2f", "/").replace("%2F", "/").removeprefix("/")


def make_name(path: str) -> str:
    """What a path says in words, where nothing else does."""
    return unquote(path.rpartition("/")[2].removeprefix("Category:")).replace("-", " ")

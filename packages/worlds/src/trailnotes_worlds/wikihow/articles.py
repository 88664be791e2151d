"""Pages of the app: articles, their authors, and their categories."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from trailnotes.errors import ConfigError

MAX_TITLE: Final = 150  # characters of a title, a name and other short texts
MAX_TEXT: Final = 2_000  # of a paragraph
MAX_LISTED: Final = 200  # steps of an article, its references, pieces of a text
MAX_SLUG: Final = 250  # characters of a path, which is ASCII

ABOUT: Final = "wikiHow:Delivering-a-Trustworthy-Experience"
VERIFIED: Final = ("", "Expert Co-Authored", "Quality Tested")


@dataclass(frozen=True, slots=True)
class Article:
    """An article; its title lacks the "How to"."""

    title: str
    categories: tuple[str, ...] = ()  # names, the broadest first
    authors: tuple[str, ...] = ()
    byline: str = "Co-authored by"
    updated: str = ""  # as YYYY-MM-DD; "" is not told
    views: int = 0
    verified: str = ""  # one of `VERIFIED`
    approved: str = ""  # shown beside the date: "Approved", "Tested"
    intro: str = ""
    methods: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (heading, steps)
    references: tuple[str, ...] = ()
    related: tuple[str, ...] = ()  # slugs of articles
    slug: str = ""  # its path; "" is made of its title
    heading: str = ""  # above the text; "" is "How to" and its title

    @property
    def path(self) -> str:
        """URL path of the article, after the host."""
        return self.slug or make_slug(self.title)

    @property
    def display_title(self) -> str:
        """Heading above the text."""
        return self.heading or f"How to {self.title}"


@dataclass(frozen=True, slots=True)
class Author:
    """An author or expert with a page."""

    name: str
    role: str = ""
    bio: str = ""
    articles: tuple[str, ...] = ()  # slugs, in the order in which they are listed
    slug: str = ""

    @property
    def path(self) -> str:
        """URL path of the page, after the host."""
        return self.slug or author_path(self.name)


@dataclass(frozen=True, slots=True)
class Category:
    """A category and what its page lists."""

    name: str
    parent: str = ""  # the name of the one that it is in; "" for none
    about: tuple[tuple[str, str], ...] = ()  # (text, slug of the article that it leads to, or "")
    topics: tuple[str, ...] = ()  # names of categories in it
    featured: tuple[str, ...] = ()  # slugs
    articles: tuple[str, ...] = ()  # slugs
    slug: str = ""

    @property
    def path(self) -> str:
        """URL path of the page, after the host."""
        return self.slug or category_path(self.name)


LibraryPage = Article | Author | Category
_PAGE_TYPES: Final[Mapping[str, type[LibraryPage]]] = {"article": Article, "author": Author, "category": Category}


def make_slug(title: str) -> str:
    """Make the path of a title: hyphens for blanks, everything but letters and digits percent-encoded."""
    return quote(" ".join(title.split()).replace(" ", "-"), safe="")


def author_path(name: str) -> str:
    """Make the path of an author's page."""
    return f"Author/{make_slug(name.replace(',', ''))}"


def category_path(name: str) -> str:
    """Make the path of a category's page."""
    return f"Category:{make_slug(name)}"


def to_record(page: LibraryPage) -> dict[str, Any]:
    """Convert a page to JSON values."""
    kind = next(name for name, cls in _PAGE_TYPES.items() if isinstance(page, cls))
    return {"kind": kind, **{name: value for name, value in asdict(page).items() if value}}


def from_record(record: Any) -> LibraryPage:
    """Read a page from JSON values; clean its texts, and cut those that no screen would show whole.

    Raises:
        ConfigError: it is no page; the message names the field.
    """
    if not isinstance(record, dict) or record.get("kind") not in _PAGE_TYPES:
        raise ConfigError(f"a page is an object whose kind is one of {', '.join(_PAGE_TYPES)}")
    cls = _PAGE_TYPES[record["kind"]]
    readable = (name for name in record if name in cls.__dataclass_fields__)
    fields: dict[str, Any] = {name: _FIELD_PARSERS[name](name, record[name]) for name in readable}
    titled = "title" if cls is Article else "name"
    if not fields.get(titled):
        raise ConfigError(f"{record['kind']} without a {titled}")
    page = cls(**fields)
    if len(page.path) > MAX_SLUG:
        raise ConfigError(f"the path of {fields[titled][:40]!r} is longer than {MAX_SLUG} characters")
    return page


def clean_line(text: str, most: int) -> str:
    """Put a text on one line, without control characters and lone surrogates, cut to `most` characters."""
    return " ".join(_blank_invisible(text[: 4 * most]).split())[:most]


_INVISIBLE_CATEGORIES: Final = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _blank_invisible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(" " if unicodedata.category(sign) in _INVISIBLE_CATEGORIES else sign for sign in text)


def _parse_str(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text, not {type(value).__name__}")
    return value


def _parse_short_text(name: str, value: Any) -> str:
    return clean_line(_parse_str(name, value), MAX_TITLE)


def _parse_long_text(name: str, value: Any) -> str:
    return clean_line(_parse_str(name, value), MAX_TEXT)


def _parse_slug(name: str, value: Any) -> str:
    text = _parse_str(name, value)
    if not text.isascii() or not text.isprintable() or set(text) & set(' ?#"<>'):
        raise ConfigError(f"{name} {text[:40]!r} is no path: percent-encode it")
    return text


def _parse_int(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 10**12:
        raise ConfigError(f"{name} must be a whole number, 0 or more")
    return value


def _parse_list(name: str, value: Any, parse: Callable[[str, Any], Any], most: int | None = MAX_LISTED) -> Any:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name} must be a list")
    return tuple(parse(name, each) for each in value[:most])


def _parse_method(name: str, value: Any) -> tuple[str, tuple[str, ...]]:
    heading, steps = _parse_pair(name, value)
    return _parse_short_text(name, heading), _parse_list(name, steps, _parse_long_text)


def _parse_about(name: str, value: Any) -> tuple[str, str]:
    text, slug = _parse_pair(name, value)
    return _blank_invisible(_parse_str(name, text)[:MAX_TEXT]), _parse_slug(name, slug)


def _parse_pair(name: str, value: Any) -> tuple[Any, Any]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError(f"each of {name} must be a pair")
    return value[0], value[1]


_FIELD_PARSERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    **dict.fromkeys(("title", "name", "role", "byline", "updated"), _parse_short_text),
    **dict.fromkeys(("verified", "approved", "heading", "parent"), _parse_short_text),
    **dict.fromkeys(("intro", "bio"), _parse_long_text),
    **dict.fromkeys(("categories", "authors", "topics"), partial(_parse_list, parse=_parse_short_text)),
    **dict.fromkeys(("related", "featured"), partial(_parse_list, parse=_parse_slug)),
    "articles": partial(_parse_list, parse=_parse_slug, most=None),
    "references": partial(_parse_list, parse=_parse_long_text),
    "methods": partial(_parse_list, parse=_parse_method),
    "about": partial(_parse_list, parse=_parse_about),
    "views": _parse_int,
    "slug": _parse_slug,
}

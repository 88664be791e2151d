"""Pages of the app: articles, their authors, and their categories."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
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
    updated: str = ""  # as YYYY-MM-DD; "" is unknown
    views: int = 0
    verified: str = ""  # one of `VERIFIED`
    approved: str = ""  # next to the date: "Approved", "Tested"
    intro: str = ""
    methods: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (heading, steps)
    references: tuple[str, ...] = ()
    related: tuple[str, ...] = ()  # slugs of articles
    slug: str = ""  # its path; "" is made of its title
    heading: str = ""  # above the text; "" is "How to" and its title

    @property
    def path(self) -> str:
        return self.slug or make_slug(self.title)

    @property
    def display_title(self) -> str:
        return self.heading or f"How to {self.title}"


@dataclass(frozen=True, slots=True)
class Author:
    name: str
    role: str = ""
    bio: str = ""
    articles: tuple[str, ...] = ()  # slugs, in the order in which they are listed
    slug: str = ""

    @property
    def path(self) -> str:
        return self.slug or author_path(self.name)


@dataclass(frozen=True, slots=True)
class Category:
    name: str
    parent: str = ""  # the name of the one that it is in; "" for none
    about: tuple[tuple[str, str], ...] = ()  # (text, slug of the article that it leads to, or "")
    topics: tuple[str, ...] = ()  # names of categories in it
    featured: tuple[str, ...] = ()  # slugs
    articles: tuple[str, ...] = ()  # slugs
    slug: str = ""

    @property
    def path(self) -> str:
        return self.slug or category_path(self.name)


LibraryPage = Article | Author | Category
_PAGE_TYPES: Final[Mapping[str, type[LibraryPage]]] = {"article": Article, "author": Author, "category": Category}


def make_slug(title: str) -> str:
    """Make the path of a title: hyphens for blanks, everything but letters and digits percent-encoded."""
    return quote(" ".join(title.split()).replace(" ", "-"), safe="")


def author_path(name: str) -> str:
    return f"Author/{make_slug(name.replace(',', ''))}"


def category_path(name: str) -> str:
    return f"Category:{make_slug(name)}"


def to_record(page: LibraryPage) -> dict[str, Any]:
    kind = next(name for name, cls in _PAGE_TYPES.items() if isinstance(page, cls))
    return {"kind": kind, **{name: value for name, value in asdict(page).items() if value}}


def from_record(record: Mapping[str, Any]) -> LibraryPage:
    """Read a page from JSON values; clean its texts, and cut those that no screen would show whole."""
    cls = _PAGE_TYPES[record["kind"]]
    fields = {name: _CLEANERS[name](record[name]) for name in cls.__dataclass_fields__ if name in record}
    title = fields.get("title" if cls is Article else "name")
    if not title:
        raise ConfigError(f"{record['kind']} without a title")
    page = cls(**fields)
    if len(page.path) > MAX_SLUG:
        raise ConfigError(f"the path of {title[:40]!r} is longer than {MAX_SLUG} characters")
    return page


def clean_line(text: str, most: int) -> str:
    """Put a text on one line, without control characters and lone surrogates, cut to `most` characters."""
    return " ".join(_blank_invisible(text[: 4 * most]).split())[:most]


_INVISIBLE_CATEGORIES: Final = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _blank_invisible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(" " if unicodedata.category(sign) in _INVISIBLE_CATEGORIES else sign for sign in text)


_clean_title = partial(clean_line, most=MAX_TITLE)
_clean_text = partial(clean_line, most=MAX_TEXT)


def _clean_slug(text: str) -> str:
    if not text.isascii() or not text.isprintable() or set(text) & set(' ?#"<>'):
        raise ConfigError(f"{text[:40]!r} is no path: percent-encode it")
    return text


def _clean_list(values: Sequence[Any], clean: Callable[[Any], Any], most: int | None = MAX_LISTED) -> tuple[Any, ...]:
    return tuple(clean(value) for value in values[:most])


def _clean_method(method: Sequence[Any]) -> tuple[str, tuple[str, ...]]:
    return _clean_title(method[0]), _clean_list(method[1], _clean_text)


def _clean_about(part: Sequence[str]) -> tuple[str, str]:
    return _blank_invisible(part[0][:MAX_TEXT]), _clean_slug(part[1])


_CLEANERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("title", "name", "role", "byline", "updated"), _clean_title),
    **dict.fromkeys(("verified", "approved", "heading", "parent"), _clean_title),
    **dict.fromkeys(("intro", "bio"), _clean_text),
    **dict.fromkeys(("categories", "authors", "topics"), partial(_clean_list, clean=_clean_title)),
    **dict.fromkeys(("related", "featured"), partial(_clean_list, clean=_clean_slug)),
    "articles": partial(_clean_list, clean=_clean_slug, most=None),
    "references": partial(_clean_list, clean=_clean_text),
    "methods": partial(_clean_list, clean=_clean_method),
    "about": partial(_clean_list, clean=_clean_about),
    "views": int,
    "slug": _clean_slug,
}

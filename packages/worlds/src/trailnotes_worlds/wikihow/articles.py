"""What the app shows: articles, those who wrote them, and the categories that they are in."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
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
    """One article. Titles are without their "How to"."""

    title: str
    categories: tuple[str, ...] = ()  # names, the broadest first
    authors: tuple[str, ...] = ()
    byline: str = "Co-authored by"
    updated: str = ""  # as YYYY-MM-DD; "" is not told
    views: int = 0
    verified: str = ""  # one of `VERIFIED`
    approved: str = ""  # what stands beside the date: "Approved", "Tested"
    intro: str = ""
    methods: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (heading, steps)
    references: tuple[str, ...] = ()
    related: tuple[str, ...] = ()  # slugs of articles
    slug: str = ""  # its path; "" is made of its title
    heading: str = ""  # what stands above it; "" is "How to" and its title

    @property
    def path(self) -> str:
        """Where it is, after the host."""
        return self.slug or slug_of(self.title)

    @property
    def headed(self) -> str:
        """What stands above it."""
        return self.heading or f"How to {self.title}"


@dataclass(frozen=True, slots=True)
class Author:
    """One author, or expert."""

    name: str
    role: str = ""
    bio: str = ""
    articles: tuple[str, ...] = ()  # slugs, in the order in which they are listed
    slug: str = ""

    @property
    def path(self) -> str:
        """Where the page is, after the host."""
        return self.slug or author_path(self.name)


@dataclass(frozen=True, slots=True)
class Category:
    """One category."""

    name: str
    parent: str = ""  # the name of the one that it is in; "" for none
    about: tuple[tuple[str, str], ...] = ()  # (text, slug of the article that it leads to, or "")
    topics: tuple[str, ...] = ()  # names of categories in it
    featured: tuple[str, ...] = ()  # slugs
    articles: tuple[str, ...] = ()  # slugs
    slug: str = ""

    @property
    def path(self) -> str:
        """Where the page is, after the host."""
        return self.slug or category_path(self.name)


Page = Article | Author | Category
_KINDS: Final[Mapping[str, type[Page]]] = {"article": Article, "author": Author, "category": Category}


def slug_of(title: str) -> str:
    """The path of a title: hyphens for blanks, all but letters and digits in percent."""
    return quote(" ".join(title.split()).replace(" ", "-"), safe="")


def author_path(name: str) -> str:
    """The path of an author's page."""
    return f"Author/{slug_of(name.replace(',', ''))}"


def category_path(name: str) -> str:
    """The path of a category's page."""
    return f"Category:{slug_of(name)}"


def to_record(page: Page) -> dict[str, Any]:
    """A page as JSON."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(page, cls))
    return {"kind": kind, **{name: value for name, value in asdict(page).items() if value}}


def from_record(record: Any) -> Page:
    """A page of its JSON; texts are cleaned, and cut where they are longer than any screen would show.

    Raises:
        ConfigError: it is none; the text names the field.
    """
    if not isinstance(record, dict) or record.get("kind") not in _KINDS:
        raise ConfigError(f"a page is an object whose kind is one of {', '.join(_KINDS)}")
    cls = _KINDS[record["kind"]]
    readable = (name for name in record if name in cls.__dataclass_fields__)
    fields: dict[str, Any] = {name: _READERS[name](name, record[name]) for name in readable}
    titled = "title" if cls is Article else "name"
    if not fields.get(titled):
        raise ConfigError(f"{record['kind']} without a {titled}")
    page = cls(**fields)
    if len(page.path) > MAX_SLUG:
        raise ConfigError(f"the path of {fields[titled][:40]!r} is longer than {MAX_SLUG} characters")
    return page


def clean(text: str, most: int) -> str:
    """A text on one line, without control characters and halves of characters, cut to `most`."""
    return " ".join(_visible(text[: 4 * most]).split())[:most]


_UNSEEN: Final = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(" " if unicodedata.category(sign) in _UNSEEN else sign for sign in text)


def _short(name: str, value: Any) -> str:
    return clean(_str(name, value), MAX_TITLE)


def _long(name: str, value: Any) -> str:
    return clean(_str(name, value), MAX_TEXT)


def _slug(name: str, value: Any) -> str:
    text = _str(name, value)
    if not text.isascii() or not text.isprintable() or set(text) & set(' ?#"<>'):
        raise ConfigError(f"{name} {text[:40]!r} is no path: write it in percent")
    return text


def _str(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text, not {type(value).__name__}")
    return value


def _int(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 10**12:
        raise ConfigError(f"{name} must be a whole number, 0 or more")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name} must be a list")
    return list(value)[:MAX_LISTED]


def _pair(name: str, value: Any) -> tuple[Any, Any]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError(f"each of {name} must be a pair")
    return value[0], value[1]


def _shorts(name: str, value: Any) -> tuple[str, ...]:
    return tuple(_short(name, each) for each in _list(name, value))


def _longs(name: str, value: Any) -> tuple[str, ...]:
    return tuple(_long(name, each) for each in _list(name, value))


def _slugs(name: str, value: Any) -> tuple[str, ...]:
    return tuple(_slug(name, each) for each in _list(name, value))


def _all_slugs(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name} must be a list")
    return tuple(_slug(name, each) for each in value)


def _methods(name: str, value: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    pairs = (_pair(name, each) for each in _list(name, value))
    return tuple((_short(name, heading), _longs(name, steps)) for heading, steps in pairs)


def _about(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    pairs = (_pair(name, each) for each in _list(name, value))
    return tuple((_visible(_str(name, text)[:MAX_TEXT]), _slug(name, slug)) for text, slug in pairs)


_READERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "title": _short, "name": _short, "role": _short, "byline": _short, "updated": _short, "verified": _short,
    "approved": _short, "heading": _short, "parent": _short, "intro": _long, "bio": _long, "views": _int, "slug": _slug,
    "categories": _shorts, "authors": _shorts, "topics": _shorts, "references": _longs, "methods": _methods,
    "related": _slugs, "featured": _slugs, "articles": _all_slugs, "about": _about,
}  # fmt: skip

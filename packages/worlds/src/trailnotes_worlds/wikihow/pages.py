"""Layout of each page of the app: its texts from the top down, their positions, and the targets of taps on them.

Heights are pixels of a screen of 1080 x 1920. They come from the 29 recorded screens in REMEMBERER's release (commit
552cb62): the last leaf that shows tells the height of those above it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus

from trailnotes_worlds.wikihow.articles import ABOUT, Article, Author, Category, author_path, category_path
from trailnotes_worlds.wikihow.library import Library

TEXT: Final = "p"  # HTML tags, by which REMEMBERER renders the classes of Android
BUTTON: Final = "button"
IMAGE: Final = "img"
INPUT: Final = "input"
PLAIN_VIEW: Final = "div"


@dataclass(frozen=True, slots=True)
class View:
    """Leaf of the view hierarchy."""

    kind: str  # one of the tags above
    text: str = ""
    name: str = ""  # resource-id, without its package
    described: str = ""  # content-desc
    clickable: bool = False
    target: str = ""  # of a tap, see `app.py`; not displayed


class Leaf(NamedTuple):
    """View that an action can point at, by its place in the list."""

    view: View
    clickable: bool  # itself, or a view around it


def render_lines(listed: Iterable[Leaf], most: int | None = None) -> list[str]:
    return [_render_line(leaf, place, leaf.view.text[:most]) for place, leaf in enumerate(listed)]


def _render_line(leaf: Leaf, place: int, text: str) -> str:
    tag, alt = leaf.view.kind, leaf.view.described
    if tag == IMAGE:
        alt, text = f"{alt}: {text}" if alt and text else alt or text, ""
    attributes = {"class": leaf.view.name.replace("_", " "), "alt": alt}
    if tag == INPUT:
        attributes, text = {**attributes, "value": text, "type": "text"}, ""
    attributes |= {"id": str(place), "clickable": str(leaf.clickable).lower()}
    quoted = "".join(f" {name}={_quote_attribute(value)}" for name, value in attributes.items() if value)
    body = "" if tag in (IMAGE, INPUT) else f"{html.escape(text, quote=False)}</{tag}>"
    return f"<{tag}{quoted}>{body}".replace("\n", "&#10;").replace("\r", "&#13;")


def _quote_attribute(value: str) -> str:
    # As libxml2 does: apostrophes around a value with double quotes alone.
    value = html.escape(value, quote=False)
    if '"' in value and "'" not in value:
        return f"'{value}'"
    return '"' + value.replace('"', "&quot;") + '"'


PAGE_HEIGHT: Final = 1569  # of the part of the screen that shows the page
RESULTS_PER_PAGE: Final = 30  # articles on a page of results, by default
MAX_RESULTS: Final = 300  # articles of a search
SEARCH_TAP, CLEAR_TAP, FORM_TAP, REFERENCES_TAP = "@search", "@clear", "@form", "#References"

_ROW_HEIGHT: Final = 54  # a line of a results page
_LINE_HEIGHT: Final = 60  # of running text
_CHARACTERS_PER_LINE: Final = 46  # of a line of running text
_TODAY: Final = date(2022, 8, 1)  # reference of the ages of articles: about the date of the recordings
_MAX_LISTED: Final = 60  # articles on the page of an author or a category
_MAX_FEATURED: Final = 24
_MAX_BLURB_CHARS: Final = 225  # characters of an article on its author's page


class LayoutItem(NamedTuple):
    view: View
    top: int
    height: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a page of any length."""

    items: tuple[LayoutItem, ...]
    height: int
    clickable: bool = False  # the whole page reports itself as clickable
    has_menu: bool = False


class _ColumnBuilder:
    def __init__(self) -> None:
        self.items: list[LayoutItem] = []
        self.y = 0

    def add(self, kind: str, text: str = "", height: int = _LINE_HEIGHT, **more: Any) -> None:
        self.add_row([View(kind, text, **more)], height)

    def add_row(self, views: Sequence[View], height: int = _LINE_HEIGHT) -> None:
        self.items += [LayoutItem(view, self.y, height) for view in views]
        self.y += height

    def build_layout(self, *, clickable: bool = False, links_clickable: bool = False, has_menu: bool = False) -> Layout:
        if links_clickable:
            views = (replace(each.view, clickable=True) if each.view.target else each.view for each in self.items)
            self.items = [each._replace(view=view) for each, view in zip(self.items, views, strict=True)]
        return Layout(tuple(self.items), self.y, clickable, has_menu)


def build_home_page() -> Layout:
    return Layout((LayoutItem(View(PLAIN_VIEW, name="webView", clickable=True), 0, PAGE_HEIGHT),), 1)


def build_results_page(library: Library, query: str, start: int, most: int = RESULTS_PER_PAGE) -> Layout:
    column = _ColumnBuilder()
    names = library.search(query, MAX_RESULTS)
    for article in library.articles(names[start : start + most]):
        path, title = article.path, article.display_title
        column.add(PLAIN_VIEW, title, 80 + _ROW_HEIGHT * (_count_lines(title, 55) - 1), target=path)
        row = [View(PLAIN_VIEW, "• ", target=path)]
        column.add_row([*row, View(TEXT, f"{article.views:,} views", target=path)], _ROW_HEIGHT)
        if age := _format_age(article.updated):
            column.add_row([*row, View(TEXT, "Updated", target=path), View(TEXT, age, target=path)], _ROW_HEIGHT)
        if article.verified:
            column.add_row([*row, View(TEXT, article.verified, target=path)], _ROW_HEIGHT)
    buttons = []
    for label, first in (("Next >", start + most), ("< Previous", start - most)):
        if 0 <= first < len(names):
            buttons.append(View(TEXT, label, target=make_search_path(query, first)))
    if buttons:
        column.add_row(buttons, 2 * _LINE_HEIGHT)
    column.add(TEXT, f"{len(names)} Results", 2 * _LINE_HEIGHT)
    return column.build_layout(clickable=True)


def make_search_path(query: str, start: int = 0) -> str:
    return f"wikiHowTo?search={quote_plus(query)}" + (f"&start={start}" if start else "")


def build_article_page(library: Library, article: Article) -> Layout:
    column = _ColumnBuilder()
    column.add_row([View(TEXT, "Learn why people ", target=ABOUT), View(TEXT, "trust wikiHow", target=ABOUT)], 78)
    crumbs = [
        View(TEXT, name.upper(), target=_get_existing_path(library, category_path(name))) for name in article.categories
    ]
    column.add_row(_separate(crumbs, " »") or [View(TEXT, " ")], 62)
    title = article.display_title
    column.add(TEXT, title, 100 * _count_lines(title, 32), clickable=True)
    if article.authors:
        authors = [
            View(TEXT, name, target=_get_existing_path(library, author_path(name)), clickable=True)
            for name in article.authors
        ]
        column.add_row([View(TEXT, article.byline), View(TEXT, " "), *_separate(authors, " and ")], 70)
    column.add_row([*_iter_date_views(article)] or [View(TEXT, " ")], 70)
    column.add(PLAIN_VIEW, article.intro, _compute_text_height(article.intro))
    for number, (heading, steps) in enumerate(article.methods, start=1):
        column.add(PLAIN_VIEW, f"Method {number} Method {number} of {len(article.methods)}: {heading}", 190)
        for place, step in enumerate(steps, start=1):
            column.add(IMAGE, f"v4-460px-{article.path}-Step-{place}.jpg", 620)
            column.add(PLAIN_VIEW, str(place), 80)
            column.add(PLAIN_VIEW, step, _compute_text_height(step))
    if article.references:
        column.add(PLAIN_VIEW, "References", 120, name="References")
        for number, text in enumerate(article.references, start=1):
            column.add_row([View(TEXT, f"{number}. "), View(TEXT, text)], _compute_text_height(text))
    if related := [*library.articles(article.related)]:
        column.add(PLAIN_VIEW, "Related wikiHows", 120)
        for each in related:
            column.add_row(_build_title(each), 150)
    return column.build_layout(links_clickable=True, has_menu=True)


def _separate(views: Sequence[View], text: str) -> list[View]:
    return [part for view in views for part in (View(TEXT, text), view)][1:]


def _iter_date_views(article: Article) -> Iterator[View]:
    if article.updated:
        day = _parse_day(article.updated)
        date = f"{day:%B} {day.day}, {day.year}" if day else article.updated
        yield View(BUTTON, f"Last Updated: {date}", clickable=True)
    if article.references:
        yield View(TEXT, "References", target=REFERENCES_TAP)
    if article.approved:
        if article.references:
            yield View(TEXT, " ")
        yield View(BUTTON, article.approved, clickable=True)


def build_author_page(library: Library, author: Author) -> Layout:
    column = _ColumnBuilder()
    column.add(IMAGE, author.name, 560)
    column.add_row([View(TEXT, "Website", clickable=True), View(TEXT, "+ Follow", clickable=True)], 200)
    column.add(PLAIN_VIEW, author.name, 80)
    column.add(PLAIN_VIEW, author.role)
    column.add(PLAIN_VIEW, author.bio, _compute_text_height(author.bio))
    column.add(PLAIN_VIEW, height=30)
    column.add(TEXT, "wikiHow's Editorial Process", 80)
    column.add(TEXT, _PROCESS_TEXT, _compute_text_height(_PROCESS_TEXT))
    column.add(TEXT, "Learn more about how articles are made and why readers trust wikiHow.", 130, target=ABOUT)
    column.add(PLAIN_VIEW, height=30)
    column.add(PLAIN_VIEW, f"Co-authored Articles ({len(author.articles)})", 90)
    for article in library.articles(author.articles[:_MAX_LISTED]):
        for view in _build_title(article, PLAIN_VIEW):
            column.add_row([view], _LINE_HEIGHT if view.text == "How to" else _compute_text_height(view.text))
        blurb = article.intro[:_MAX_BLURB_CHARS]
        column.add(PLAIN_VIEW, blurb, _compute_text_height(blurb) + 30, target=article.path)
    return column.build_layout(links_clickable=True)


def build_category_page(library: Library, category: Category) -> Layout:
    column = _ColumnBuilder()
    parent = _get_existing_path(library, category_path(category.parent)) if category.parent else ""
    if not category.parent:  # the broadest ones have a picture and a search field
        column.add(PLAIN_VIEW, category.name, 400, name="category_banner_title")
        search = View(INPUT, name="category_banner_search_input", target=FORM_TAP)
        column.add_row([search, View(BUTTON, name="category_banner_submit", target=FORM_TAP)], 200)
    column.add(TEXT, "<", 70, target=parent)
    column.add(PLAIN_VIEW, height=20)
    column.add(PLAIN_VIEW, category.name, 100)
    _add_blurb(library, category, column)
    if topics := [each for name in category.topics if isinstance(each := library.get(category_path(name)), Category)]:
        column.add(PLAIN_VIEW, "Featured Topics", 120)
        for each in topics:
            picture = f"-crop-250-100-150px-{each.name.replace(' ', '-')}"
            column.add(IMAGE, described=picture, height=180, target=each.path)
            column.add(PLAIN_VIEW, each.name, 80, target=each.path)
    if featured := [*library.articles(category.featured[:_MAX_FEATURED])]:
        column.add(PLAIN_VIEW, "Featured Articles", 120)
        _add_grid(featured, column)
    others = [*library.articles(path for path in category.articles[:_MAX_LISTED] if path not in category.featured)]
    if others:
        if featured:
            column.add(PLAIN_VIEW, height=30)
        column.add(PLAIN_VIEW, f"Articles about {category.name}", 120)
        _add_grid(others, column)
    return column.build_layout(clickable=True)


def _build_title(article: Article, kind: str = TEXT) -> list[View]:
    if article.heading:
        return [View(PLAIN_VIEW, article.heading, target=article.path)]
    return [View(kind, "How to", target=article.path), View(PLAIN_VIEW, article.title, target=article.path)]


def _add_blurb(library: Library, category: Category, column: _ColumnBuilder) -> None:
    # Running text of several views: each begins on the last line of the one before.
    done = 0
    for text, slug in category.about:
        first, last = done // _CHARACTERS_PER_LINE, max(0, done + len(text) - 1) // _CHARACTERS_PER_LINE
        view = View(TEXT, text, target=_get_existing_path(library, slug) if slug else "")
        column.items.append(LayoutItem(view, column.y + first * _LINE_HEIGHT, (last - first + 1) * _LINE_HEIGHT))
        done += len(text)
    column.y += math.ceil(done / _CHARACTERS_PER_LINE) * _LINE_HEIGHT


def _add_grid(articles: Sequence[Article], column: _ColumnBuilder) -> None:
    # Two columns: a picture with a quality mark on it, and the title below.
    for number, article in enumerate(articles):
        path = article.path
        picture = f"-crop-375-300-375px-nowatermark-{path}-Step-1.jpg"
        titled = zip(_build_title(article), ((390, 160),) if article.heading else ((390, 50), (440, 110)), strict=True)
        card = [(View(IMAGE, described=picture, target=path), 0, 390), *((view, *place) for view, place in titled)]
        if article.verified.startswith("Expert"):
            card.append((View(PLAIN_VIEW, "Expert", target=path), 40, 60))
        column.items += [LayoutItem(view, column.y + top, high) for view, top, high in card]
        if number % 2 or number == len(articles) - 1:
            column.y += 550


def build_about_page() -> Layout:
    column = _ColumnBuilder()
    column.add(PLAIN_VIEW, "Information You Can Trust", 300)
    column.add(PLAIN_VIEW, "A Guide to our Editorial Process", 120)
    for text in _TRUST_TEXTS:
        column.add(PLAIN_VIEW, text, _compute_text_height(text))
    return column.build_layout()


def _get_existing_path(library: Library, path: str) -> str:
    return path if path in library else ""


def _count_lines(text: str, characters: int) -> int:
    return max(1, math.ceil(len(text) / characters))


def _compute_text_height(text: str) -> int:
    return _LINE_HEIGHT * _count_lines(text, _CHARACTERS_PER_LINE) + 10


def _parse_day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _format_age(updated: str) -> str:
    day = _parse_day(updated)
    if day is None:
        return ""
    days = max(0, (_TODAY - day).days)
    steps = ((8, 1, "day"), (30, 7, "week"), (365, 30, "month"), (math.inf, 365, "year"))
    number, unit = next((days // size, unit) for below, size, unit in steps if days < below)
    return f"{number} {unit}{'' if number == 1 else 's'} ago"


_PROCESS_TEXT: Final = (
    "What stands here has been read by people who know the subject. Experts answer questions, writers turn the answers "
    "into steps, and both check the result before it is shown."
)
_TRUST_TEXTS: Final = (
    "Every article is written by people who have read up on it, and checked by somebody who did not write it.",
    "Experts are named with their training, and say which articles they have read.",
    "Readers say what has worked for them; articles that have not are written again.",
)

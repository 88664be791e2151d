"""How each page of the app is laid out: its texts from the top down, where each is, and where a tap on it leads.

Measures are pixels of a screen of 1080 x 1920. They are taken from the 29 recorded screens that REMEMBERER's release
holds (commit 552cb62): which leaf is the last one that still shows says how high those above it are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus

from trailnotes_worlds.wikihow.articles import ABOUT, Article, Author, Category, author_path, category_path
from trailnotes_worlds.wikihow.library import Library
from trailnotes_worlds.wikihow.views import BUTTON, IMAGE, INPUT, PLAIN, TEXT, WIDTH, Box, View

TOP: Final = 225  # of what of the screen shows the page
BOTTOM: Final = 1794
PER_SEARCH: Final = 30  # articles on a page of results, unless the options say otherwise
FOUND: Final = 300  # articles that a search finds at most
SEARCH_TAP, CLEAR_TAP, FORM_TAP, REFERENCES_TAP = "@search", "@clear", "@form", "#References"

_ROW: Final = 54  # a line of a results page
_LINE: Final = 60  # of running text
_CHARACTERS: Final = 46  # of a line of running text
_TODAY: Final = date(2022, 8, 1)  # from which the ages of articles are counted: about when the pages were recorded
_LISTED: Final = 60  # articles on the page of an author or a category
_FEATURED: Final = 24
_BLURB: Final = 225  # characters of an article on its author's page


class Item(NamedTuple):
    """A view, and where on its page it is."""

    view: View
    top: int
    height: int
    left: int = 0
    right: int = WIDTH
    within: tuple[str, ...] = ()  # resource-ids of the views around it, the outermost first


@dataclass(frozen=True, slots=True)
class Layout:
    """A page, of any length."""

    items: tuple[Item, ...]
    height: int
    clickable: bool = False  # the whole page reacts, as far as an agent is told
    has_menu: bool = False

    def seen(self, offset: int) -> list[Item]:
        """What shows of it, scrolled down by `offset`, each at its place on the screen and cut to it."""
        shift = TOP - offset
        shown = []
        for item in self.items:
            top, bottom = max(TOP, item.top + shift), min(BOTTOM, item.top + item.height + shift)
            if top < bottom:
                view, box = item.view, Box(item.left, top, item.right, bottom)
                placed = View(view.kind, view.text, view.name, view.described, view.clickable, box, (), view.target)
                shown.append(item._replace(view=placed))  # made anew: `replace` takes several times as long
        return shown

    def place_of(self, name: str) -> int:
        """How far down the view with a resource-id is."""
        return next((item.top for item in self.items if name in (item.view.name, *item.within)), 0)


class _Column:
    """Lays views out from the top down."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.y = 0

    def add(self, kind: str, text: str = "", height: int = _LINE, *, within: tuple[str, ...] = (), **more: Any) -> None:
        """One view, as wide as the page."""
        self.items.append(Item(View(kind, text, **more), self.y, height, within=within))
        self.y += height

    def row(self, views: Sequence[View], height: int = _LINE) -> None:
        """Views beside each other."""
        for number, view in enumerate(views):
            left, right = (WIDTH * each // len(views) for each in (number, number + 1))
            self.items.append(Item(view, self.y, height, left, right))
        self.y += height

    def layout(self, *, clickable: bool = False, has_menu: bool = False) -> Layout:
        """The page that it has become."""
        return Layout(tuple(self.items), self.y, clickable, has_menu)


def home() -> Layout:
    """The page that the app begins with; its web page shows nothing."""
    return Layout((Item(View(PLAIN, name="com.wikihow.wikihowapp:id/webView", clickable=True), 0, BOTTOM - TOP),), 1)


def results(library: Library, query: str, start: int, most: int = PER_SEARCH) -> Layout:
    """The articles that a search has found, from the `start`-th on, `most` to a page."""
    column = _Column()
    found = library.search(query, FOUND)
    for article in library.articles(found[start : start + most]):
        path, title = article.path, article.headed
        column.add(PLAIN, title, 80 + _ROW * (_lines(title, 55) - 1), target=path)
        row = [View(PLAIN, "• ", target=path)]
        column.row([*row, View(TEXT, f"{article.views:,} views", target=path)], _ROW)
        if age := _age(article.updated):
            column.row([*row, View(TEXT, "Updated", target=path), View(TEXT, age, target=path)], _ROW)
        if article.verified:
            column.row([*row, View(TEXT, article.verified, target=path)], _ROW)
    buttons = []
    for label, first in (("Next >", start + most), ("< Previous", start - most)):
        if 0 <= first < len(found):
            buttons.append(View(TEXT, label, target=search_path(query, first)))
    if buttons:
        column.row(buttons, 2 * _LINE)
    column.add(TEXT, f"{len(found)} Results", 2 * _LINE)
    return column.layout(clickable=True)


def search_path(query: str, start: int = 0) -> str:
    """The path of a page of results."""
    return f"wikiHowTo?search={quote_plus(query)}" + (f"&start={start}" if start else "")


def article_page(library: Library, article: Article) -> Layout:
    """An article, from its head to its categories."""
    column = _Column()
    column.row([View(TEXT, "Learn why people ", target=ABOUT), View(TEXT, "trust wikiHow", target=ABOUT)], 78)
    column.row([*_breadcrumb(library, article)] or [View(TEXT, " ")], 62)
    title = article.headed
    column.add(TEXT, title, 100 * _lines(title, 32), within=("content_inner", "section_0"), clickable=True)
    if article.authors:
        column.row([View(TEXT, article.byline), View(TEXT, " "), *_names(library, article)], 70)
    column.row([*_dates(article)] or [View(TEXT, " ")], 70)
    column.add(PLAIN, article.intro, _text_height(article.intro))
    for number, (heading, steps) in enumerate(article.methods, start=1):
        column.add(PLAIN, f"Method {number} Method {number} of {len(article.methods)}: {heading}", 190)
        for place, step in enumerate(steps, start=1):
            column.add(IMAGE, f"v4-460px-{article.path}-Step-{place}.jpg", 620)
            column.add(PLAIN, str(place), 80)
            column.add(PLAIN, step, _text_height(step))
    if article.references:
        column.add(PLAIN, "References", 120, name="References")
        for number, text in enumerate(article.references, start=1):
            column.row([View(TEXT, f"{number}. "), View(TEXT, text)], _text_height(text))
    if related := [*library.articles(article.related)]:
        column.add(PLAIN, "Related wikiHows", 120)
        for each in related:
            column.row(_title(each), 150)
    return _links_react(column.layout(has_menu=True))


def _breadcrumb(library: Library, article: Article) -> Iterator[View]:
    for number, name in enumerate(article.categories):
        if number:
            yield View(TEXT, " »")
        yield View(TEXT, name.upper(), target=_if_there(library, category_path(name)))


def _names(library: Library, article: Article) -> Iterator[View]:
    for number, name in enumerate(article.authors):
        if number:
            yield View(TEXT, " and ")
        yield View(TEXT, name, target=_if_there(library, author_path(name)), clickable=True)


def _dates(article: Article) -> Iterator[View]:
    if article.updated:
        day = _day(article.updated)
        told = f"{day:%B} {day.day}, {day.year}" if day else article.updated
        yield View(BUTTON, f"Last Updated: {told}", clickable=True)
    if article.references:
        yield View(TEXT, "References", target=REFERENCES_TAP)
    if article.approved:
        if article.references:
            yield View(TEXT, " ")
        yield View(BUTTON, article.approved, clickable=True)


def author_page(library: Library, author: Author) -> Layout:
    """An author: picture, life, and articles."""
    column = _Column()
    column.add(IMAGE, author.name, 560, within=("mw-content-text", "authors_container"))
    column.row([View(TEXT, "Website", clickable=True), View(TEXT, "+ Follow", clickable=True)], 200)
    column.add(PLAIN, author.name, 80)
    column.add(PLAIN, author.role)
    column.add(PLAIN, author.bio, _text_height(author.bio))
    column.add(PLAIN, height=30)
    column.add(TEXT, "wikiHow's Editorial Process", 80)
    column.add(TEXT, _PROCESS, _text_height(_PROCESS))
    column.add(TEXT, "Learn more about how articles are made and why readers trust wikiHow.", 130, target=ABOUT)
    column.add(PLAIN, height=30)
    column.add(PLAIN, f"Co-authored Articles ({len(author.articles)})", 90)
    for article in library.articles(author.articles[:_LISTED]):
        for view in _title(article, PLAIN):
            column.row([view], _LINE if view.text == "How to" else _text_height(view.text))
        blurb = article.intro[:_BLURB]
        column.add(PLAIN, blurb, _text_height(blurb) + 30, target=article.path)
    return _links_react(column.layout())


def category_page(library: Library, category: Category) -> Layout:
    """A category: what it is about, topics in it, and articles."""
    column = _Column()
    parent = _if_there(library, category_path(category.parent)) if category.parent else ""
    if not category.parent:  # the broadest ones have a picture and a search of their own
        column.add(PLAIN, category.name, 400, name="category_banner_title")
        search = View(INPUT, name="category_banner_search_input", target=FORM_TAP)
        column.row([search, View(BUTTON, name="category_banner_submit", target=FORM_TAP)], 200)
    column.add(TEXT, "<", 70, target=parent)
    column.add(PLAIN, height=20)
    column.add(PLAIN, category.name, 100, within=("content_wrapper", "cat_navigation"))
    _blurb(library, category, column)
    if topics := [each for name in category.topics if isinstance(each := library.get(category_path(name)), Category)]:
        column.add(PLAIN, "Featured Topics", 120)
        for each in topics:
            picture = f"-crop-250-100-150px-{each.name.replace(' ', '-')}"
            column.add(IMAGE, described=picture, height=180, target=each.path)
            column.add(PLAIN, each.name, 80, target=each.path)
    featured = [*library.articles(category.featured[:_FEATURED])]
    if featured:
        column.add(PLAIN, "Featured Articles", 120)
        _grid(featured, column)
    others = [*library.articles(path for path in category.articles[:_LISTED] if path not in category.featured)]
    if others:
        if featured:
            column.add(PLAIN, height=30)
        column.add(PLAIN, f"Articles about {category.name}", 120)
        _grid(others, column)
    return column.layout(clickable=True)


def _title(article: Article, kind: str = TEXT) -> list[View]:
    """What a list calls an article; "How to", of that kind, stands by itself where it stands at all."""
    if article.heading:
        return [View(PLAIN, article.heading, target=article.path)]
    return [View(kind, "How to", target=article.path), View(PLAIN, article.title, target=article.path)]


def _blurb(library: Library, category: Category, column: _Column) -> None:
    """A running text of several views: each begins on the line on which the one before ends."""
    done = 0
    for text, slug in category.about:
        first, last = done // _CHARACTERS, max(0, done + len(text) - 1) // _CHARACTERS
        view = View(TEXT, text, target=_if_there(library, slug) if slug else "")
        column.items.append(Item(view, column.y + first * _LINE, (last - first + 1) * _LINE))
        done += len(text)
    column.y += math.ceil(done / _CHARACTERS) * _LINE


def _grid(articles: Sequence[Article], column: _Column) -> None:
    """Articles in two columns: a picture with a mark of its quality on it, and the title below."""
    for number, article in enumerate(articles):
        left, path = number % 2 * WIDTH // 2, article.path
        picture = f"-crop-375-300-375px-nowatermark-{path}-Step-1.jpg"
        titled = zip(_title(article), ((390, 160),) if article.heading else ((390, 50), (440, 110)), strict=True)
        card = [(View(IMAGE, described=picture, target=path), 0, 390), *((view, *place) for view, place in titled)]
        if article.verified.startswith("Expert"):
            card.append((View(PLAIN, "Expert", target=path), 40, 60))
        column.items += [Item(view, column.y + top, high, left, left + WIDTH // 2) for view, top, high in card]
        if left or number == len(articles) - 1:
            column.y += 550


def about_page() -> Layout:
    """Why people may trust the articles."""
    column = _Column()
    head = ("trustworthy_top", "trustworthy_head")
    column.add(PLAIN, "Information You Can Trust", 300, within=head)
    column.add(PLAIN, "A Guide to our Editorial Process", 120, within=head)
    for text in _TRUST:
        column.add(PLAIN, text, _text_height(text))
    return column.layout()


def _links_react(layout: Layout) -> Layout:
    """Where the page itself does not react, what leads somewhere does."""
    items = [
        item._replace(view=replace(item.view, clickable=bool(item.view.clickable or item.view.target)))
        for item in layout.items
    ]
    return replace(layout, items=tuple(items))


def _if_there(library: Library, path: str) -> str:
    return path if path in library else ""


def _lines(text: str, characters: int) -> int:
    return max(1, math.ceil(len(text) / characters))


def _text_height(text: str) -> int:
    return _LINE * _lines(text, _CHARACTERS) + 10


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _age(updated: str) -> str:
    """How long ago it was, as a results page says it; "" where it is not known."""
    day = _day(updated)
    if day is None:
        return ""
    days = max(0, (_TODAY - day).days)
    steps = ((8, 1, "day"), (30, 7, "week"), (365, 30, "month"), (math.inf, 365, "year"))
    number, unit = next((days // size, unit) for below, size, unit in steps if days < below)
    return f"{number} {unit}{'' if number == 1 else 's'} ago"


_PROCESS: Final = (
    "What stands here has been read by people who know the subject. Experts answer questions, writers turn the answers "
    "into steps, and both check the result before it is shown."
)
_TRUST: Final = (
    "Every article is written by people who have read up on it, and checked by somebody who did not write it.",
    "Experts are named with their training, and say which articles they have read.",
    "Readers say what has worked for them; articles that have not are written again.",
)

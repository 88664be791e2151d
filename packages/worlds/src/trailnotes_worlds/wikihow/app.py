"""The app: which page shows, what is on the screen, and what a tap, a text or a swipe does.

A `Visit` is all that an episode has of it; `App` answers for it and keeps nothing. Like the original, it writes a line
into the log at each navigation, which is what tasks are judged by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from trailnotes.types import speakable
from trailnotes_worlds.wikihow import pages
from trailnotes_worlds.wikihow.actions import Action
from trailnotes_worlds.wikihow.articles import ABOUT, Article, Author, Category, clean
from trailnotes_worlds.wikihow.events import LogLine
from trailnotes_worlds.wikihow.library import Library
from trailnotes_worlds.wikihow.pages import BOTTOM, TOP, Item, Layout
from trailnotes_worlds.wikihow.views import (
    HEIGHT,
    IMAGE_VIEW,
    INPUT,
    PACKAGE,
    PLAIN,
    WIDTH,
    Box,
    Leaf,
    View,
    leaves,
)

HOST: Final = "https://www.wikihow.com/"
MAX_QUERY: Final = 200  # characters of a text that is typed
SWIPE: Final = 1152  # pixels: from 0.2 to 0.8 of the screen
_SEARCH: Final = "wikiHowTo?"
_FRAME: Final = "android.widget.FrameLayout"
_ID: Final = f"{PACKAGE}:id/"
_STATUS: Final = 63  # pixels of the bar at the top, which is the phone's
_WHOLE: Final = Box(0, 0, WIDTH, HEIGHT)


class Shown(NamedTuple):
    """A page, and how far down it one has scrolled."""

    path: str  # after the host; "" is home
    offset: int = 0  # pixels


@dataclass(frozen=True, slots=True)
class Visit:
    """Where an episode is."""

    shown: tuple[Shown, ...] = (Shown(""),)  # one behind the other; the last one is seen
    field: str | None = None  # what stands in the search field; None while it is closed

    @property
    def here(self) -> Shown:
        """The page that is seen."""
        return self.shown[-1]


class Turn(NamedTuple):
    """What an action has led to."""

    visit: Visit
    log: tuple[LogLine, ...] = ()
    refused: str = ""  # why nothing was done; "" where something was


class App:
    """A library behind screens, `per_search` results to a page. Holds no visit: any number of them may share it."""

    def __init__(self, library: Library, per_search: int = pages.PER_SEARCH) -> None:
        self._library, self._per_search = library, per_search
        self._layout: Callable[[str], Layout | None] = lru_cache(64)(self._laid_out)
        # A screen is asked for by its text, its offers, its events and the next action.
        self._screen: Callable[[Visit], tuple[View, tuple[Leaf, ...]]] = lru_cache(8)(self._drawn)

    # -- what is on the screen

    def screen(self, visit: Visit) -> View:
        """The view hierarchy."""
        return self._screen(visit)[0]

    def leaves(self, visit: Visit) -> tuple[Leaf, ...]:
        """What can be pointed at."""
        return self._screen(visit)[1]

    def _drawn(self, visit: Visit) -> tuple[View, tuple[Leaf, ...]]:
        layout = self._layout(visit.here.path)
        assert layout is not None, "only pages that are there are gone to"
        web = View(
            "android.webkit.WebView", clickable=layout.clickable, box=Box(0, TOP, WIDTH, BOTTOM),
            children=_grouped(layout.seen(visit.here.offset)),
        )  # fmt: skip
        bar = View(PLAIN, name="android:id/statusBarBackground", box=Box(0, 0, WIDTH, _STATUS))
        root = View(_FRAME, box=_WHOLE, children=(_toolbar(visit, layout), web, bar))
        return root, leaves(root)

    def can_go_back(self, visit: Visit) -> bool:
        """Whether GOBACK does something."""
        return not self._back(visit).refused

    def can_scroll(self, visit: Visit, direction: str) -> bool:
        """Whether there is more of the page in a direction."""
        return not self._scrolled(visit, direction).refused

    # -- what an action does

    def step(self, visit: Visit, action: Action) -> Turn:
        """Take one action. What does not fit changes nothing, and the turn says why."""
        if action.kind == "GOBACK":
            return self._back(visit)
        if action.kind == "SCROLL":
            return self._scrolled(visit, action.direction)
        if action.kind == "NOTHING":
            return Turn(visit, refused="nothing to do")
        listed = self.leaves(visit)
        view = listed[min(action.element, len(listed) - 1)].view  # as the original clips it
        if action.kind == "INPUT" and view.target in (pages.SEARCH_TAP, pages.FORM_TAP):
            return self._searched(visit, action.text)
        return self._tapped(visit, view)

    def _tapped(self, visit: Visit, view: View) -> Turn:
        if view.target == pages.SEARCH_TAP:
            is_open = visit.field is not None
            return Turn(visit, refused="the search is open") if is_open else Turn(replace(visit, field=""))
        if view.target == pages.CLEAR_TAP:
            return Turn(replace(visit, field=""))
        if view.target == pages.REFERENCES_TAP:
            layout = self._layout(visit.here.path)
            assert layout is not None
            log = _line(f"url is: {_url(visit.here.path)}{pages.REFERENCES_TAP}")
            return Turn(_moved(visit, layout, layout.place_of("References")), (log,))
        if view.target in ("", pages.FORM_TAP):
            return Turn(visit, refused="nothing happens there")
        return self._gone(visit, view.target)

    def _searched(self, visit: Visit, text: str) -> Turn:
        typed = clean(speakable(text), MAX_QUERY)
        if not typed:
            return Turn(visit, refused="an empty search")
        return self._gone(visit, pages.search_path(f"{typed} "))

    def _gone(self, visit: Visit, path: str) -> Turn:
        if self._layout(path) is None:
            return Turn(visit, refused="the page is not in the library")
        return _at(replace(visit, shown=(*visit.shown, Shown(path))))

    def _back(self, visit: Visit) -> Turn:
        if visit.field is not None and not visit.here.path.startswith(_SEARCH):
            return Turn(replace(visit, field=None))
        if len(visit.shown) == 1:
            return Turn(visit, refused="there is nothing to go back to")
        return _at(replace(visit, shown=visit.shown[:-1]))

    def _scrolled(self, visit: Visit, direction: str) -> Turn:
        layout = self._layout(visit.here.path)
        assert layout is not None
        by = {"DOWN": SWIPE, "UP": -SWIPE}.get(direction, 0)
        moved = _moved(visit, layout, visit.here.offset + by)
        return Turn(moved, refused="" if moved != visit else "there is nothing further")

    def _laid_out(self, path: str) -> Layout | None:
        if path == "":
            return pages.home()
        if path == ABOUT:
            return pages.about_page()
        if path.startswith(_SEARCH):
            query, start = _query_of(path)
            return pages.results(self._library, query, start, self._per_search)
        page = self._library.get(path)
        if isinstance(page, Article):
            return pages.article_page(self._library, page)
        if isinstance(page, Author):
            return pages.author_page(self._library, page)
        return pages.category_page(self._library, page) if isinstance(page, Category) else None


def _at(visit: Visit) -> Turn:
    """The page that is seen has changed: on results the search field shows what was typed, elsewhere it is closed."""
    path = visit.here.path
    field = _query_of(path)[0] if path.startswith(_SEARCH) else None
    return Turn(replace(visit, field=field), (_line(f"mUrl is: {_url(path)}"),))


def _moved(visit: Visit, layout: Layout, offset: int) -> Visit:
    offset = max(0, min(offset, layout.height - (BOTTOM - TOP)))
    return replace(visit, shown=(*visit.shown[:-1], visit.here._replace(offset=offset)))


def _query_of(path: str) -> tuple[str, int]:
    asked = parse_qs(path.removeprefix(_SEARCH))
    return asked["search"][0], int(asked.get("start", ["0"])[0])


def _url(path: str) -> str:
    return f"{HOST}{path}&wh_an=1" if path.startswith(_SEARCH) else f"{HOST}{path}?wh_an=1&amp=1"


def _line(text: str) -> LogLine:
    return LogLine("jd", "D", text)


def _grouped(items: Sequence[Item], depth: int = 0) -> tuple[View, ...]:
    """The views of a page, those that lie in a named view within it."""
    views: list[View] = []
    for name, group in groupby(items, key=lambda item: item.within[depth] if len(item.within) > depth else ""):
        if not name:
            views += [item.view for item in group]
            continue
        children = _grouped([*group], depth + 1)
        box = Box(0, children[0].box.top, WIDTH, children[-1].box.bottom)
        views.append(View(PLAIN, name=name, box=box, children=children))
    return tuple(views)


def _toolbar(visit: Visit, layout: Layout) -> View:
    """The bar above the page: the search field where it is open, else the search button."""
    views = [_button("android.widget.ImageButton", "", "Open navigation drawer", (0, 147))]
    if visit.field is None:
        if visit.here.path == "":
            views.append(View(IMAGE_VIEW, name=f"{_ID}wikihow_toolbar_logo", box=Box(147, _STATUS, 600, TOP)))
        views.append(_button(IMAGE_VIEW, "search_button", "Search", (820, 950), pages.SEARCH_TAP))
        if layout.has_menu:
            views.append(_button(IMAGE_VIEW, "", "More options", (950, WIDTH)))
    else:
        views.append(_plate(visit.field))
    return _row("toolbar", views, 0)


def _plate(typed: str) -> View:
    box = Box(160, _STATUS, 950, TOP)
    field = View(INPUT, typed, f"{_ID}search_src_text", clickable=True, box=box, target=pages.SEARCH_TAP)
    clear = _button(IMAGE_VIEW, "search_close_btn", "Clear query", (950, WIDTH), pages.CLEAR_TAP)
    return _row("search_plate", [field, clear] if typed else [field], 160)


def _row(name: str, views: Sequence[View], left: int) -> View:
    box = Box(left, _STATUS, WIDTH, TOP)
    return View("android.widget.LinearLayout", name=f"{_ID}{name}", box=box, children=tuple(views))


def _button(kind: str, name: str, described: str, edges: tuple[int, int], target: str = "") -> View:
    box = Box(edges[0], _STATUS, edges[1], TOP)
    full = f"{_ID}{name}" if name else ""
    return View(kind, name=full, described=described, clickable=True, box=box, target=target)

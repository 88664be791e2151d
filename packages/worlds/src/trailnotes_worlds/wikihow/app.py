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

from trailnotes.types import replace_surrogates
from trailnotes_worlds.wikihow import pages
from trailnotes_worlds.wikihow.actions import Action
from trailnotes_worlds.wikihow.articles import ABOUT, Article, Author, Category, clean_line
from trailnotes_worlds.wikihow.events import LogLine
from trailnotes_worlds.wikihow.library import Library
from trailnotes_worlds.wikihow.pages import BOTTOM, TOP, Layout, LayoutItem
from trailnotes_worlds.wikihow.views import (
    HEIGHT,
    IMAGE_VIEW,
    INPUT,
    PACKAGE,
    PLAIN_VIEW,
    WIDTH,
    Box,
    Leaf,
    View,
    list_leaves,
)

HOST: Final = "https://www.wikihow.com/"
MAX_QUERY: Final = 200  # characters of a text that is typed
SWIPE_PIXELS: Final = 1152  # pixels: from 0.2 to 0.8 of the screen
_SEARCH_PREFIX: Final = "wikiHowTo?"
_FRAME: Final = "android.widget.FrameLayout"
_ID: Final = f"{PACKAGE}:id/"
_STATUS_BAR_HEIGHT: Final = 63  # pixels of the bar at the top, which is the phone's
_FULL_SCREEN: Final = Box(0, 0, WIDTH, HEIGHT)


class PagePosition(NamedTuple):
    """A page, and how far down it one has scrolled."""

    path: str  # after the host; "" is home
    offset: int = 0  # pixels


@dataclass(frozen=True, slots=True)
class AppState:
    """Where an episode is."""

    shown: tuple[PagePosition, ...] = (PagePosition(""),)  # one behind the other; the last one is seen
    field: str | None = None  # what stands in the search field; None while it is closed

    @property
    def current_page(self) -> PagePosition:
        """The page that is seen."""
        return self.shown[-1]


class AppTransition(NamedTuple):
    """What an action has led to."""

    visit: AppState
    log: tuple[LogLine, ...] = ()
    refused: str = ""  # why nothing was done; "" where something was


class WikiHowApp:
    """A library behind screens, `per_search` results to a page. Holds no visit: any number of them may share it."""

    def __init__(self, library: Library, per_search: int = pages.RESULTS_PER_PAGE) -> None:
        self._library, self._per_search = library, per_search
        self._layout: Callable[[str], Layout | None] = lru_cache(64)(self._build_layout)
        # A screen is asked for by its text, its offers, its events and the next action.
        self._screen: Callable[[AppState], tuple[View, tuple[Leaf, ...]]] = lru_cache(8)(self._build_screen)

    # -- what is on the screen

    def screen(self, visit: AppState) -> View:
        """The view hierarchy."""
        return self._screen(visit)[0]

    def leaves(self, visit: AppState) -> tuple[Leaf, ...]:
        """What can be pointed at."""
        return self._screen(visit)[1]

    def _build_screen(self, visit: AppState) -> tuple[View, tuple[Leaf, ...]]:
        layout = self._layout(visit.current_page.path)
        assert layout is not None, "only pages that are there are gone to"
        web = View(
            "android.webkit.WebView", clickable=layout.clickable, box=Box(0, TOP, WIDTH, BOTTOM),
            children=_group_views(layout.list_visible(visit.current_page.offset)),
        )  # fmt: skip
        bar = View(PLAIN_VIEW, name="android:id/statusBarBackground", box=Box(0, 0, WIDTH, _STATUS_BAR_HEIGHT))
        root = View(_FRAME, box=_FULL_SCREEN, children=(_build_toolbar(visit, layout), web, bar))
        return root, list_leaves(root)

    def can_go_back(self, visit: AppState) -> bool:
        """Whether GOBACK does something."""
        return not self._go_back(visit).refused

    def can_scroll(self, visit: AppState, direction: str) -> bool:
        """Whether there is more of the page in a direction."""
        return not self._scroll(visit, direction).refused

    # -- what an action does

    def step(self, visit: AppState, action: Action) -> AppTransition:
        """Take one action. What does not fit changes nothing, and the turn says why."""
        if action.kind == "GOBACK":
            return self._go_back(visit)
        if action.kind == "SCROLL":
            return self._scroll(visit, action.direction)
        if action.kind == "NOTHING":
            return AppTransition(visit, refused="nothing to do")
        listed = self.leaves(visit)
        view = listed[min(action.element, len(listed) - 1)].view  # as the original clips it
        if action.kind == "INPUT" and view.target in (pages.SEARCH_TAP, pages.FORM_TAP):
            return self._search(visit, action.text)
        return self._tap(visit, view)

    def _tap(self, visit: AppState, view: View) -> AppTransition:
        if view.target == pages.SEARCH_TAP:
            is_open = visit.field is not None
            return (
                AppTransition(visit, refused="the search is open")
                if is_open
                else AppTransition(replace(visit, field=""))
            )
        if view.target == pages.CLEAR_TAP:
            return AppTransition(replace(visit, field=""))
        if view.target == pages.REFERENCES_TAP:
            layout = self._layout(visit.current_page.path)
            assert layout is not None
            log = _make_log_line(f"url is: {_format_url(visit.current_page.path)}{pages.REFERENCES_TAP}")
            return AppTransition(_scroll_to(visit, layout, layout.find_top("References")), (log,))
        if view.target in ("", pages.FORM_TAP):
            return AppTransition(visit, refused="nothing happens there")
        return self._open_page(visit, view.target)

    def _search(self, visit: AppState, text: str) -> AppTransition:
        typed = clean_line(replace_surrogates(text), MAX_QUERY)
        if not typed:
            return AppTransition(visit, refused="an empty search")
        return self._open_page(visit, pages.make_search_path(f"{typed} "))

    def _open_page(self, visit: AppState, path: str) -> AppTransition:
        if self._layout(path) is None:
            return AppTransition(visit, refused="the page is not in the library")
        return _log_navigation(replace(visit, shown=(*visit.shown, PagePosition(path))))

    def _go_back(self, visit: AppState) -> AppTransition:
        if visit.field is not None and not visit.current_page.path.startswith(_SEARCH_PREFIX):
            return AppTransition(replace(visit, field=None))
        if len(visit.shown) == 1:
            return AppTransition(visit, refused="there is nothing to go back to")
        return _log_navigation(replace(visit, shown=visit.shown[:-1]))

    def _scroll(self, visit: AppState, direction: str) -> AppTransition:
        layout = self._layout(visit.current_page.path)
        assert layout is not None
        by = {"DOWN": SWIPE_PIXELS, "UP": -SWIPE_PIXELS}.get(direction, 0)
        moved = _scroll_to(visit, layout, visit.current_page.offset + by)
        return AppTransition(moved, refused="" if moved != visit else "there is nothing further")

    def _build_layout(self, path: str) -> Layout | None:
        if path == "":
            return pages.build_home_page()
        if path == ABOUT:
            return pages.build_about_page()
        if path.startswith(_SEARCH_PREFIX):
            query, start = _parse_query(path)
            return pages.build_results_page(self._library, query, start, self._per_search)
        page = self._library.get(path)
        if isinstance(page, Article):
            return pages.build_article_page(self._library, page)
        if isinstance(page, Author):
            return pages.build_author_page(self._library, page)
        return pages.build_category_page(self._library, page) if isinstance(page, Category) else None


def _log_navigation(visit: AppState) -> AppTransition:
    """The page that is seen has changed: on results the search field shows what was typed, elsewhere it is closed."""
    path = visit.current_page.path
    field = _parse_query(path)[0] if path.startswith(_SEARCH_PREFIX) else None
    return AppTransition(replace(visit, field=field), (_make_log_line(f"mUrl is: {_format_url(path)}"),))


def _scroll_to(visit: AppState, layout: Layout, offset: int) -> AppState:
    offset = max(0, min(offset, layout.height - (BOTTOM - TOP)))
    return replace(visit, shown=(*visit.shown[:-1], visit.current_page._replace(offset=offset)))


def _parse_query(path: str) -> tuple[str, int]:
    asked = parse_qs(path.removeprefix(_SEARCH_PREFIX))
    return asked["search"][0], int(asked.get("start", ["0"])[0])


def _format_url(path: str) -> str:
    return f"{HOST}{path}&wh_an=1" if path.startswith(_SEARCH_PREFIX) else f"{HOST}{path}?wh_an=1&amp=1"


def _make_log_line(text: str) -> LogLine:
    return LogLine("jd", "D", text)


def _group_views(items: Sequence[LayoutItem], depth: int = 0) -> tuple[View, ...]:
    """The views of a page, those that lie in a named view within it."""
    views: list[View] = []
    for name, group in groupby(items, key=lambda item: item.within[depth] if len(item.within) > depth else ""):
        if not name:
            views += [item.view for item in group]
            continue
        children = _group_views([*group], depth + 1)
        box = Box(0, children[0].box.top, WIDTH, children[-1].box.bottom)
        views.append(View(PLAIN_VIEW, name=name, box=box, children=children))
    return tuple(views)


def _build_toolbar(visit: AppState, layout: Layout) -> View:
    """The bar above the page: the search field where it is open, else the search button."""
    views = [_build_button("android.widget.ImageButton", "", "Open navigation drawer", (0, 147))]
    if visit.field is None:
        if visit.current_page.path == "":
            views.append(
                View(IMAGE_VIEW, name=f"{_ID}wikihow_toolbar_logo", box=Box(147, _STATUS_BAR_HEIGHT, 600, TOP))
            )
        views.append(_build_button(IMAGE_VIEW, "search_button", "Search", (820, 950), pages.SEARCH_TAP))
        if layout.has_menu:
            views.append(_build_button(IMAGE_VIEW, "", "More options", (950, WIDTH)))
    else:
        views.append(_build_search_plate(visit.field))
    return _build_row("toolbar", views, 0)


def _build_search_plate(typed: str) -> View:
    box = Box(160, _STATUS_BAR_HEIGHT, 950, TOP)
    field = View(INPUT, typed, f"{_ID}search_src_text", clickable=True, box=box, target=pages.SEARCH_TAP)
    clear = _build_button(IMAGE_VIEW, "search_close_btn", "Clear query", (950, WIDTH), pages.CLEAR_TAP)
    return _build_row("search_plate", [field, clear] if typed else [field], 160)


def _build_row(name: str, views: Sequence[View], left: int) -> View:
    box = Box(left, _STATUS_BAR_HEIGHT, WIDTH, TOP)
    return View("android.widget.LinearLayout", name=f"{_ID}{name}", box=box, children=tuple(views))


def _build_button(kind: str, name: str, described: str, edges: tuple[int, int], target: str = "") -> View:
    box = Box(edges[0], _STATUS_BAR_HEIGHT, edges[1], TOP)
    full = f"{_ID}{name}" if name else ""
    return View(kind, name=full, described=described, clickable=True, box=box, target=target)

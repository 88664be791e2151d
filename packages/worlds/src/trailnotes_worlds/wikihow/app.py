"""The app: its current page, the screen, and the effect of a tap, a typed text or a swipe.

An `AppState` is the whole state of an episode; `WikiHowApp` itself is stateless. Like the original, each navigation
writes a log line, by which tasks are judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qs

from trailnotes.types import replace_surrogates
from trailnotes_worlds.wikihow import pages
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
    render_lines,
)

ActionKind = Literal["CLICK", "INPUT", "SCROLL", "GOBACK", "NOTHING"]
FORMATS: Final = ["CLICK(ID)", "INPUT(ID, TEXT)", "SCROLL(UP)", "SCROLL(DOWN)", "GOBACK"]
DIRECTIONS: Final = ("UP", "DOWN", "LEFT", "RIGHT")

_CALL: Final = re.compile(r"\s*([A-Za-z]+)\s*(?:\(\s*(\w+)\s*(?:,(.*))?\))?\s*", re.DOTALL)

_LABELS: Final = ("", "How to", "\N{BULLET}", "Expert")  # of links, which do not tell their targets
HOST: Final = "https://www.wikihow.com/"
MAX_QUERY: Final = 200  # characters of a text that is typed
SWIPE_PIXELS: Final = 1152  # pixels: from 0.2 to 0.8 of the screen
_SEARCH_PREFIX: Final = "wikiHowTo?"
_FRAME: Final = "android.widget.FrameLayout"
_ID: Final = f"{PACKAGE}:id/"
_STATUS_BAR_HEIGHT: Final = 63  # pixels of the bar at the top, which is the phone's
_FULL_SCREEN: Final = Box(0, 0, WIDTH, HEIGHT)


class Action(NamedTuple):
    """An action of the agent; unreadable text is NOTHING, as in Mobile-Env."""

    kind: ActionKind
    element: int = 0  # of CLICK and INPUT: the id of a line of the screen
    text: str = ""  # of INPUT
    direction: str = ""  # of SCROLL: where the page is scrolled to


def parse_action(said: str) -> Action:
    """Parse an action such as ``CLICK(3)``, ``INPUT(2, boil an egg)``, ``SCROLL(DOWN)`` or ``GOBACK``."""
    match = _CALL.fullmatch(said)
    if match is None:
        return Action("NOTHING")
    name, first, text = match[1].upper(), match[2] or "", match[3]
    has_id = first.isascii() and first.isdecimal() and len(first) <= 9
    if name == "CLICK" and has_id and text is None:
        return Action("CLICK", int(first))
    if name == "INPUT" and has_id and text is not None:
        return Action("INPUT", int(first), text.strip())
    if name == "SCROLL" and first.upper() in DIRECTIONS and text is None:
        return Action("SCROLL", direction=first.upper())
    return Action("GOBACK" if name == "GOBACK" and not first else "NOTHING")


class PagePosition(NamedTuple):
    """A page and its scroll position."""

    path: str  # after the host; "" is home
    offset: int = 0  # pixels


@dataclass(frozen=True, slots=True)
class AppState:
    """State of an episode in the app."""

    shown: tuple[PagePosition, ...] = (PagePosition(""),)  # the history; the last page is on the screen
    field: str | None = None  # text of the search field; None while it is closed

    @property
    def current_page(self) -> PagePosition:
        """Page on the screen now."""
        return self.shown[-1]


class AppTransition(NamedTuple):
    """Result of an action in the app."""

    visit: AppState
    log: tuple[LogLine, ...] = ()
    refused: str = ""  # why the action had no effect; "" if it had one


class WikiHowApp:
    """Stateless app over a library, `per_search` results to a page; any number of episodes may share it."""

    def __init__(self, library: Library, per_search: int = pages.RESULTS_PER_PAGE) -> None:
        self._library, self._per_search = library, per_search
        self._layout: Callable[[str], Layout | None] = lru_cache(64)(self._build_layout)
        # Each step reads a screen four times: for its text, its actions, its events and the next action.
        self._screen: Callable[[AppState], tuple[View, tuple[Leaf, ...]]] = lru_cache(8)(self._build_screen)

    def screen(self, visit: AppState) -> View:
        """Return the view hierarchy of the screen."""
        return self._screen(visit)[0]

    def leaves(self, visit: AppState) -> tuple[Leaf, ...]:
        """Return the views that an action can point at."""
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
        """Return whether GOBACK has an effect."""
        return not self._go_back(visit).refused

    def can_scroll(self, visit: AppState, direction: str) -> bool:
        """Return whether the page continues in a direction."""
        return not self._scroll(visit, direction).refused

    def step(self, visit: AppState, action: Action) -> AppTransition:
        """Take one action; one that does not fit changes nothing, and the transition says why."""
        if action.kind == "GOBACK":
            return self._go_back(visit)
        if action.kind == "SCROLL":
            return self._scroll(visit, action.direction)
        if action.kind == "NOTHING":
            return AppTransition(visit, refused="nothing to do")
        listed = self.leaves(visit)
        view = listed[min(action.element, len(listed) - 1)].view  # as the original clips it
        if action.kind == "INPUT" and view.target in (pages.SEARCH_TAP, pages.FORM_TAP):
            typed = clean_line(replace_surrogates(action.text), MAX_QUERY)
            if not typed:
                return AppTransition(visit, refused="an empty search")
            return self._open_page(visit, pages.make_search_path(f"{typed} "))
        return self._tap(visit, view)

    def _tap(self, visit: AppState, view: View) -> AppTransition:
        if view.target == pages.SEARCH_TAP and visit.field is not None:
            return AppTransition(visit, refused="the search is open")
        if view.target in (pages.SEARCH_TAP, pages.CLEAR_TAP):
            return AppTransition(replace(visit, field=""))
        if view.target == pages.REFERENCES_TAP:
            layout = self._layout(visit.current_page.path)
            assert layout is not None
            log = LogLine("jd", "D", f"url is: {_format_url(visit.current_page.path)}{pages.REFERENCES_TAP}")
            return AppTransition(_scroll_to(visit, layout, layout.find_top("References")), (log,))
        if view.target in ("", pages.FORM_TAP):
            return AppTransition(visit, refused="nothing happens there")
        return self._open_page(visit, view.target)

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
    """Log the new page, and show its query in the search field: it is closed on other pages than results."""
    path = visit.current_page.path
    field = _parse_query(path)[0] if path.startswith(_SEARCH_PREFIX) else None
    return AppTransition(replace(visit, field=field), (LogLine("jd", "D", f"mUrl is: {_format_url(path)}"),))


def _scroll_to(visit: AppState, layout: Layout, offset: int) -> AppState:
    offset = max(0, min(offset, layout.height - (BOTTOM - TOP)))
    return replace(visit, shown=(*visit.shown[:-1], visit.current_page._replace(offset=offset)))


def _parse_query(path: str) -> tuple[str, int]:
    asked = parse_qs(path.removeprefix(_SEARCH_PREFIX))
    return asked["search"][0], int(asked.get("start", ["0"])[0])


def _format_url(path: str) -> str:
    return f"{HOST}{path}&wh_an=1" if path.startswith(_SEARCH_PREFIX) else f"{HOST}{path}?wh_an=1&amp=1"


def _group_views(items: Sequence[LayoutItem], depth: int = 0) -> tuple[View, ...]:
    """Nest the views of a page in the named views around them."""
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
    views = [_build_button("android.widget.ImageButton", "", "Open navigation drawer", (0, 147))]
    if visit.field is None:
        if visit.current_page.path == "":
            logo = Box(147, _STATUS_BAR_HEIGHT, 600, TOP)
            views.append(View(IMAGE_VIEW, name=f"{_ID}wikihow_toolbar_logo", box=logo))
        views.append(_build_button(IMAGE_VIEW, "search_button", "Search", (820, 950), pages.SEARCH_TAP))
        if layout.has_menu:
            views.append(_build_button(IMAGE_VIEW, "", "More options", (950, WIDTH)))
    else:
        box = Box(160, _STATUS_BAR_HEIGHT, 950, TOP)
        field = View(INPUT, visit.field, f"{_ID}search_src_text", clickable=True, box=box, target=pages.SEARCH_TAP)
        clear = _build_button(IMAGE_VIEW, "search_close_btn", "Clear query", (950, WIDTH), pages.CLEAR_TAP)
        views.append(_build_row("search_plate", [field, clear] if visit.field else [field], 160))
    return _build_row("toolbar", views, 0)


def _build_row(name: str, views: Sequence[View], left: int) -> View:
    box = Box(left, _STATUS_BAR_HEIGHT, WIDTH, TOP)
    return View("android.widget.LinearLayout", name=f"{_ID}{name}", box=box, children=tuple(views))


def _build_button(kind: str, name: str, described: str, edges: tuple[int, int], target: str = "") -> View:
    box = Box(edges[0], _STATUS_BAR_HEIGHT, edges[1], TOP)
    full = f"{_ID}{name}" if name else ""
    return View(kind, name=full, described=described, clickable=True, box=box, target=target)


def render_html(listed: Sequence[Leaf], most: int) -> str:
    """Render REMEMBERER's lines of HTML, one for each leaf; of a text the first `most` characters."""
    cut = (leaf._replace(view=replace(leaf.view, text=leaf.view.text[:most])) for leaf in listed)
    return "\n".join(render_lines(cut))


def render_short(listed: Sequence[Leaf], most: int) -> str:
    """Render a line of lower case for small models: links by their ids, and the title of an article."""
    leading = set(_iter_link_places(listed))
    told = (
        f"{place} {_format_label(leaf)}" if place in leading else leaf.view.text
        for place, leaf in enumerate(listed)
        if place in leading or (leaf.view.text.startswith("How to ") and not leaf.view.target)
    )
    return " ; ".join(text[:most].lower() for text in told)


VIEWS: Mapping[str, Callable[[Sequence[Leaf], int], str]] = MappingProxyType(
    {"html": render_html, "short": render_short}
)


def list_actions(app: WikiHowApp, visit: AppState, words: str) -> tuple[str, ...]:
    """List the actions with an effect: a tap on each link, `words` typed into each field, and moves."""
    listed = app.leaves(visit)
    fields = (pages.SEARCH_TAP, pages.FORM_TAP)
    found = [
        f"INPUT({place}, {words})" if listed[place].view.target in fields else f"CLICK({place})"
        for place in _iter_link_places(listed)
    ]
    moves = (("SCROLL(DOWN)", app.can_scroll(visit, "DOWN")), ("SCROLL(UP)", app.can_scroll(visit, "UP")))
    found += [name for name, is_possible in (*moves, ("GOBACK", app.can_go_back(visit))) if is_possible]
    return tuple(found)


def _iter_link_places(listed: Sequence[Leaf]) -> Iterator[int]:
    # Of each target the first leaf with a telling label.
    by_target: dict[str, int] = {}
    for place, leaf in enumerate(listed):
        target = leaf.view.target
        if target and (target not in by_target or _format_label(listed[by_target[target]]) in _LABELS):
            by_target[target] = place
    yield from sorted(place for place in by_target.values() if _format_label(listed[place]) not in _LABELS)


def _format_label(leaf: Leaf) -> str:
    view = leaf.view
    if view.target in (pages.CLEAR_TAP, pages.FORM_TAP, pages.SEARCH_TAP):
        return view.text.strip() or view.described or "search"
    return view.text.strip()

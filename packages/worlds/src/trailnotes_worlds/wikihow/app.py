"""The app: its page, the screen, and the effect of a tap, a typed text or a swipe.

An `AppState` is the whole state of an episode; `WikiHowApp` itself is stateless. Like the original, each navigation
writes a log line, by which tasks are judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qs

from trailnotes.types import replace_surrogates
from trailnotes_worlds.wikihow import pages
from trailnotes_worlds.wikihow.articles import ABOUT, Article, Author, Category, clean_line
from trailnotes_worlds.wikihow.library import Library
from trailnotes_worlds.wikihow.pages import (
    BUTTON,
    IMAGE,
    INPUT,
    PAGE_HEIGHT,
    PLAIN_VIEW,
    Layout,
    Leaf,
    View,
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
_STATUS_BAR: Final = Leaf(View(PLAIN_VIEW, name="statusBarBackground"), clickable=False)  # of the phone


class Action(NamedTuple):
    """An action of the agent; unreadable text is NOTHING, as in Mobile-Env."""

    kind: ActionKind
    element: int = 0  # of CLICK and INPUT: the id of a line of the screen
    text: str = ""  # of INPUT
    direction: str = ""  # of SCROLL: where the page is scrolled to


def parse_action(text: str) -> Action:
    """Parse an action such as ``CLICK(3)``, ``INPUT(2, boil an egg)``, ``SCROLL(DOWN)`` or ``GOBACK``."""
    match = _CALL.fullmatch(text)
    if match is None:
        return Action("NOTHING")
    name, first, rest = match[1].upper(), match[2] or "", match[3]
    has_id = first.isascii() and first.isdecimal() and len(first) <= 9
    if name == "CLICK" and has_id and rest is None:
        return Action("CLICK", int(first))
    if name == "INPUT" and has_id and rest is not None:
        return Action("INPUT", int(first), rest.strip())
    if name == "SCROLL" and first.upper() in DIRECTIONS and rest is None:
        return Action("SCROLL", direction=first.upper())
    return Action("GOBACK" if name == "GOBACK" and not first else "NOTHING")


class PagePosition(NamedTuple):
    path: str  # after the host; "" is home
    offset: int = 0  # pixels


@dataclass(frozen=True, slots=True)
class AppState:
    history: tuple[PagePosition, ...] = (PagePosition(""),)  # the last page is on the screen
    field: str | None = None  # text of the search field; None while it is closed

    @property
    def page(self) -> PagePosition:
        return self.history[-1]


class AppTransition(NamedTuple):
    state: AppState
    log: tuple[str, ...] = ()
    refused: str = ""  # why the action had no effect; "" if it had one


class WikiHowApp:
    """Stateless app over a library, `per_search` results to a page; any number of episodes may share it."""

    def __init__(self, library: Library, per_search: int = pages.RESULTS_PER_PAGE) -> None:
        self._library, self._per_search = library, per_search
        self._find_layout: Callable[[str], Layout | None] = lru_cache(64)(self._build_layout)
        # Each step reads a screen several times: for its text, its actions and the next action.
        self.leaves: Callable[[AppState], tuple[Leaf, ...]] = lru_cache(8)(self._build_leaves)
        """List the views of the screen that an action can point at."""

    def _build_leaves(self, state: AppState) -> tuple[Leaf, ...]:
        layout = self._get_layout(state)
        top, end = state.page.offset, state.page.offset + PAGE_HEIGHT
        seen = [item.view for item in layout.items if item.top < end and item.top + item.height > top]
        page = (Leaf(view, layout.clickable or view.clickable) for view in seen)
        return (*(Leaf(view, view.clickable) for view in _build_toolbar(state, layout)), *page, _STATUS_BAR)

    def _get_layout(self, state: AppState) -> Layout:
        layout = self._find_layout(state.page.path)
        assert layout is not None, "a state holds pages of the library alone"
        return layout

    def step(self, state: AppState, action: Action) -> AppTransition:
        """Take one action; one that does not fit changes nothing, and the transition says why."""
        if action.kind == "GOBACK":
            return self._go_back(state)
        if action.kind == "SCROLL":
            return self._scroll(state, action.direction)
        if action.kind == "NOTHING":
            return AppTransition(state, refused="nothing to do")
        listed = self.leaves(state)
        view = listed[min(action.element, len(listed) - 1)].view  # as the original clips it
        if action.kind == "INPUT" and view.target in (pages.SEARCH_TAP, pages.FORM_TAP):
            typed = clean_line(replace_surrogates(action.text), MAX_QUERY)
            if not typed:
                return AppTransition(state, refused="an empty search")
            return self._open_page(state, pages.make_search_path(f"{typed} "))
        return self._tap(state, view)

    def _tap(self, state: AppState, view: View) -> AppTransition:
        if view.target == pages.SEARCH_TAP and state.field is not None:
            return AppTransition(state, refused="the search is open")
        if view.target in (pages.SEARCH_TAP, pages.CLEAR_TAP):
            return AppTransition(replace(state, field=""))
        if view.target == pages.REFERENCES_TAP:
            layout = self._get_layout(state)
            log = f"url is: {_format_url(state.page.path)}{pages.REFERENCES_TAP}"
            top = next((item.top for item in layout.items if item.view.name == "References"), 0)
            return AppTransition(_scroll_to(state, layout, top), (log,))
        if view.target in ("", pages.FORM_TAP):
            return AppTransition(state, refused="nothing happens there")
        return self._open_page(state, view.target)

    def _open_page(self, state: AppState, path: str) -> AppTransition:
        if self._find_layout(path) is None:
            return AppTransition(state, refused="the page is not in the library")
        return _log_navigation(replace(state, history=(*state.history, PagePosition(path))))

    def _go_back(self, state: AppState) -> AppTransition:
        if state.field is not None and not state.page.path.startswith(_SEARCH_PREFIX):
            return AppTransition(replace(state, field=None))
        if len(state.history) == 1:
            return AppTransition(state, refused="there is nothing to go back to")
        return _log_navigation(replace(state, history=state.history[:-1]))

    def _scroll(self, state: AppState, direction: str) -> AppTransition:
        by = {"DOWN": SWIPE_PIXELS, "UP": -SWIPE_PIXELS}.get(direction, 0)
        moved = _scroll_to(state, self._get_layout(state), state.page.offset + by)
        return AppTransition(moved, refused="" if moved != state else "there is nothing further")

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


def _log_navigation(state: AppState) -> AppTransition:
    """Log the new page, and show its query in the search field: it is closed on other pages than results."""
    path = state.page.path
    field = _parse_query(path)[0] if path.startswith(_SEARCH_PREFIX) else None
    return AppTransition(replace(state, field=field), (f"mUrl is: {_format_url(path)}",))


def _scroll_to(state: AppState, layout: Layout, offset: int) -> AppState:
    offset = max(0, min(offset, layout.height - PAGE_HEIGHT))
    return replace(state, history=(*state.history[:-1], state.page._replace(offset=offset)))


def _parse_query(path: str) -> tuple[str, int]:
    query = parse_qs(path.removeprefix(_SEARCH_PREFIX))
    return query["search"][0], int(query.get("start", ["0"])[0])


def _format_url(path: str) -> str:
    return f"{HOST}{path}&wh_an=1" if path.startswith(_SEARCH_PREFIX) else f"{HOST}{path}?wh_an=1&amp=1"


def _build_toolbar(state: AppState, layout: Layout) -> Iterator[View]:
    yield View(BUTTON, described="Open navigation drawer", clickable=True)
    if state.field is None:
        if state.page.path == "":
            yield View(IMAGE, name="wikihow_toolbar_logo")
        yield View(IMAGE, name="search_button", described="Search", clickable=True, target=pages.SEARCH_TAP)
        if layout.has_menu:
            yield View(IMAGE, described="More options", clickable=True)
        return
    yield View(INPUT, state.field, "search_src_text", clickable=True, target=pages.SEARCH_TAP)
    if state.field:
        yield View(IMAGE, name="search_close_btn", described="Clear query", clickable=True, target=pages.CLEAR_TAP)


def render_short(listed: Sequence[Leaf], most: int) -> str:
    """Render a line of lower case for small models: links by their ids, and the title of an article."""
    leading = set(_iter_link_places(listed))
    texts = (
        f"{place} {_format_label(leaf)}" if place in leading else leaf.view.text
        for place, leaf in enumerate(listed)
        if place in leading or (leaf.view.text.startswith("How to ") and not leaf.view.target)
    )
    return " ; ".join(text[:most].lower() for text in texts)


VIEWS: Final[Mapping[str, Callable[[Sequence[Leaf], int], str]]] = {
    "html": lambda listed, most: "\n".join(render_lines(listed, most)),
    "short": render_short,
}


def list_actions(app: WikiHowApp, state: AppState, words: str) -> tuple[str, ...]:
    """List the actions with an effect: a tap on each link, `words` typed into each field, and moves."""
    listed = app.leaves(state)
    fields = (pages.SEARCH_TAP, pages.FORM_TAP)
    offers = [
        f"INPUT({place}, {words})" if listed[place].view.target in fields else f"CLICK({place})"
        for place in _iter_link_places(listed)
    ]
    moves = ("SCROLL(DOWN)", "SCROLL(UP)", "GOBACK")
    return (*offers, *(move for move in moves if not app.step(state, parse_action(move)).refused))


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

"""A screen in words, as an agent is shown it, and what can be done there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from trailnotes_worlds.wikihow.app import AppState, WikiHowApp
from trailnotes_worlds.wikihow.pages import CLEAR_TAP, FORM_TAP, SEARCH_TAP
from trailnotes_worlds.wikihow.views import Leaf, render_lines

_LABELS: Final = ("", "How to", "\N{BULLET}", "Expert")  # texts that say nothing of where they lead


def render_html(listed: Sequence[Leaf], most: int) -> str:
    """REMEMBERER's lines of HTML, one for each leaf; of a text the first `most` characters."""
    return "\n".join(render_lines(tuple(_truncate(leaf, most) for leaf in listed)))


def _truncate(leaf: Leaf, most: int) -> Leaf:
    view = leaf.view
    return leaf if len(view.text) <= most else leaf._replace(view=replace(view, text=view.text[:most]))


def render_short(listed: Sequence[Leaf], most: int) -> str:
    """For small models, ours: what leads somewhere, by its id, and the title of an article; a line of lower case."""
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
    """What does something here: a tap on each thing that leads somewhere, `words` typed where one can, and moves."""
    listed = app.leaves(visit)
    found = []
    for place in _iter_link_places(listed):
        if listed[place].view.target in (SEARCH_TAP, FORM_TAP):
            found.append(f"INPUT({place}, {words})")
        else:
            found.append(f"CLICK({place})")
    moves = (("SCROLL(DOWN)", app.can_scroll(visit, "DOWN")), ("SCROLL(UP)", app.can_scroll(visit, "UP")))
    found += [name for name, is_possible in (*moves, ("GOBACK", app.can_go_back(visit))) if is_possible]
    return tuple(found)


def _iter_link_places(listed: Sequence[Leaf]) -> Iterator[int]:
    """The places of the leaves that lead somewhere, the first one of each target that says where."""
    by_target: dict[str, int] = {}
    for place, leaf in enumerate(listed):
        target = leaf.view.target
        if target and (target not in by_target or _format_label(listed[by_target[target]]) in _LABELS):
            by_target[target] = place
    yield from sorted(place for place in by_target.values() if _format_label(listed[place]) not in _LABELS)


def _format_label(leaf: Leaf) -> str:
    view = leaf.view
    if view.target in (CLEAR_TAP, FORM_TAP, SEARCH_TAP):
        return view.text.strip() or view.described or "search"
    return view.text.strip()

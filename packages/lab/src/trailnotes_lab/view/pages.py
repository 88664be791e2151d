"""From an address to its page: each function gathers what one template shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trailnotes.config.schema import Config
from trailnotes.diagnose.checks import Link, links_of
from trailnotes.memory import clean_tip
from trailnotes.memory.tips import MAX_ACTION_WORDS
from trailnotes.runs.directory import named_damage
from trailnotes.types import MODES, Tip
from trailnotes_lab.view import overview
from trailnotes_lab.view.curves import picture
from trailnotes_lab.view.drawing import Href, draw
from trailnotes_lab.view.episodes import TURNS, capped, roles_of, told
from trailnotes_lab.view.index import DAMAGED, Episode, EpisodeIndex, Wanted
from trailnotes_lab.view.places import Place, holder
from trailnotes_lab.view.tips import ORDERS, PAGE, SORTED, Opening, TipsFile, mark_of
from trailnotes_lab.view.window import Missing, Query, Window

EPISODES: Final = PAGE  # on a page
SAID: Final = {"edit": "The tip was changed.", "switch": "The tip was switched.", "delete": "The tip was deleted."}


def page_of(window: Window, path: str, query: Query, href: Href) -> str:
    """The page of an address.

    Raises:
        Missing: there is none.
        TrailnotesError: what it would show cannot be read.
    """
    match [part for part in path.split("/") if part]:
        case []:
            return draw("runs", href, way=[], **overview.runs(window, query))
        case ["compare", slug]:
            place = window.place("comparison", slug)
            return draw("compare", href, **_common(window, place), **overview.comparison(window, place))
        case ["run", slug, *rest]:
            place = window.place("run", slug)
            with named_damage(place.path):
                return _of_run(window, place, rest, query, href)
    raise Missing("there is no page of this address")


def _of_run(window: Window, place: Place, rest: list[str], query: Query, href: Href) -> str:
    match rest:
        case []:
            template, values = "run", overview.run(window, place)
        case ["episodes"]:
            template, values = "episodes", episodes(window, place, query)
        case ["episodes", number]:
            template, values = "episode", episode(window, place, _number(number), query)
        case ["tips"]:
            template, values = "tips", tips(window, place, query)
        case ["tips", number]:
            template, values = "tip", tip(window, place, _number(number), query)
        case ["chain"]:
            template, values = "chain", chain(window, place)
        case _:
            raise Missing("there is no page of this address")
    return draw(template, href, **_common(window, place), **values)


def _common(window: Window, place: Place) -> dict[str, Any]:
    running = holder(place.path) if place.kind == "run" else ""
    return {
        "place": place, "way": [place], "running": running, "live": bool(running) and not window.exported,
        "write": window.write, "exported": window.exported,
    }  # fmt: skip


# -- episodes


def episodes(window: Window, place: Place, query: Query) -> dict[str, Any]:
    """The list, narrowed and paged."""
    index, known = window.index(place.path)
    wanted = Wanted(
        task=_one(query, "task"),
        mode=_one(query, "mode"),
        success=_one(query, "success"),
        iteration=_whole(_one(query, "iteration")),
        tip=_whole(_one(query, "tip")),
    )
    total, page = index.count(wanted), _page_number(query)
    return {
        "rows": index.page(wanted, (page - 1) * EPISODES, EPISODES), "total": total, "wanted": wanted, "known": known,
        "page": page, "pages": max(1, -(-total // EPISODES)), "modes": MODES, "damaged": DAMAGED,
        "span": index.iterations(), "asked": _asked(query, "task", "mode", "success", "iteration", "tip"),
    }  # fmt: skip


def episode(window: Window, place: Place, number: int, query: Query) -> dict[str, Any]:
    """One episode, some turns of it."""
    index, known = window.index(place.path)
    row = index.episode(number)
    if row is None:
        still = f" so far: {known:.0%} of the file has been read" if known < 1 else ""
        raise Missing(f"there is no episode {number} in this run{still}")
    config, trouble = window.settings(place)
    first = max(1, _whole(_one(query, "turn")) or 1)
    shown = told(index.record(row), config, first)
    group = [other for other in index.group(row.task, row.iteration) if other.outcome not in ("error", DAMAGED)]
    return {
        "row": row, "told": shown, "group": group, "group_mean": _mean(group), "roles": roles_of(row.mode),
        "first": first, "size": TURNS, "count": len(shown.trajectory.steps), "trouble": trouble,
        "last_number": index.count(), "task": capped(str(dict(shown.trajectory.task.options))),
    }  # fmt: skip


def _mean(group: list[Episode]) -> float | None:
    return sum(each.earned for each in group) / len(group) if group else None


# -- tips


def tips(window: Window, place: Place, query: Query) -> dict[str, Any]:
    """The list, or what a search finds."""
    file = TipsFile(place.path / "memory.db")
    task, words = _one(query, "task"), _one(query, "q")
    order = _one(query, "order") if _one(query, "order") in ORDERS else "newest"
    page = _page_number(query)
    values: dict[str, Any] = {
        "task": task, "q": words, "orders": list(ORDERS), "page": page, "found": None, "listed": None, "pages": 1,
        "before": None, "size": PAGE, "most": SORTED, "opening": False,
        "said": SAID.get(_one(query, "said"), ""), "asked": _asked(query, "task", "order"), "order": order,
    }  # fmt: skip
    if task and words:
        memory = (window.settings(place)[0] or Config()).memory.seen_by(window.embedder)
        values |= {"memory": memory, "tasks": file.tasks()}
        try:
            return values | {"found": window.searcher.search(file.path, memory, task, words)}
        except Opening:
            return values | {"found": [], "opening": True}
    before = _whole(_one(query, "before"))
    listed = file.newest(before) if before and not task else file.page(task, order, (page - 1) * PAGE)
    pages = -(-listed.total // PAGE) if listed.sorted else 1
    return values | {"listed": listed, "before": before, "pages": max(1, pages), "tasks": file.tasks()}


def tip(window: Window, place: Place, number: int, query: Query) -> dict[str, Any]:
    """One tip: its author, its readers, what came of it."""
    row = TipsFile(place.path / "memory.db").row(number)
    index, known = window.index(place.path)
    worth = index.worth(number)
    readers = Wanted(tip=number)
    with_it = [(float(each.iteration), each.earned) for each in worth]
    without = [(float(each.iteration), each.others_earned) for each in worth if each.others_earned is not None]
    return {
        "row": row, "tip": row.tip, "known": known, "mark": mark_of(row.tip), "worth": worth,
        "authors": authors(index, row.tip), "readers": index.page(readers, 0, EPISODES),
        "num_readers": index.count(readers), "said": SAID.get(_one(query, "said"), ""),
        "curve": picture([("with it", with_it, ""), ("without it, in the same groups", without, "")], "iteration"),
    }  # fmt: skip


def authors(index: EpisodeIndex, tip: Tip) -> list[Episode]:
    """The episodes that it may have been written after, as few as can be told.

    They are of its task and iteration, and have its score and last action; of a tip that was written again these are
    those of another time.
    """
    if tip.imported:
        return []
    found = [each for each in index.group(tip.namespace, tip.step) if each.outcome not in ("error", DAMAGED)]
    alike = [each for each in found if each.score == tip.score] if tip.support == 1 else []
    same = [each for each in alike if clean_tip(each.last_action, MAX_ACTION_WORDS) == tip.action]
    return same or alike or found


# -- the chain


def chain(window: Window, place: Place) -> dict[str, Any]:
    """What `trailnotes diagnose` says, as data."""
    index, known = window.index(place.path)
    config, trouble = window.settings(place)
    read = window.lines.read(place.path / "metrics.jsonl")
    lines, links = read.lines, list[Link]()
    if config and lines:  # it goes through all episodes
        state = (index.mark, read.end, config)
        links = window.kept(f"chain {place.slug}", state, lambda: links_of(lines, [*index.outlines()], config))
    weak = next((link for link in links if link.holds is False), None)
    return {"links": links, "weak": weak, "known": known, "trouble": trouble, "count": len(lines)}


# -- queries


def _one(query: Query, name: str) -> str:
    return (query.get(name) or [""])[-1].strip()


def _whole(text: str) -> int | None:
    """A number from 0 up; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def _number(text: str) -> int:
    number = _whole(text)
    if number is None:
        raise Missing("there is no page of this address")
    return number


def _page_number(query: Query) -> int:
    return min(max(1, _whole(_one(query, "page")) or 1), 1_000_000)


def _asked(query: Query, *names: str) -> Mapping[str, str]:
    """What a link to the next page repeats."""
    return {name: _one(query, name) for name in names if _one(query, name)}

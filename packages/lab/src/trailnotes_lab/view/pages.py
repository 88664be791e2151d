"""Render the page of an address: each function gathers the values of one template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trailnotes.config.schema import Config
from trailnotes.diagnose.checks import Check, run_checks
from trailnotes.memory import clean_tip
from trailnotes.memory.tips import MAX_ACTION_WORDS
from trailnotes.runs.directory import report_damaged_run
from trailnotes.types import MODES, Tip
from trailnotes_lab.view import overview
from trailnotes_lab.view.curves import make_chart
from trailnotes_lab.view.drawing import Href, render_template
from trailnotes_lab.view.episodes import TURNS_PER_PAGE, build_episode_view, describe_contexts, truncate_text
from trailnotes_lab.view.index import DAMAGED, EpisodeFilter, EpisodeIndex, IndexedEpisode
from trailnotes_lab.view.places import ViewEntry, find_running_process
from trailnotes_lab.view.tips import MAX_SORTED, PAGE_SIZE, SORT_ORDERS, MemoryNotReady, TipsFile, hash_tip
from trailnotes_lab.view.window import PageNotFound, Query, Window

CHANGE_MESSAGES: Final = {"edit": "The tip was changed.", "switch": "The tip was switched.",
                          "delete": "The tip was deleted."}  # fmt: skip
NO_PAGE: Final = "there is no page of this address"


def render_page(window: Window, path: str, query: Query, href: Href) -> str:
    """Render the page of an address.

    Raises:
        PageNotFound: there is no such page.
        TrailnotesError: the files of the page cannot be read.
    """
    match [part for part in path.split("/") if part]:
        case []:
            return render_template("runs", href, way=[], **overview.load_runs_page(window, query))
        case ["compare", slug]:
            place = window.place("comparison", slug)
            values = _build_common_values(window, place) | overview.load_comparison_page(window, place)
            return render_template("compare", href, **values)
        case ["run", slug, *rest]:
            place = window.place("run", slug)
            with report_damaged_run(place.path):
                return _render_run_page(window, place, rest, query, href)
    raise PageNotFound(NO_PAGE)


def _render_run_page(window: Window, place: ViewEntry, rest: list[str], query: Query, href: Href) -> str:
    match rest:
        case []:
            template, values = "run", overview.load_run_page(window, place)
        case ["episodes"]:
            template, values = "episodes", _load_episodes_page(window, place, query)
        case ["episodes", number]:
            template, values = "episode", _load_episode_page(window, place, _parse_id(number), query)
        case ["tips"]:
            template, values = "tips", _load_tips_page(window, place, query)
        case ["tips", number]:
            template, values = "tip", _load_tip_page(window, place, _parse_id(number), query)
        case ["chain"]:
            template, values = "chain", _load_diagnosis_page(window, place)
        case _:
            raise PageNotFound(NO_PAGE)
    return render_template(template, href, **_build_common_values(window, place), **values)


def _build_common_values(window: Window, place: ViewEntry) -> dict[str, Any]:
    running = find_running_process(place.path) if place.kind == "run" else ""
    return {
        "place": place, "way": [place], "running": running, "live": bool(running) and not window.exported,
        "write": window.write, "exported": window.exported,
    }  # fmt: skip


def _load_episodes_page(window: Window, place: ViewEntry, query: Query) -> dict[str, Any]:
    index, known = window.get_index(place.path)
    words = {name: _get_param(query, name) for name in ("task", "mode", "success")}
    wanted = EpisodeFilter(**words, iteration=_parse_int(_get_param(query, "iteration")),
                           tip=_parse_int(_get_param(query, "tip")))  # fmt: skip
    total, page = index.count(wanted), _parse_page_number(query)
    return {
        "rows": index.list_episodes(wanted, (page - 1) * PAGE_SIZE, PAGE_SIZE), "total": total, "wanted": wanted,
        "known": known, "page": page, "pages": max(1, -(-total // PAGE_SIZE)), "modes": MODES, "damaged": DAMAGED,
        "span": index.iterations(), "asked": _select_params(query, "task", "mode", "success", "iteration", "tip"),
    }  # fmt: skip


def _load_episode_page(window: Window, place: ViewEntry, number: int, query: Query) -> dict[str, Any]:
    index, known = window.get_index(place.path)
    row = index.get_episode(number)
    if row is None:
        still = f" so far: {known:.0%} of the file has been read" if known < 1 else ""
        raise PageNotFound(f"there is no episode {number} in this run{still}")
    config, trouble = window.get_settings(place)
    first = max(1, _parse_int(_get_param(query, "turn")) or 1)
    shown = build_episode_view(index.read_record(row), config, first)
    group = [other for other in index.get_group(row.task, row.iteration) if other.outcome not in ("error", DAMAGED)]
    mean = sum(each.earned for each in group) / len(group) if group else None
    return {
        "row": row, "told": shown, "group": group, "group_mean": mean, "roles": describe_contexts(row.mode),
        "first": first, "size": TURNS_PER_PAGE, "count": len(shown.trajectory.steps), "trouble": trouble,
        "last_number": index.count(), "task": truncate_text(str(dict(shown.trajectory.task.options))),
    }  # fmt: skip


def _load_tips_page(window: Window, place: ViewEntry, query: Query) -> dict[str, Any]:
    """The list of tips, or the results of a search."""
    file = TipsFile(place.path / "memory.db")
    task, words = _get_param(query, "task"), _get_param(query, "q")
    order = _get_param(query, "order") if _get_param(query, "order") in SORT_ORDERS else "newest"
    page = _parse_page_number(query)
    values: dict[str, Any] = {
        "task": task, "q": words, "orders": list(SORT_ORDERS), "page": page, "found": None, "listed": None, "pages": 1,
        "before": None, "size": PAGE_SIZE, "most": MAX_SORTED, "opening": False,
        "said": CHANGE_MESSAGES.get(_get_param(query, "said"), ""), "asked": _select_params(query, "task", "order"),
        "order": order,
    }  # fmt: skip
    if task and words:
        memory = (window.get_settings(place)[0] or Config()).memory.with_embedder(window.embedder)
        values |= {"memory": memory, "tasks": file.list_tasks()}
        try:
            return values | {"found": window.searcher.search(file.path, memory, task, words)}
        except MemoryNotReady:
            return values | {"found": [], "opening": True}
    before = _parse_int(_get_param(query, "before"))
    listed = file.list_newest(before) if before and not task else file.list_tips(task, order, (page - 1) * PAGE_SIZE)
    pages = -(-listed.total // PAGE_SIZE) if listed.sorted else 1
    return values | {"listed": listed, "before": before, "pages": max(1, pages), "tasks": file.list_tasks()}


def _load_tip_page(window: Window, place: ViewEntry, number: int, query: Query) -> dict[str, Any]:
    row = TipsFile(place.path / "memory.db").get_tip_row(number)
    index, known = window.get_index(place.path)
    worth = index.worth(number)
    readers = EpisodeFilter(tip=number)
    with_it = [(float(each.iteration), each.earned) for each in worth]
    without = [(float(each.iteration), each.others_earned) for each in worth if each.others_earned is not None]
    return {
        "row": row, "tip": row.tip, "known": known, "mark": hash_tip(row.tip), "worth": worth,
        "authors": _find_authors(index, row.tip), "readers": index.list_episodes(readers, 0, PAGE_SIZE),
        "num_readers": index.count(readers), "said": CHANGE_MESSAGES.get(_get_param(query, "said"), ""),
        "curve": make_chart([("with it", with_it, ""), ("without it, in the same groups", without, "")], "iteration"),
    }  # fmt: skip


def _find_authors(index: EpisodeIndex, tip: Tip) -> list[IndexedEpisode]:
    """The episodes that the tip may be of: of its task and iteration, with its score and last action if still known."""
    if tip.imported:
        return []
    found = [each for each in index.get_group(tip.namespace, tip.step) if each.outcome not in ("error", DAMAGED)]
    alike = [each for each in found if each.score == tip.score] if tip.support == 1 else []
    same = [each for each in alike if clean_tip(each.last_action, MAX_ACTION_WORDS) == tip.action]
    return same or alike or found


def _load_diagnosis_page(window: Window, place: ViewEntry) -> dict[str, Any]:
    """The checks of `trailnotes diagnose`."""
    index, known = window.get_index(place.path)
    config, trouble = window.get_settings(place)
    read = window.lines.read(place.path / "metrics.jsonl")
    lines, links = read.lines, list[Check]()
    if config and lines:  # it goes through all episodes
        state, check = (
            (index.state_key, read.end, config),
            lambda: run_checks(lines, [*index.iterate_outlines()], config),
        )
        links = window.get_cached(f"chain {place.slug}", state, check)
    weak = next((link for link in links if link.holds is False), None)
    return {"links": links, "weak": weak, "known": known, "trouble": trouble, "count": len(lines)}


def _get_param(query: Query, name: str) -> str:
    return (query.get(name) or [""])[-1].strip()


def _parse_int(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def _parse_id(text: str) -> int:
    number = _parse_int(text)
    if number is None:
        raise PageNotFound(NO_PAGE)
    return number


def _parse_page_number(query: Query) -> int:
    return min(max(1, _parse_int(_get_param(query, "page")) or 1), 1_000_000)


def _select_params(query: Query, *names: str) -> Mapping[str, str]:
    return {name: _get_param(query, name) for name in names if _get_param(query, name)}

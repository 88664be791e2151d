"""Render the page of an address: each function gathers the values of one template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trailnotes.memory import clean_tip
from trailnotes.memory.tips import MAX_ACTION_WORDS
from trailnotes.runs.directory import find_lock_holder, report_damaged_run
from trailnotes.types import MODES, Tip
from trailnotes_lab.view import overview
from trailnotes_lab.view.drawing import render_template
from trailnotes_lab.view.episodes import build_episode_view, describe_contexts
from trailnotes_lab.view.lines import EpisodeFilter, EpisodeRow, list_group, read_episode
from trailnotes_lab.view.tips import PAGE_SIZE, SORT_ORDERS, TipsFile
from trailnotes_lab.view.window import PageNotFound, Query, ViewEntry, Window

NO_PAGE: Final = "there is no page of this address"


def render_page(window: Window, path: str, query: Query) -> str:
    match [part for part in path.split("/") if part]:
        case []:
            return render_template("runs", way=[], **overview.load_runs_page(window, query))
        case ["compare", slug]:
            place = window.get_entry("comparison", slug)
            values = _build_common_values(place) | overview.load_comparison_page(window, place)
            return render_template("compare", **values)
        case ["run", slug, *rest]:
            place = window.get_entry("run", slug)
            with report_damaged_run(place.path):
                return _render_run_page(window, place, rest, query)
    raise PageNotFound(NO_PAGE)


def _render_run_page(window: Window, place: ViewEntry, rest: list[str], query: Query) -> str:
    match rest:
        case []:
            template, values = "run", overview.load_run_page(window, place)
        case ["episodes"]:
            template, values = "episodes", _load_episodes_page(window, place, query)
        case ["episodes", number]:
            template, values = "episode", _load_episode_page(window, place, _parse_id(number))
        case ["tips"]:
            template, values = "tips", _load_tips_page(place, query)
        case ["tips", number]:
            template, values = "tip", _load_tip_page(window, place, _parse_id(number))
        case _:
            raise PageNotFound(NO_PAGE)
    return render_template(template, **_build_common_values(place), **values)


def _build_common_values(place: ViewEntry) -> dict[str, Any]:
    running = find_lock_holder(place.path / "lock") if place.kind == "run" else ""
    return {"place": place, "way": [place], "running": running, "live": bool(running)}


def _load_episodes_page(window: Window, place: ViewEntry, query: Query) -> dict[str, Any]:
    words = {name: _get_param(query, name) for name in ("task", "mode", "success")}
    wanted = EpisodeFilter(**words, iteration=_parse_int(_get_param(query, "iteration")),
                           tip=_parse_int(_get_param(query, "tip")))  # fmt: skip
    rows, page = window.read_episodes(place.path), _parse_page_number(query)
    matches = [row for row in reversed(rows) if wanted.matches(row)]
    iterations = [row.iteration for row in rows]
    return {
        "rows": matches[(page - 1) * PAGE_SIZE : page * PAGE_SIZE], "total": len(matches), "wanted": wanted,
        "page": page, "pages": max(1, -(-len(matches) // PAGE_SIZE)), "modes": MODES,
        "span": (min(iterations), max(iterations)) if rows else None,
        "query": _select_params(query, "task", "mode", "success", "iteration", "tip"),
    }  # fmt: skip


def _load_episode_page(window: Window, place: ViewEntry, number: int) -> dict[str, Any]:
    rows = window.read_episodes(place.path)
    if not 1 <= number <= len(rows):
        raise PageNotFound(f"there is no episode {number} in this run")
    row, (config, trouble) = rows[number - 1], window.get_settings(place)
    view = build_episode_view(read_episode(place.path / "trajectories.jsonl", row), config)
    group = list_group(rows, row.task, row.iteration)
    mean = sum(each.earned for each in group) / len(group) if group else None
    return {
        "row": row, "view": view, "group": group, "group_mean": mean, "roles": describe_contexts(row.mode),
        "trouble": trouble, "last_number": len(rows),
    }  # fmt: skip


def _load_tips_page(place: ViewEntry, query: Query) -> dict[str, Any]:
    file, task, page = TipsFile(place.path / "memory.db"), _get_param(query, "task"), _parse_page_number(query)
    order = _get_param(query, "order") if _get_param(query, "order") in SORT_ORDERS else "newest"
    rows, total = file.list_tips(task, order, (page - 1) * PAGE_SIZE)
    return {
        "task": task, "orders": list(SORT_ORDERS), "order": order, "page": page, "rows": rows, "total": total,
        "pages": max(1, -(-total // PAGE_SIZE)), "tasks": file.list_tasks(),
        "query": _select_params(query, "task", "order"),
    }  # fmt: skip


def _load_tip_page(window: Window, place: ViewEntry, number: int) -> dict[str, Any]:
    row = TipsFile(place.path / "memory.db").get_tip(number)
    episodes = window.read_episodes(place.path)
    readers = [each for each in reversed(episodes) if number in each.tip_ids]
    return {
        "row": row, "tip": row.tip, "authors": _find_authors(episodes, row.tip),
        "readers": readers[:PAGE_SIZE], "num_readers": len(readers),
    }  # fmt: skip


def _find_authors(episodes: Sequence[EpisodeRow], tip: Tip) -> list[EpisodeRow]:
    """The episodes that the tip may be of: of its task and iteration, with its score and last action if still known."""
    if tip.imported:
        return []
    group = list_group(episodes, tip.namespace, tip.step)
    alike = [each for each in group if each.score == tip.score] if tip.support == 1 else []
    same = [each for each in alike if clean_tip(each.last_action, MAX_ACTION_WORDS) == tip.action]
    return same or alike or group


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

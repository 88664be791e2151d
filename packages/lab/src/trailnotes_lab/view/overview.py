"""Gather the values of the pages with figures: all runs, one run, a comparison."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trailnotes.config.methods import get_label
from trailnotes.config.schema import Config
from trailnotes.config.toml import diff_configs, flatten_config
from trailnotes.errors import RunError
from trailnotes.runs.directory import find_lock_holder, report_damaged_run
from trailnotes.storage.files import parse_json
from trailnotes_lab.view.curves import SMALL_SIZE, make_chart, make_sparkline
from trailnotes_lab.view.lines import MetricsLine, extract_series, is_number, read_episode
from trailnotes_lab.view.window import (
    COMPARISON_FILE,
    Query,
    ViewEntry,
    Window,
    estimate_progress,
    find_differing_settings,
)

DEFAULT_CURVES: Final = 8  # curves over each other by default
_CHARTS: Final = tomllib.loads(Path(__file__).with_name("charts.toml").read_text(encoding="utf-8"))
COST_METRICS: Final = ("env_steps", "tokens_generated", "tokens_trained", "seconds")


def load_runs_page(window: Window, query: Query) -> dict[str, Any]:
    places = window.list_entries()
    runs = [place for place in places if place.kind == "run"]
    known = [(place, *window.get_settings(place), *_load_metrics(window, place)) for place in runs]
    differing = find_differing_settings([(place.path.parent, config) for place, config, *_ in known])
    names = sorted({name for *_, lines, _, _ in known for line in lines[-1:] for name in line
                    if is_number(line[name])})  # fmt: skip
    tabs = [tab for tab in _CHARTS["metrics"] if tab[0] in names]
    metric = next(iter(query.get("metric") or []), "") or next((name for name, _ in tabs), "")
    chosen = set(query.get("run") or [])
    rows = [
        _load_row(window, place, config, trouble or unread, lines, metric)
        | {"differs": differs, "laid": place.slug in chosen}
        for (place, config, trouble, lines, _, unread), differs in zip(known, differing, strict=True)
    ]
    curves = [(row["place"].name, row["series"], f"/run/{row['place'].slug}")
              for row in rows if row["laid"] or not chosen]  # fmt: skip
    curves = [curve for curve in curves if curve[1]]
    return {
        "rows": rows, "metric": metric, "names": names, "tabs": tabs,
        "curves": make_chart(curves if chosen else curves[:DEFAULT_CURVES]),
        "left_out": 0 if chosen else max(0, len(curves) - DEFAULT_CURVES),
        "comparisons": [place for place in places if place.kind == "comparison"], "root": window.root.resolve().name,
        "live": any(row["running"] for row in rows),
    }  # fmt: skip


def _load_row(
    window: Window, place: ViewEntry, config: Config | None, trouble: str, lines: Sequence[MetricsLine], metric: str
) -> dict[str, Any]:
    """Gather the values of a run's row; of a damaged one, why, and none of its lines."""
    try:
        with report_damaged_run(place.path):
            series = extract_series(lines, metric)
            return {
                "place": place, "method": get_label(config.algorithm.name) if config else "?",
                "trouble": trouble or _describe_failure(window, place, lines),
                "running": find_lock_holder(place.path / "lock"),
                "progress": estimate_progress(config, lines), "iterations": len(lines),
                "series": series, "spark": make_sparkline(series), "last": _find_last_value(lines, metric),
                "costs": {name: _find_last_value(lines, name) for name in COST_METRICS},
            }  # fmt: skip
    except RunError as error:
        return _load_row(window, place, config, str(error), [], metric)


def load_run_page(window: Window, place: ViewEntry) -> dict[str, Any]:
    config, trouble = window.get_settings(place)
    lines, damaged, unread = _load_metrics(window, place)
    series = {title: [(label, extract_series(lines, name), "") for name, label in wanted]
              for title, wanted in _CHARTS["charts"]}  # fmt: skip
    panels = [(title, make_chart(curves, size=SMALL_SIZE)) for title, curves in series.items()]
    last, values = lines[-1] if lines else {}, flatten_config(config) if config else {}
    settings = [(name, str(values[name])) for name in diff_configs(Config(), config)] if config else []
    return {
        "method": get_label(config.algorithm.name) if config else "?", "config": config,
        "trouble": trouble or unread, "failure": _describe_failure(window, place, lines),
        "damaged": damaged, "settings": settings,
        "progress": estimate_progress(config, lines), "iterations": len(lines),
        "episodes": len(window.read_episodes(place.path)),
        "panels": [(title, curves) for title, curves in panels if curves],
        "costs": {name: _find_last_value(lines, name) for name in COST_METRICS}, "starts": _load_starts(place),
        "metrics": [(name, value, make_sparkline(extract_series(lines, name))) for name, value in last.items()
                    if is_number(value)],
        "has_tips": (place.path / "memory.db").is_file(),
    }  # fmt: skip


def load_comparison_page(window: Window, place: ViewEntry) -> dict[str, Any]:
    file = place.path / COMPARISON_FILE
    try:
        record = parse_json(file.read_bytes(), "drop")
        lines = [{**line, "final": line["last"] or line["best"] or line["one"]} for line in record["lines"]]
        curves = [(f"{label}, run {number}" if len(own) > 1 else label, [(float(x), float(y)) for x, y in points], "")
                  for label, own in record["curves"].items() for number, points in enumerate(own)]  # fmt: skip
        names = ("title", "metric", "baseline", "notes", "methods")
        values = {"lines": lines, "panels": record.get("panels", ()), **{name: record[name] for name in names}}
        costs = [name for name in COST_METRICS if any(name in line["costs"] for line in lines)]
    except (OSError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file} cannot be read ({error}): run `trailnotes compare` again") from error
    runs = [each for each in window.list_entries() if each.kind == "run" and each.path.parent == place.path / "runs"]
    return {**values, "curves": make_chart(curves), "cost_names": costs, "runs": runs}


def _describe_failure(window: Window, place: ViewEntry, lines: Sequence[MetricsLine]) -> str:
    """Describe a run whose every episode failed by the words of the first; "" for any other."""
    if any("rollout/env_steps" in line or not line.get("rollout/errors") for line in lines):
        return ""  # an episode was played, which the metrics tell sooner than the episodes
    try:
        rows = window.read_episodes(place.path)
        if not rows or any(row.outcome != "error" for row in rows):
            return ""
        first = read_episode(place.path / "trajectories.jsonl", rows[0])
    except RunError:  # the page of the episodes says it
        return ""
    return f"All episodes failed, {len(rows)} of {len(rows)}; the first: {first.get('error', 'no reason recorded')}"


def _load_metrics(window: Window, place: ViewEntry) -> tuple[list[MetricsLine], int, str]:
    """The metrics of a run, the number of damaged lines, and why they cannot be read."""
    try:
        return *window.read_metrics(place.path), ""
    except RunError as error:
        return [], 0, str(error)


def _find_last_value(lines: Sequence[MetricsLine], name: str) -> float | None:
    return next((float(value) for line in reversed(lines) if is_number(value := line.get(name))), None)


def _load_starts(place: ViewEntry) -> list[dict[str, Any]]:
    """Time and command of each start of the run; none where run.json cannot be read."""
    try:
        starts = parse_json((place.path / "run.json").read_bytes())["starts"]
        return [{"time": start["time"], "command": " ".join(start["command"])} for start in starts]
    except (OSError, ValueError, KeyError, TypeError):
        return []

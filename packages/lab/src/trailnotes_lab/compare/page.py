"""Render the table of a comparison: as Markdown, on a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trailnotes.reporting.intervals import Estimate
from trailnotes.reporting.tables import MISSING_CELL, Table, format_table, print_table, print_text
from trailnotes.reporting.terminal import format_megabytes
from trailnotes.runs.usage import COMPARISON_FIELDS, SPENDING
from trailnotes_lab.compare.statistics import BEYOND, LEGEND, ON_PANEL
from trailnotes_lab.compare.summary import MethodSummary, PanelMethodSummary, PanelSummary, Summary

COST_HEADINGS = {
    "env_steps": "env steps", "tokens_read": "tokens read", "tokens_generated": "tokens generated",
    "tokens_trained": "tokens trained", "seconds": "seconds", "cpu_seconds": "CPU seconds",
    "peak_memory": "peak memory (MB)", SPENDING: "spending",
}  # fmt: skip
BRIEF_COSTS = ("env_steps", "seconds")  # those that fit a line of 100 columns beside two intervals


def _build_result_table(summary: Summary) -> Table:
    """Each figure of several attempts has a row of its own; the return is beside success where they differ."""
    returns = any(line.one_return for line in summary.lines)
    head = [summary.metric, "mean", ON_PANEL, BEYOND, "IQM", *(["return"] if returns else []), "seeds · games"]
    return head, [row for line in summary.lines for row in _build_result_rows(line, summary.metric, returns=returns)]


def _build_result_rows(line: MethodSummary, metric: str, *, returns: bool) -> list[list[str]]:
    attempts = [("", line.one, line.one_return)]
    if line.num_attempts > 1:
        first = (f", first of {line.num_attempts}", line.one, line.one_return)
        attempts = [first, (", last", line.last, line.last_return), (", best", line.best, None)]
        attempts = [attempt for attempt in attempts if attempt[1] is not None]
    iqm = MISSING_CELL if line.iqm is None else f"{line.iqm:.{_get_decimals(metric)}f}"
    rows = []
    for name, own, value in attempts:
        more = [iqm if own is line.final else MISSING_CELL, *([_format_mean_and_interval(value)] if returns else [])]
        rows.append([f"{line.label}{name}", *_format_estimate(own, metric), *more, _count_played(line)])
    return rows


def _count_played(line: MethodSummary | PanelMethodSummary) -> str:
    return f"{len(line.seeds)} · {line.num_games}" + (f", {len(line.missing)} missing" if line.missing else "")


def _format_mean_and_interval(estimate: Estimate | None) -> str:
    """``0.612 [0.550, 0.668]``; the interval is on the panel, or else beyond it."""
    if estimate is None:
        return MISSING_CELL
    interval = estimate.on_panel or estimate.beyond
    return f"{estimate.mean:.3f}" + (f" [{interval.low:.3f}, {interval.high:.3f}]" if interval else "")


def _format_estimate(estimate: Estimate | None, metric: str, sign: str = "") -> list[str]:
    """Mean, interval on the panel and beyond it: ``0.881``, ``[0.750, 0.963]``, ``one seed``."""
    if estimate is None:
        return [MISSING_CELL] * 3
    form = f"{sign}.{_get_decimals(metric)}f"
    pairs = ((estimate.on_panel, estimate.not_on_panel), (estimate.beyond, estimate.not_beyond))
    return [format(estimate.mean, form), *(f"[{i.low:{form}}, {i.high:{form}}]" if i else why for i, why in pairs)]


def _get_decimals(metric: str) -> int:
    return 3 if metric == "success" else 1


def _build_difference_table(baseline: str, lines: Sequence[MethodSummary | PanelMethodSummary], metric: str) -> Table:
    rows = []
    for line in lines:
        if line.difference is not None:
            call = line.difference.call
            call = f"**{call}**" if call and line.difference.has_enough_runs else call
            rows.append([line.label, *_format_estimate(line.difference.estimate, metric, "+"), call])
    return [f"less {baseline}", "mean", ON_PANEL, BEYOND, "so it is"], rows


def _build_trial_table(panel: PanelSummary) -> Table:
    trials = [f"trial {number}" for number in range(panel.num_trials + 1)]
    rows = []
    for line in panel.lines:
        means = [f"{trial.mean:.{_get_decimals(panel.metric)}f}" for trial in line.trials]
        means = means or [MISSING_CELL] * len(trials)
        rows.append([line.label, *means, *_format_estimate(line.final, panel.metric)[1:], _count_played(line)])
    return [panel.metric, *trials, ON_PANEL, BEYOND, "seeds · games"], rows


def _build_efficiency_table(summary: Summary) -> Table:
    rows = []
    for line in summary.lines:
        if line.trains:
            steps = [f"{step:,.0f}" for step in line.reached if step is not None]
            within = f"not reached in {line.costs['env_steps']:,.0f}" if "env_steps" in line.costs else "not reached"
            rows.append([line.label, ", ".join(steps) or within, f"{len(steps)} of {len(line.reached)}"])
    return ["", f"env steps to {summary.metric} {summary.threshold:g}", "seeds that reached it"], rows


def _build_cost_table(summary: Summary) -> Table:
    spent = any(SPENDING in line.costs for line in summary.lines)
    names = [name for name in COMPARISON_FIELDS if name != SPENDING or spent]
    rows = [[line.label, *(_format_cost(line, name) for name in names)] for line in summary.lines]
    return ["mean of a run", *(COST_HEADINGS[name] for name in names)], rows


def _format_cost(line: MethodSummary, name: str) -> str:
    if name not in line.costs:
        return MISSING_CELL
    value = line.costs[name]
    if name == "peak_memory":
        return format_megabytes(value)
    return f"{value:,.4f}" if name == SPENDING else f"{value:,.0f}"


def _build_tables(summary: Summary) -> list[tuple[str, Table]]:
    differences = _build_difference_table(summary.baseline, summary.lines, summary.metric)
    tables = [(summary.title, _build_result_table(summary)), (f"Differences to {summary.baseline}", differences)]
    for panel in summary.panels:
        on = f" on {panel.games}" if panel.games else ""
        differences = _build_difference_table(panel.against, panel.lines, panel.metric)
        tables += [
            (f"{panel.label}: {panel.metric}{on}, trial by trial", _build_trial_table(panel)),
            (f"{panel.label}: differences of trial {panel.num_trials}", differences),
        ]
    tables += [("Sample efficiency", _build_efficiency_table(summary)), ("Cost", _build_cost_table(summary))]
    return [(title, table) for title, table in tables if table[1]]


def _build_legend(summary: Summary) -> list[str]:
    compared = summary.baseline or any(panel.against for panel in summary.panels)
    lines = [LEGEND["intervals"], LEGEND["iqm"], *([LEGEND["differences"]] if compared else [])]
    lines += [LEGEND["panels"]] if summary.panels else []
    for panel in summary.panels:
        last = "differences are of the last trial less"
        legend = "other games; no start model plays them, so there are no differences"
        if panel.same_games:
            legend = f"the games of the first table; {last} the same run without tips there"
        elif panel.start:
            legend = f"other games; {last} the last trial of {panel.start}"
        lines.append(f"{panel.label}: {legend}.")
    lines += [LEGEND["attempts"]] if any(line.num_attempts > 1 for line in summary.lines) else []
    lines += [LEGEND["efficiency"]] if any(line.trains for line in summary.lines) else []
    return [*lines, LEGEND["cost"], *summary.notes]


def format_panel_sentence(panel: PanelSummary, summary: Summary) -> str:
    """Write a panel as a sentence: ``.85 with its tips, .83 without``, or all trials of each method."""
    finals, clauses = {line.label: line.final for line in summary.lines if panel.same_games}, []
    for line in [line for line in panel.lines if line.trials]:
        means, without = [_format_mean(trial.mean, panel.metric) for trial in line.trials], finals.get(line.label)
        call = f" ({line.difference.call})" if line.difference and line.difference.call else ""
        one = f"{means[-1]} with its tips, {_format_mean(without.mean, panel.metric)} without" if without else ""
        clauses.append(f"{line.label} {one or ' '.join(means)}{call}")
    how = f"after {panel.num_trials} trial{'s' * (panel.num_trials > 1)}" if panel.same_games else "trial by trial"
    return f"{panel.label}, {how}: {'; '.join(clauses) or 'no result'}."


def _format_mean(mean: float, metric: str) -> str:
    return f"{mean + 0.0:.2f}".removeprefix("0") if metric == "success" else f"{mean:.1f}"


def render_summary_markdown(summary: Summary) -> str:
    lines: list[str] = []
    for level, (title, (head, rows)) in enumerate(_build_tables(summary)):
        lines += [f"{'##' if level else '#'} {title}", "", *format_table(head, rows), ""]
    return "\n".join([*lines, *(f"- {line}" for line in _build_legend(summary))]) + "\n"


def print_summary(summary: Summary) -> None:
    for title, table in _build_tables(summary):
        print_table(title, table)
    print_text(_build_legend(summary))


def print_brief(summary: Summary) -> None:
    head = ["", "mean", ON_PANEL, BEYOND, *(COST_HEADINGS[name] for name in BRIEF_COSTS)]
    rows = []
    for line in summary.lines:
        costs = [_format_cost(line, name) for name in BRIEF_COSTS]
        rows.append([line.label, *_format_estimate(line.final, summary.metric), *costs])
    print_table(summary.title, (["\n".join(name.rsplit(" ", 1)) for name in head], rows))
    if (table := _build_difference_table(summary.baseline, summary.lines, summary.metric))[1]:
        print_table(f"Differences to {summary.baseline}", table)
    panels = [format_panel_sentence(panel, summary) for panel in summary.panels]
    print_text([*panels, LEGEND["intervals"], *summary.notes])


def render_summary_json(summary: Summary) -> str:
    record = {name: getattr(summary, name) for name in ("title", "metric", "env", "threshold", "baseline")} | {
        "lines": [_method_to_json(line) for line in summary.lines],
        "panels": [
            {**asdict(panel), "against": panel.against, "lines": [_method_to_json(line) for line in panel.lines]}
            for panel in summary.panels
        ],
        "curves": {label: [list(map(list, curve)) for curve in curves] for label, curves in summary.curves.items()},
        "methods": [LEGEND[name] for name in ("intervals", "iqm", "differences")],
        "notes": list(summary.notes),
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def _method_to_json(line: MethodSummary | PanelMethodSummary) -> dict[str, Any]:
    record = asdict(line) | {"missing": {str(seed): why for seed, why in line.missing.items()}}
    if line.difference is not None:
        record["difference"] |= {"call": line.difference.call}
    return record

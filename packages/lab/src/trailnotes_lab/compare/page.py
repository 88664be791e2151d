"""The table of a comparison as people and programs read it: Markdown, a terminal, JSON, a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trailnotes.reporting.intervals import Estimate, Interval
from trailnotes.reporting.tables import MISSING_CELL, Table, format_table, print_table, print_text
from trailnotes.runs.console import format_megabytes
from trailnotes.runs.usage import COMPARISON_FIELDS, SPENDING
from trailnotes_lab.compare.panels import PanelMethodSummary, PanelSummary
from trailnotes_lab.compare.picture import MethodMarks, PlotRow, PlotText, draw_methods, make_panel_row
from trailnotes_lab.compare.statistics import BEYOND, DIFFERENCE_METHOD, INTERVAL_METHOD, IQM_METHOD, ON_PANEL
from trailnotes_lab.compare.summary import MethodSummary, Summary

COST_HEADINGS = {
    "env_steps": "env steps",
    "tokens_read": "tokens read",
    "tokens_generated": "tokens generated",
    "tokens_trained": "tokens trained",
    "seconds": "seconds",
    "cpu_seconds": "CPU seconds",
    "peak_memory": "peak memory (MB)",
    SPENDING: "spending",
}
BRIEF_COSTS = ("env_steps", "seconds")  # what a line of 100 columns holds beside two intervals

PANEL_METHOD = (
    "Panels trial by trial: the model of each run plays the panel from an empty memory, trial 0 without tips, each "
    "later trial with the tips that it wrote in those before. A column is the mean of a trial; both intervals are of "
    "the last trial alone, of the two kinds above (seeds of a start model differ in what was sampled, not in "
    "training). Not in the costs."
)


def build_result_table(summary: Summary) -> Table:
    """Success, or return, of each method, with both intervals. Each figure of several attempts has a row of its own.

    Beside success stands the return, where it says more.
    """
    returns = any(line.one_return for line in summary.lines)
    head = [summary.metric, "mean", ON_PANEL, BEYOND, "IQM", *(["return"] if returns else []), "seeds · games"]
    return head, [row for line in summary.lines for row in _build_result_rows(line, summary, returns=returns)]


def _build_result_rows(line: MethodSummary, summary: Summary, *, returns: bool) -> list[list[str]]:
    absent = f", {len(line.missing)} missing" if line.missing else ""
    played = f"{len(line.seeds)} · {line.num_games}{absent}"
    attempts = [("", line.one, line.one_return)]
    if line.num_attempts > 1:
        first = (f", first of {line.num_attempts}", line.one, line.one_return)
        attempts = [first, (", last", line.last, line.last_return), (", best", line.best, None)]
        attempts = [attempt for attempt in attempts if attempt[1] is not None]
    return [
        [
            f"{line.label}{name}",
            *format_estimate_cells(own, summary.metric),
            _format_iqm(line, summary) if own is line.final else MISSING_CELL,
            *([_format_mean_and_interval(value)] if returns else []),
            played,
        ]
        for name, own, value in attempts
    ]


def _format_mean_and_interval(estimate: Estimate | None) -> str:
    """A mean and its interval in one cell: ``0.612 [0.550, 0.668]``; on the panel, or else beyond it."""
    if estimate is None:
        return MISSING_CELL
    interval = estimate.on_panel or estimate.beyond
    return f"{estimate.mean:.3f}" + (f" [{interval.low:.3f}, {interval.high:.3f}]" if interval else "")


def _format_iqm(line: MethodSummary, summary: Summary) -> str:
    return MISSING_CELL if line.iqm is None else f"{line.iqm:.{_get_decimals(summary.metric)}f}"


def format_estimate_cells(estimate: Estimate | None, metric: str, sign: str = "") -> list[str]:
    """Mean, interval on the panel and beyond it: ``0.881``, ``[0.750, 0.963]``, ``one seed``.

    Args:
        estimate: None where nothing was played.
        metric: what it is of.
        sign: of the numbers, as in a format: "+" for differences.
    """
    if estimate is None:
        return [MISSING_CELL] * 3
    form = f"{sign}.{_get_decimals(metric)}f"
    pairs = ((estimate.on_panel, estimate.not_on_panel), (estimate.beyond, estimate.not_beyond))
    return [format(estimate.mean, form), *(f"[{i.low:{form}}, {i.high:{form}}]" if i else why for i, why in pairs)]


def _get_decimals(metric: str) -> int:
    return 3 if metric == "success" else 1


def build_difference_table(summary: Summary) -> Table:
    """Each method less the baseline, paired, with both intervals and what they allow to say."""
    return _tabulate_differences(f"less {summary.baseline}", summary.lines, summary.metric)


def _tabulate_differences(head: str, lines: Sequence[MethodSummary | PanelMethodSummary], metric: str) -> Table:
    rows = []
    for line in lines:
        if line.difference is not None:
            call: str = line.difference.call
            if call and line.difference.has_enough_runs:
                call = f"**{call}**"
            rows.append([line.label, *format_estimate_cells(line.difference.estimate, metric, "+"), call])
    return [head, "mean", ON_PANEL, BEYOND, "so it is"], rows


def build_trial_table(panel: PanelSummary) -> Table:
    """The mean of each trial of each method, and both intervals of the last."""
    trials = [f"trial {number}" for number in range(panel.num_trials + 1)]
    rows = []
    for line in panel.lines:
        means = [f"{trial.mean:.{_get_decimals(panel.metric)}f}" for trial in line.trials] or [MISSING_CELL] * len(
            trials
        )
        played = f"{len(line.seeds)} · {line.num_games}" + (f", {len(line.missing)} missing" if line.missing else "")
        rows.append([line.label, *means, *format_estimate_cells(line.final, panel.metric)[1:], played])
    return [panel.metric, *trials, ON_PANEL, BEYOND, "seeds · games"], rows


def build_panel_difference_table(panel: PanelSummary) -> Table:
    """The last trial, less the same model's result without tips or, on other games, less that of the start model."""
    return _tabulate_differences(f"less {panel.against}", panel.lines, panel.metric)


def _build_panel_tables(panel: PanelSummary) -> list[tuple[str, Table]]:
    on = f" on {panel.games}" if panel.games else ""
    return [
        (f"{panel.label}: {panel.metric}{on}, trial by trial", build_trial_table(panel)),
        (f"{panel.label}: differences of trial {panel.num_trials}", build_panel_difference_table(panel)),
    ]


def build_efficiency_table(summary: Summary) -> Table:
    """Environment steps until the learning curve first reaches the threshold, seed by seed."""
    rows = []
    for line in summary.lines:
        if not line.trains:
            continue
        steps = [f"{step:,.0f}" for step in line.reached if step is not None]
        within = f"not reached in {line.costs['env_steps']:,.0f}" if "env_steps" in line.costs else "not reached"
        rows.append([line.label, ", ".join(steps) or within, f"{len(steps)} of {len(line.reached)}"])
    return ["", f"env steps to {summary.metric} {summary.threshold:g}", "seeds that reached it"], rows


def build_cost_table(summary: Summary) -> Table:
    """Means of a run; spending only where an endpoint charged some."""
    names = [
        name for name in COMPARISON_FIELDS if name != SPENDING or any(SPENDING in line.costs for line in summary.lines)
    ]
    rows = [[line.label, *(_format_cost(line, name) for name in names)] for line in summary.lines]
    return ["mean of a run", *(COST_HEADINGS[name] for name in names)], rows


def _format_cost(line: MethodSummary, name: str) -> str:
    if name not in line.costs:
        return MISSING_CELL
    value = line.costs[name]
    if name == "peak_memory":
        return format_megabytes(value)
    return f"{value:,.4f}" if name == SPENDING else f"{value:,.0f}"


def build_brief_table(summary: Summary) -> Table:
    """What each method is judged by, and what a run of it cost; heads stand in two lines."""
    head = ["", "mean", ON_PANEL, BEYOND, *(COST_HEADINGS[name] for name in BRIEF_COSTS)]
    rows = [
        [
            line.label,
            *format_estimate_cells(line.final, summary.metric),
            *(_format_cost(line, name) for name in BRIEF_COSTS),
        ]
        for line in summary.lines
    ]
    return ["\n".join(name.rsplit(" ", 1)) for name in head], rows


def build_tables(summary: Summary) -> list[tuple[str, Table]]:
    """Title and table, those that have a row."""
    tables = [
        (summary.title, build_result_table(summary)),
        (f"Differences to {summary.baseline}", build_difference_table(summary)),
        *(titled for panel in summary.panels for titled in _build_panel_tables(panel)),
        ("Sample efficiency", build_efficiency_table(summary)),
        ("Cost", build_cost_table(summary)),
    ]
    return [(title, table) for title, table in tables if table[1]]


def build_legend(summary: Summary) -> list[str]:
    """Everything below the tables, a sentence or two a line."""
    lines = [INTERVAL_METHOD, IQM_METHOD]
    if summary.baseline or any(panel.against for panel in summary.panels):
        lines.append(DIFFERENCE_METHOD)
    lines += build_panels_legend(summary.panels)
    if any(line.num_attempts > 1 for line in summary.lines):
        lines.append(
            "A method with several attempts at a game is not a one-attempt method: to be read beside the others is its "
            "first; its last and its best (cumulative) have lines of their own. Difference and picture are of its last."
        )
    if any(line.trains for line in summary.lines):
        lines.append(
            "Sample efficiency: the first point of the learning curve (validation games without tips, or training "
            "games where there is no validation) that reaches the threshold; a seed that never does is left out."
        )
    lines.append(
        "Cost: of training, or of adapting with all its trials, the panel among them; peak memory is that of the "
        "largest process of any run, seconds are wall clock beside whatever else ran. Tokens read count each prompt "
        "whole."
    )
    return [*lines, *summary.notes]


def build_panels_legend(panels: Sequence[PanelSummary]) -> list[str]:
    """How the further panels were played, what their intervals are of, and what is set against what."""
    lines = [PANEL_METHOD] if panels else []
    for panel in panels:
        if panel.same_games:
            said = (
                "the games of the first table; differences are of the last trial less the same run without tips there"
            )
        elif panel.start:
            said = f"other games; differences are of the last trial less the last trial of {panel.start}"
        else:
            said = "other games; no start model plays them, so there are no differences"
        lines.append(f"{panel.label}: {said}.")
    return lines


def format_panel_sentence(panel: PanelSummary, summary: Summary) -> str:
    """A panel in a sentence: ``.85 with its tips, .83 without``, or all trials of each method."""
    without = {line.label: line.final for line in summary.lines if panel.same_games}
    said = "; ".join(
        _format_panel_method(line, without.get(line.label), panel.metric) for line in panel.lines if line.trials
    )
    how = f"after {panel.num_trials} trial{'s' * (panel.num_trials > 1)}" if panel.same_games else "trial by trial"
    return f"{panel.label}, {how}: {said or 'no result'}."


def _format_panel_method(line: PanelMethodSummary, without: Estimate | None, metric: str) -> str:
    means = [_format_mean(trial.mean, metric) for trial in line.trials]
    call = f" ({line.difference.call})" if line.difference and line.difference.call else ""
    if without is not None:
        return f"{line.label} {means[-1]} with its tips, {_format_mean(without.mean, metric)} without{call}"
    return f"{line.label} {' '.join(means)}{call}"


def _format_mean(mean: float, metric: str) -> str:
    """``.85``, as it may stand in a row of such."""
    return f"{mean + 0.0:.2f}".removeprefix("0") if metric == "success" else f"{mean:.1f}"


# -- Markdown, terminal, JSON


def render_summary_markdown(summary: Summary) -> str:
    """All tables with their legend."""
    lines: list[str] = []
    for level, (title, (head, rows)) in enumerate(build_tables(summary)):
        lines += [f"{'##' if level else '#'} {title}", "", *format_table(head, rows), ""]
    return "\n".join([*lines, *(f"- {line}" for line in build_legend(summary))]) + "\n"


def print_summary(summary: Summary) -> None:
    """All tables on the console, with their legend."""
    for title, table in build_tables(summary):
        print_table(title, table)
    print_text(build_legend(summary))


def print_brief(summary: Summary) -> None:
    """Results and differences on the console, and what a reader must know."""
    print_table(summary.title, build_brief_table(summary))
    if (table := build_difference_table(summary))[1]:
        print_table(f"Differences to {summary.baseline}", table)
    print_text([*(format_panel_sentence(panel, summary) for panel in summary.panels), INTERVAL_METHOD, *summary.notes])


def render_summary_json(summary: Summary, **more: Any) -> str:
    """Everything as data."""
    record = {
        "title": summary.title,
        "metric": summary.metric,
        "env": summary.env,
        "threshold": summary.threshold,
        "baseline": summary.baseline,
        "lines": [_method_to_json(line) for line in summary.lines],
        "panels": [
            {**asdict(panel), "against": panel.against, "lines": [_method_to_json(line) for line in panel.lines]}
            for panel in summary.panels
        ],
        "curves": {label: [list(map(list, curve)) for curve in curves] for label, curves in summary.curves.items()},
        "methods": [INTERVAL_METHOD, IQM_METHOD, DIFFERENCE_METHOD],
        "notes": list(summary.notes),
        **more,
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def _method_to_json(line: MethodSummary | PanelMethodSummary) -> dict[str, Any]:
    record = asdict(line) | {"missing": {str(seed): why for seed, why in line.missing.items()}}
    if line.difference is not None:
        record["difference"] |= {"call": line.difference.call}
    return record


# -- picture


def draw_summary(summary: Summary, path: Path) -> None:
    """Learning curves, marks for methods without training, and final figures with intervals, all of one kind.

    Panels of the same games are hollow marks among the final figures, panels of other games have a row each.
    """
    beyond = any(line.final.beyond for line in summary.lines if line.final is not None)
    again = [panel for panel in summary.panels if panel.same_games]
    starts = {panel.start for panel in summary.panels}
    marks: Sequence[MethodMarks] = [
        MethodMarks(
            label=line.label,
            curves=summary.curves.get(line.label, ()),
            final=line.final.mean if line.final else None,
            interval=_select_interval(line.final, beyond=beyond),
            iqm=line.iqm,
            remark=f"last of {line.num_attempts}" if line.num_attempts > 1 else "",
            is_baseline=line.label == summary.baseline,
            is_start=line.label in starts,
            rings=[panel.get_final_mean(line.label) for panel in again],
        )
        for line in summary.lines
    ]
    words = PlotText(
        summary.title,
        summary.metric,
        BEYOND if beyond else ON_PANEL,
        rings=[f"{panel.label}, trial {panel.num_trials}" for panel in again],
    )
    others = [_make_plot_row(panel) for panel in summary.panels if not panel.same_games]
    draw_methods(
        marks, path, words, threshold=summary.threshold, panels=[row for row in others if row.methods_with_curves]
    )


def _make_plot_row(panel: PanelSummary) -> PlotRow:
    beyond = any(line.final.beyond for line in panel.lines if line.final)
    marks = [
        MethodMarks(
            label=line.label,
            curves=[list(enumerate(means)) for means in line.by_seed],
            final=line.final.mean if line.final else None,
            interval=_select_interval(line.final, beyond=beyond),
            is_baseline=line.label == panel.start,
            is_start=line.label == panel.start,
        )
        for line in panel.lines
    ]
    words = PlotText(
        f"{panel.label}: {panel.metric} on {panel.games}",
        panel.metric,
        BEYOND if beyond else ON_PANEL,
        judged=f"in trial {panel.num_trials}",
    )
    return make_panel_row(marks, words, panel.num_trials)


def _select_interval(final: Estimate | None, *, beyond: bool) -> Interval | None:
    if final is None:
        return None
    return final.beyond if beyond else final.on_panel

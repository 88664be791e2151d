"""The table of a comparison as people and programs read it: Markdown, a terminal, JSON, a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trailnotes.compare.picture import Marks, Words, draw_methods
from trailnotes.compare.statistics import BEYOND, DIFFERENCE_METHOD, INTERVAL_METHOD, IQM_METHOD, ON_PANEL
from trailnotes.compare.summary import Line, Summary
from trailnotes.reporting.intervals import Estimate
from trailnotes.reporting.tables import DASH, Table, print_table, print_text, table_lines
from trailnotes.runs.spent import BY_RUN, SPENDING

MEGABYTE = 1 << 20
HEADS = {
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


def result_table(summary: Summary) -> Table:
    """Success, or return, of each method, with both intervals. Each figure of several attempts has a row of its own."""
    head = [summary.metric, "mean", ON_PANEL, BEYOND, "IQM", "seeds · games"]
    return head, [row for line in summary.lines for row in _result_rows(line, summary)]


def _result_rows(line: Line, summary: Summary) -> list[list[str]]:
    absent = f", {len(line.missing)} missing" if line.missing else ""
    played = f"{len(line.seeds)} · {line.num_games}{absent}"
    if line.num_attempts == 1:
        return [[line.label, *cells_of(line.one, summary), _middle(line, summary), played]]
    attempts = [(f"first of {line.num_attempts}", line.one), ("last", line.last), ("best", line.best)]
    shown = [(name, own) for name, own in attempts if own is not None]
    judged = next((i for i, (_, own) in enumerate(shown) if own is line.final), 0)
    rows = [[f"{line.label}, {name}", *cells_of(own, summary), DASH, played] for name, own in shown]
    rows[judged][4] = _middle(line, summary)
    return rows


def _middle(line: Line, summary: Summary) -> str:
    return DASH if line.iqm is None else f"{line.iqm:.{_places(summary)}f}"


def cells_of(estimate: Estimate | None, summary: Summary, sign: str = "") -> list[str]:
    """Mean, interval on the panel and beyond it: ``0.881``, ``[0.750, 0.963]``, ``one seed``.

    Args:
        estimate: None where nothing was played.
        summary: of the metric.
        sign: of the numbers, as in a format: "+" for differences.
    """
    if estimate is None:
        return [DASH] * 3
    form = f"{sign}.{_places(summary)}f"
    pairs = ((estimate.on_panel, estimate.not_on_panel), (estimate.beyond, estimate.not_beyond))
    return [format(estimate.mean, form), *(f"[{i.low:{form}}, {i.high:{form}}]" if i else why for i, why in pairs)]


def _places(summary: Summary) -> int:
    return 3 if summary.metric == "success" else 1


def difference_table(summary: Summary) -> Table:
    """Each method less the baseline, paired, with both intervals and what they allow to say."""
    rows = []
    for line in summary.lines:
        if line.difference is not None:
            call = f"**{line.difference.call}**" if line.difference.call else ""
            rows.append([line.label, *cells_of(line.difference.estimate, summary, "+"), call])
    return [f"less {summary.baseline}", "mean", ON_PANEL, BEYOND, "so it is"], rows


def efficiency_table(summary: Summary) -> Table:
    """Environment steps until the learning curve first reaches the threshold, seed by seed."""
    rows = []
    for line in summary.lines:
        if not line.trains:
            continue
        steps = [f"{step:,.0f}" for step in line.reached if step is not None]
        within = f"not reached in {line.costs['env_steps']:,.0f}" if "env_steps" in line.costs else "not reached"
        rows.append([line.label, ", ".join(steps) or within, f"{len(steps)} of {len(line.reached)}"])
    return ["", f"env steps to {summary.metric} {summary.threshold:g}", "seeds that reached it"], rows


def cost_table(summary: Summary) -> Table:
    """Means of a run; spending only where an endpoint charged some."""
    names = [name for name in BY_RUN if name != SPENDING or any(SPENDING in line.costs for line in summary.lines)]
    rows = [[line.label, *(_cost(line, name) for name in names)] for line in summary.lines]
    return ["mean of a run", *(HEADS[name] for name in names)], rows


def _cost(line: Line, name: str) -> str:
    if name not in line.costs:
        return DASH
    value = line.costs[name]
    if name == "peak_memory":
        return f"{value / MEGABYTE:,.0f}"
    return f"{value:,.4f}" if name == SPENDING else f"{value:,.0f}"


def brief_table(summary: Summary) -> Table:
    """What each method is judged by, and what a run of it cost; heads stand in two lines."""
    head = ["", "mean", ON_PANEL, BEYOND, *(HEADS[name] for name in BRIEF_COSTS)]
    rows = [
        [line.label, *cells_of(line.final, summary), *(_cost(line, name) for name in BRIEF_COSTS)]
        for line in summary.lines
    ]
    return ["\n".join(name.rsplit(" ", 1)) for name in head], rows


def tables_of(summary: Summary) -> list[tuple[str, Table]]:
    """Title and table, those that have a row."""
    tables = [
        (summary.title, result_table(summary)),
        (f"Differences to {summary.baseline}", difference_table(summary)),
        ("Sample efficiency", efficiency_table(summary)),
        ("Cost", cost_table(summary)),
    ]
    return [(title, table) for title, table in tables if table[1]]


def legend(summary: Summary) -> list[str]:
    """Everything below the tables, a sentence or two a line."""
    lines = [INTERVAL_METHOD, IQM_METHOD]
    if summary.baseline:
        lines.append(DIFFERENCE_METHOD)
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


# -- Markdown, terminal, JSON


def summary_markdown(summary: Summary) -> str:
    """All tables with their legend."""
    lines: list[str] = []
    for level, (title, (head, rows)) in enumerate(tables_of(summary)):
        lines += [f"{'##' if level else '#'} {title}", "", *table_lines(head, rows), ""]
    return "\n".join([*lines, *(f"- {line}" for line in legend(summary))]) + "\n"


def print_summary(summary: Summary) -> None:
    """All tables on the console, with their legend."""
    for title, table in tables_of(summary):
        print_table(title, table)
    print_text(legend(summary))


def print_brief(summary: Summary) -> None:
    """Results and differences on the console, and what a reader must know."""
    print_table(summary.title, brief_table(summary))
    if (table := difference_table(summary))[1]:
        print_table(f"Differences to {summary.baseline}", table)
    print_text([INTERVAL_METHOD, *summary.notes])


def summary_json(summary: Summary, **more: Any) -> str:
    """Everything as data."""
    lines = []
    for line in summary.lines:
        record = asdict(line) | {"missing": {str(seed): why for seed, why in line.missing.items()}}
        if line.difference is not None:
            record["difference"] |= {"call": line.difference.call}
        lines.append(record)
    record = {
        "title": summary.title,
        "metric": summary.metric,
        "env": summary.env,
        "threshold": summary.threshold,
        "baseline": summary.baseline,
        "lines": lines,
        "curves": {label: [list(map(list, curve)) for curve in curves] for label, curves in summary.curves.items()},
        "methods": [INTERVAL_METHOD, IQM_METHOD, DIFFERENCE_METHOD],
        "notes": list(summary.notes),
        **more,
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


# -- picture


def draw_summary(summary: Summary, path: Path) -> None:
    """Learning curves, marks for methods without training, and final figures with intervals, all of one kind."""
    finals = [line.final for line in summary.lines if line.final is not None]
    beyond = any(final.beyond for final in finals)
    marks: Sequence[Marks] = [
        Marks(
            label=line.label,
            curves=summary.curves.get(line.label, ()),
            final=line.final.mean if line.final else None,
            interval=(line.final.beyond if beyond else line.final.on_panel) if line.final else None,
            iqm=line.iqm,
            remark=f"last of {line.num_attempts}" if line.num_attempts > 1 else "",
            is_baseline=line.label == summary.baseline,
        )
        for line in summary.lines
    ]
    words = Words(summary.title, summary.metric, BEYOND if beyond else ON_PANEL)
    draw_methods(marks, path, words, threshold=summary.threshold)

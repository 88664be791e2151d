"""The table of a comparison as people and programs read it: Markdown, a terminal, JSON, a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trailnotes.compare.picture import Marks, draw_methods
from trailnotes.compare.statistics import DIFFERENCE_METHOD, IQM_METHOD, MEAN_METHOD
from trailnotes.compare.summary import Line, Summary
from trailnotes.reporting.intervals import Interval
from trailnotes.reporting.tables import DASH, Table, print_table, print_text, table_lines
from trailnotes.runs.spent import BY_ROW, BY_RUN, SPENDING

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


def result_table(summary: Summary) -> Table:
    """Success, or return, of each method. Figures of several attempts have columns of their own."""
    several = any(line.num_attempts > 1 for line in summary.lines)
    head = [summary.metric, "one attempt at a game"]
    head += ["last of several", "best of several"] * several
    head += ["IQM", *([f"less {summary.baseline}"] if summary.baseline else []), "seeds · games"]
    return head, [_result_row(line, summary, several=several) for line in summary.lines]


def _result_row(line: Line, summary: Summary, *, several: bool) -> list[str]:
    attempts = f" (of {line.num_attempts})" if line.num_attempts > 1 else ""
    cells = [number(line.one, summary)]
    if several:
        cells += [f"{number(interval, summary)}{attempts if interval else ''}" for interval in (line.last, line.best)]
    cells.append(number(line.iqm, summary))
    if summary.baseline:
        cells.append(_difference(line, summary))
    absent = f", {len(line.missing)} missing" if line.missing else ""
    return [line.label, *cells, f"{len(line.seeds)} · {line.num_games}{absent}"]


def _difference(line: Line, summary: Summary) -> str:
    if line.difference is None:
        return DASH
    interval, places = line.difference.interval, _places(summary)
    text = f"{interval.mean:+.{places}f} [{interval.low:+.{places}f}, {interval.high:+.{places}f}]"
    return f"{text} **{line.difference.call}**" if line.difference.call else text


def number(interval: Interval | None, summary: Summary) -> str:
    """``0.881 [0.750, 0.963]``; returns with one decimal."""
    if interval is None:
        return DASH
    places = _places(summary)
    return f"{interval.mean:.{places}f} [{interval.low:.{places}f}, {interval.high:.{places}f}]"


def _places(summary: Summary) -> int:
    return 3 if summary.metric == "success" else 1


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
    """What each method is judged by, and what a run of it cost; heads of two words stand in two lines."""
    head = ["", "mean [95 % interval]", *(HEADS[name] for name in BY_ROW)]
    rows = [
        [line.label, number(line.final, summary), *(_cost(line, name) for name in BY_ROW)] for line in summary.lines
    ]
    return [name.replace(" ", "\n", 1) for name in head], rows


def tables_of(summary: Summary) -> list[tuple[str, Table]]:
    """Title and table, those that have a row."""
    tables = [
        (summary.title, result_table(summary)),
        ("Sample efficiency", efficiency_table(summary)),
        ("Cost", cost_table(summary)),
    ]
    return [(title, table) for title, table in tables if table[1]]


def legend(summary: Summary) -> list[str]:
    """Everything below the tables, a sentence or two a line."""
    lines = [MEAN_METHOD, IQM_METHOD]
    if summary.baseline:
        lines.append(DIFFERENCE_METHOD)
    if any(line.num_attempts > 1 for line in summary.lines):
        lines.append(
            "A method with several attempts at a game is not a one-attempt method: its first attempt stands in the "
            "column of the others, its last and its best (cumulative) in their own, with the number of attempts. IQM, "
            "difference and picture are of its last."
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
    """One table on the console, what differs from the baseline, and what a reader must know."""
    print_table(summary.title, brief_table(summary))
    for line in summary.lines:
        if line.difference is not None:
            print(f"{line.label} less {summary.baseline}: {_difference(line, summary).replace('**', '')}")
    print_text(summary.notes)


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
        "methods": [MEAN_METHOD, IQM_METHOD, DIFFERENCE_METHOD],
        "notes": list(summary.notes),
        **more,
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


# -- picture


def draw_summary(summary: Summary, path: Path) -> None:
    """Learning curves with bands, marks for methods without training, and final figures with their intervals."""
    marks: Sequence[Marks] = [
        Marks(
            label=line.label,
            curves=summary.curves.get(line.label, ()),
            final=line.final,
            iqm=line.iqm.mean if line.iqm else None,
            remark=f"last of {line.num_attempts}" if line.num_attempts > 1 else "",
            is_baseline=line.label == summary.baseline,
        )
        for line in summary.lines
    ]
    draw_methods(marks, path, metric=summary.metric, title=summary.title, threshold=summary.threshold)

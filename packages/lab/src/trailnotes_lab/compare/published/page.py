"""Render measured and published columns: as Markdown, on a terminal, as JSON, and as a picture."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from trailnotes.reporting.intervals import Interval
from trailnotes.reporting.plots import plot_panel
from trailnotes.reporting.tables import MISSING_CELL, format_table, measure_width, print_text, print_untruncated
from trailnotes.reporting.terminal import open_console
from trailnotes.runs.usage import TABLE_FIELDS
from trailnotes_lab.compare.published.table import Column, Comparison, ComparisonCell
from trailnotes_lab.compare.statistics import LEGEND

if TYPE_CHECKING:
    from rich.table import Table


class Footnotes:
    """Differences from the published protocol, marked at the head for a whole column, else at the number.

    `heads` and `cells` hold the marks behind labels and numbers, each with a blank before it.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.texts: list[str] = []
        self.heads: dict[str, str] = {}
        self.cells: dict[tuple[str, str], str] = {}
        for column in comparison.columns:
            cells = list(column.cells.values())
            common = [p for p in cells[0].differences if all(p in cell.differences for cell in cells)]
            self.heads[column.label] = self._add_footnote(common)
            for task, cell in column.cells.items():
                own = [phrase for phrase in cell.differences if phrase not in common]
                self.cells[column.label, task] = self._add_footnote(own)

    def lines(self) -> list[str]:
        """List the footnotes, each behind its mark."""
        return [f"({_format_letter(i)}) Not the published protocol: {text}." for i, text in enumerate(self.texts)]

    def _add_footnote(self, phrases: Sequence[str]) -> str:
        if not phrases:
            return ""
        text = "; ".join(phrases)
        if text not in self.texts:
            self.texts.append(text)
        return f" ({_format_letter(self.texts.index(text))})"


def _format_letter(index: int) -> str:
    """a, b, ... z, aa, bb, ..."""
    return ascii_lowercase[index % 26] * (index // 26 + 1)


def _format_cell(cell: ComparisonCell) -> str:
    """``45.2 [30.1, 60.0] 2·20·40``; the interval is beyond the variations, else ``on panel [30.1, 60.0]``."""
    own = cell.estimate
    if i := own.beyond or own.on_panel:
        return f"{own.mean:.1f} {'' if own.beyond else 'on panel '}[{i.low:.1f}, {i.high:.1f}] {cell.counts}"
    return f"{own.mean:.1f} no interval {cell.counts}"


def _format_marked_cell(column: Column, task: str, footnotes: Footnotes) -> str:
    if task not in column.cells:
        return MISSING_CELL
    return _format_cell(column.cells[task]) + footnotes.cells[column.label, task]


def _build_mean_rows(comparison: Comparison) -> list[tuple[str, list[str], list[str]]]:
    """The last rows: name, ours, published. The average of the panel is only of columns that have every task."""
    published, total = comparison.published, len(comparison.published.rows)
    whole = [comparison.is_complete(column) for column in comparison.columns]
    averages = [_format_cell(c.mean) if ok else MISSING_CELL for c, ok in zip(comparison.columns, whole, strict=True)]
    rows = [(f"average of all {total} tasks", averages, [f"{column.average:.1f}" for column in published.columns])]
    if not all(whole):
        present = [
            MISSING_CELL if ok else f"{_format_cell(c.mean)}, of {len(c.cells)} task{'s' * (len(c.cells) != 1)}"
            for c, ok in zip(comparison.columns, whole, strict=True)
        ]
        none = [MISSING_CELL] * len(published.columns)
        rows.append(("mean of the tasks present, not an average of the panel", present, none))
    return rows


def _build_legend(comparison: Comparison, footnotes: Footnotes) -> list[str]:
    published = comparison.published
    theirs = f"{published.source}; {published.model}; {published.protocol}; mean ± standard deviation"
    counts = "After each number of ours: seeds · variations · episodes behind it. A dash: not played."
    return [
        f"Ours: mean {published.metric} with interval ({LEGEND['published_interval']}). {counts}",
        f"Published, not played by us: {theirs}. The footnotes say where ours is not comparable.",
        *published.notes,
        *comparison.notes,
        *footnotes.lines(),
    ]


def to_markdown(comparison: Comparison) -> str:
    """Render the table, its legend, and the training costs of each column as Markdown."""
    published, footnotes = comparison.published, Footnotes(comparison)
    heads = [f"ours: {column.label}{footnotes.heads[column.label]}" for column in comparison.columns]
    theirs = [f"published: {column.method}" for column in published.columns]
    rows = [
        ["*model*", *(column.model for column in comparison.columns), *[published.model] * len(theirs)],
        ["*protocol*", *(column.protocol for column in comparison.columns), *[published.protocol] * len(theirs)],
    ]
    for index, (task, name) in enumerate(published.rows.items()):
        ours = [_format_marked_cell(column, task, footnotes) for column in comparison.columns]
        rows.append([name, *ours, *(str(column.figures[index]) for column in published.columns)])
    rows += [[f"**{name}**", *ours, *others] for name, ours, others in _build_mean_rows(comparison)]
    lines = [f"# {comparison.panel}: {published.metric}", "", *format_table(["task", *heads, *theirs], rows), ""]
    lines += [f"- {line}" for line in _build_legend(comparison, footnotes)]
    trained = [column for column in comparison.columns if column.costs]
    costs = [[c.label, str(c.num_runs), *(f"{c.costs[name]:,.0f}" for name in TABLE_FIELDS)] for c in trained]
    if costs:
        head = ["mean of a training run", "runs", *(name.replace("_", " ") for name in TABLE_FIELDS)]
        lines += ["", *format_table(head, costs)]
    return "\n".join(lines) + "\n"


def print_comparison(comparison: Comparison) -> None:
    """Print the table; on a terminal that is too narrow, first the measured columns, then the published that fit."""
    footnotes = Footnotes(comparison)
    console = open_console(sys.stdout)
    tables = [_build_rich_table(comparison, footnotes, ours=True, theirs=True)]
    if console.is_terminal and measure_width(tables[0]) > console.width:
        tables = [_build_rich_table(comparison, footnotes, ours=mine, theirs=not mine) for mine in (True, False)]
    for table in tables:
        print_untruncated(table)
    protocols = [f"{column.label}: {column.protocol}." for column in comparison.columns]
    print_text([*protocols, *_build_legend(comparison, footnotes)])


def _build_rich_table(comparison: Comparison, footnotes: Footnotes, *, ours: bool, theirs: bool) -> Table:
    """Text is never markup."""
    from rich.table import Table
    from rich.text import Text

    published = comparison.published
    columns = comparison.columns if ours else ()
    printed = published.columns if theirs else ()
    table = Table(title=f"{comparison.panel}: {published.metric}")
    table.add_column("", no_wrap=True)
    for column in columns:
        head = f"ours\n{column.label}{footnotes.heads[column.label]}\n{_wrap_text(column.model, 24)}"
        table.add_column(Text(head, style="bold"), justify="right", no_wrap=True)
    for other in printed:
        head = f"published\n{other.method}\n{_wrap_text(published.model, 12)}"
        table.add_column(Text(head, style="dim"), justify="right", no_wrap=True, style="dim")
    for index, (task, name) in enumerate(published.rows.items()):
        numbers = [_format_marked_cell(column, task, footnotes) for column in columns]
        table.add_row(name, *map(Text, numbers), *(str(other.figures[index]) for other in printed))
    table.add_section()
    for name, numbers, others in _build_mean_rows(comparison):
        mine = [Text(_wrap_text(text, 30)) for text in numbers] if ours else []
        table.add_row(_wrap_text(name, 30), *mine, *(others if theirs else []))
    return table


def _wrap_text(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width)) or text


def to_json(comparison: Comparison) -> str:
    """Render everything as JSON: `average` is null for a column that lacks a task, `mean_of_present` never is."""
    published, columns = comparison.published, []
    for column in published.columns:
        cells = {task: asdict(figure) for task, figure in zip(published.rows, column.figures, strict=True)}
        columns.append({"method": column.method, "cells": cells, "average": column.average})
    theirs = {name: getattr(published, name) for name in ("source", "model", "protocol")}
    record = {
        "panel": comparison.panel,
        "metric": published.metric,
        "interval": LEGEND["published_interval"],
        "ours": [_column_to_json(comparison, column) for column in comparison.columns],
        "published": {**theirs, "columns": columns, "notes": list(published.notes)},
        "notes": list(comparison.notes),
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def _column_to_json(comparison: Comparison, column: Column) -> dict[str, Any]:
    mean = _cell_to_json(column.mean)
    cells = {task: _cell_to_json(column.cells[task]) for task in comparison.published.rows if task in column.cells}
    return {
        "label": column.label,
        "model": column.model,
        "protocol": column.protocol,
        "cells": cells,
        "average": mean if comparison.is_complete(column) else None,
        "mean_of_present": mean | {"num_tasks": len(column.cells)},
        "costs": dict(column.costs),
        "num_runs": column.num_runs,
        "sources": list(comparison.sources[column.label]),
    }


def _cell_to_json(cell: ComparisonCell) -> dict[str, Any]:
    counts = {name: getattr(cell, name) for name in ("num_seeds", "num_variations", "num_episodes")}
    return {**asdict(cell.estimate), **counts, "differences": list(cell.differences)}


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draw dots and intervals, a line a task; measured and published columns in pictures of their own."""
    published = comparison.published
    last = f"average of all {len(published.rows)}"
    ours = {}
    for column in comparison.columns:
        ours[column.label] = {published.rows[task]: _get_dot_interval(cell) for task, cell in column.cells.items()}
        if comparison.is_complete(column):
            ours[column.label][last] = _get_dot_interval(column.mean)
    theirs = {}
    for printed in published.columns:
        figures = zip(published.rows.values(), printed.figures, strict=True)
        theirs[printed.method] = {name: (figure.mean, figure.sd) for name, figure in figures}
        theirs[printed.method][last] = (printed.average, 0.0)
    titles = (
        "ours: mean and 95 % interval beyond these variations",
        f"published: {published.model}, mean ± standard deviation",
    )
    plot_panel([*published.rows.values(), last], ours, theirs, path, titles=titles)


def _get_dot_interval(cell: ComparisonCell) -> Interval:
    """The interval beyond the variations; without one a dot alone, so that the picture has intervals of one kind."""
    own = cell.estimate
    return own.beyond or Interval(own.mean, own.mean, own.mean)

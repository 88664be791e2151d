"""A comparison as people and programs read it: Markdown, a terminal, JSON, a picture."""

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
from trailnotes_lab.compare.published.table import PUBLISHED_INTERVAL_METHOD, Column, Comparison, ComparisonCell

if TYPE_CHECKING:
    from rich.table import Table

COUNTS_LEGEND = "After each number of ours: seeds · variations · episodes behind it."


class Footnotes:
    """Where ours differs from the published protocol: at the head what all of a column has, else at the number."""

    def __init__(self, comparison: Comparison) -> None:
        self.texts: list[str] = []
        self._heads: dict[str, str] = {}
        self._cells: dict[tuple[str, str], str] = {}
        for column in comparison.columns:
            cells = list(column.cells.values())
            common = [p for p in cells[0].differences if all(p in cell.differences for cell in cells)]
            self._heads[column.label] = self._add_footnote(common)
            for task, cell in column.cells.items():
                own = [phrase for phrase in cell.differences if phrase not in common]
                self._cells[column.label, task] = self._add_footnote(own)

    def get_head_mark(self, column: Column) -> str:
        """The mark behind the label of a column, with a blank before it."""
        return self._heads[column.label]

    def get_cell_mark(self, column: Column, task: str) -> str:
        """The mark behind a number, with a blank before it."""
        return self._cells[column.label, task]

    def lines(self) -> list[str]:
        """The footnotes, each behind its mark."""
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


def format_cell(cell: ComparisonCell | None) -> str:
    """``45.2 [30.1, 60.0] 2·20·40``; the interval is beyond the variations, else ``on panel [30.1, 60.0]``."""
    if cell is None:
        return MISSING_CELL
    own = cell.estimate
    if i := own.beyond or own.on_panel:
        return f"{own.mean:.1f} {'' if own.beyond else 'on panel '}[{i.low:.1f}, {i.high:.1f}] {cell.counts}"
    return f"{own.mean:.1f} no interval {cell.counts}"


def build_mean_rows(comparison: Comparison) -> list[tuple[str, list[str], list[str]]]:
    """The last rows: name, ours, published. The average of the panel is only of columns that have every task."""
    published, total = comparison.published, len(comparison.published.rows)
    whole = [comparison.is_complete(column) for column in comparison.columns]
    averages = [format_cell(c.mean) if ok else MISSING_CELL for c, ok in zip(comparison.columns, whole, strict=True)]
    rows = [(f"average of all {total} tasks", averages, [f"{column.average:.1f}" for column in published.columns])]
    if not all(whole):
        present = [
            MISSING_CELL if ok else f"{format_cell(c.mean)}, of {len(c.cells)} task{'s' * (len(c.cells) != 1)}"
            for c, ok in zip(comparison.columns, whole, strict=True)
        ]
        rows.append(
            ("mean of the tasks present, not an average of the panel", present, [MISSING_CELL] * len(published.columns))
        )
    return rows


def build_comparison_legend(comparison: Comparison, footnotes: Footnotes) -> list[str]:
    """Everything below the table, a sentence or two a line."""
    published = comparison.published
    theirs = f"{published.source}; {published.model}; {published.protocol}; mean ± standard deviation"
    return [
        f"Ours: mean {published.metric} with interval ({PUBLISHED_INTERVAL_METHOD}). {COUNTS_LEGEND} A dash: not played.",
        f"Published, not played by us: {theirs}. The footnotes say where ours is not comparable.",
        *published.notes,
        *comparison.notes,
        *footnotes.lines(),
    ]


# -- Markdown


def to_markdown(comparison: Comparison) -> str:
    """The table, its legend, and what the training of each column cost."""
    published, footnotes = comparison.published, Footnotes(comparison)
    heads = [f"ours: {column.label}{footnotes.get_head_mark(column)}" for column in comparison.columns]
    theirs = [f"published: {column.method}" for column in published.columns]
    rows = [
        ["*model*", *(column.model for column in comparison.columns), *[published.model] * len(theirs)],
        ["*protocol*", *(column.protocol for column in comparison.columns), *[published.protocol] * len(theirs)],
    ]
    for index, (task, name) in enumerate(published.rows.items()):
        ours = [_format_marked_cell(column, task, footnotes) for column in comparison.columns]
        rows.append([name, *ours, *(str(column.figures[index]) for column in published.columns)])
    rows += [[f"**{name}**", *ours, *others] for name, ours, others in build_mean_rows(comparison)]
    lines = [f"# {comparison.panel}: {published.metric}", "", *format_table(["task", *heads, *theirs], rows), ""]
    lines += [f"- {line}" for line in build_comparison_legend(comparison, footnotes)]
    if costs := _build_cost_rows(comparison):
        head = ["mean of a training run", "runs", *(name.replace("_", " ") for name in TABLE_FIELDS)]
        lines += ["", *format_table(head, costs)]
    return "\n".join(lines) + "\n"


def _build_cost_rows(comparison: Comparison) -> list[list[str]]:
    return [
        [column.label, str(column.num_runs), *(f"{column.costs[name]:,.0f}" for name in TABLE_FIELDS)]
        for column in comparison.columns
        if column.costs
    ]


# -- terminal


def print_comparison(comparison: Comparison) -> None:
    """The table on the console; on a terminal that is too narrow, first ours, then the published."""
    footnotes = Footnotes(comparison)
    console = open_console(sys.stdout)
    tables = [_build_rich_table(comparison, footnotes, ours=True, theirs=True)]
    if console.is_terminal and measure_width(tables[0]) > console.width:
        tables = [_build_rich_table(comparison, footnotes, ours=mine, theirs=not mine) for mine in (True, False)]
    for table in tables:
        print_untruncated(table)
    print_text(
        [*(f"{c.label}: {c.protocol}." for c in comparison.columns), *build_comparison_legend(comparison, footnotes)]
    )


def _build_rich_table(comparison: Comparison, footnotes: Footnotes, *, ours: bool, theirs: bool) -> Table:
    """All tasks with the columns of ours, those of the published table, or both. Text is never markup."""
    from rich.table import Table
    from rich.text import Text

    published = comparison.published
    columns = comparison.columns if ours else ()
    printed = published.columns if theirs else ()
    table = Table(title=f"{comparison.panel}: {published.metric}")
    table.add_column("", no_wrap=True)
    for column in columns:
        head = f"ours\n{column.label}{footnotes.get_head_mark(column)}\n{_wrap_text(column.model, 24)}"
        table.add_column(Text(head, style="bold"), justify="right", no_wrap=True)
    for other in printed:
        head = f"published\n{other.method}\n{_wrap_text(published.model, 12)}"
        table.add_column(Text(head, style="dim"), justify="right", no_wrap=True, style="dim")
    for index, (task, name) in enumerate(published.rows.items()):
        numbers = [_format_marked_cell(column, task, footnotes) for column in columns]
        table.add_row(name, *map(Text, numbers), *(str(other.figures[index]) for other in printed))
    table.add_section()
    for name, numbers, others in build_mean_rows(comparison):
        mine = [Text(_wrap_text(text, 30)) for text in numbers] if ours else []
        table.add_row(_wrap_text(name, 30), *mine, *(others if theirs else []))
    return table


def _format_marked_cell(column: Column, task: str, footnotes: Footnotes) -> str:
    return format_cell(column.cells.get(task)) + (footnotes.get_cell_mark(column, task) if task in column.cells else "")


def _wrap_text(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width)) or text


# -- programs


def to_json(comparison: Comparison) -> str:
    """Everything as data. `average` is null for a column that lacks a task; `mean_of_present` never is."""
    published = comparison.published
    record = {
        "panel": comparison.panel,
        "metric": published.metric,
        "interval": PUBLISHED_INTERVAL_METHOD,
        "ours": [_column_to_json(comparison, column) for column in comparison.columns],
        "published": {
            "source": published.source,
            "model": published.model,
            "protocol": published.protocol,
            "columns": [
                {
                    "method": column.method,
                    "cells": {t: asdict(f) for t, f in zip(published.rows, column.figures, strict=True)},
                    "average": column.average,
                }
                for column in published.columns
            ],
            "notes": list(published.notes),
        },
        "notes": list(comparison.notes),
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def _column_to_json(comparison: Comparison, column: Column) -> dict[str, Any]:
    mean = _cell_to_json(column.mean)
    return {
        "label": column.label,
        "model": column.model,
        "protocol": column.protocol,
        "cells": {
            task: _cell_to_json(column.cells[task]) for task in comparison.published.rows if task in column.cells
        },
        "average": mean if comparison.is_complete(column) else None,
        "mean_of_present": mean | {"num_tasks": len(column.cells)},
        "costs": dict(column.costs),
        "num_runs": column.num_runs,
        "sources": list(comparison.sources[column.label]),
    }


def _cell_to_json(cell: ComparisonCell) -> dict[str, Any]:
    counts = {name: getattr(cell, name) for name in ("num_seeds", "num_variations", "num_episodes")}
    return {**asdict(cell.estimate), **counts, "differences": list(cell.differences)}


# -- picture


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Dots and intervals, a line a task; ours and the published in pictures of their own."""
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

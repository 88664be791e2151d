"""Render measured and published columns: as Markdown, on a terminal, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from trailnotes.reporting.tables import MISSING_CELL, Table, format_table, print_table, print_text
from trailnotes.runs.usage import TABLE_FIELDS
from trailnotes_lab.compare.published.table import Column, Comparison, ComparisonCell
from trailnotes_lab.compare.statistics import LEGEND


def _format_cell(cell: ComparisonCell) -> str:
    """``45.2 [30.1, 60.0] 2·20·40``; the interval is beyond the variations, else ``on panel [30.1, 60.0]``."""
    own = cell.estimate
    if i := own.beyond or own.on_panel:
        return f"{own.mean:.1f} {'' if own.beyond else 'on panel '}[{i.low:.1f}, {i.high:.1f}] {cell.counts}"
    return f"{own.mean:.1f} no interval {cell.counts}"


def _build_table(comparison: Comparison) -> Table:
    columns, published, missing = comparison.columns, comparison.published, MISSING_CELL
    ours = [f"ours: {column.label}" for column in columns]
    head = ["task", *ours, *(f"published: {column.method}" for column in published.columns)]
    rows = []
    for index, (task, name) in enumerate(published.rows.items()):
        cells = [_format_cell(column.cells[task]) if task in column.cells else missing for column in columns]
        rows.append([name, *cells, *(str(column.figures[index]) for column in published.columns)])
    whole = [comparison.is_complete(column) for column in columns]
    averages = [_format_cell(c.mean) if ok else missing for c, ok in zip(columns, whole, strict=True)]
    theirs = [f"{column.average:.1f}" for column in published.columns]
    rows.append([f"**average of all {len(published.rows)} tasks**", *averages, *theirs])
    if not all(whole):
        present = [
            missing if ok else f"{_format_cell(c.mean)}, of {len(c.cells)} task{'s' * (len(c.cells) != 1)}"
            for c, ok in zip(columns, whole, strict=True)
        ]
        rows.append(["**mean of the tasks present, not an average of the panel**", *present, *[missing] * len(theirs)])
    return head, rows


def _build_legend(comparison: Comparison) -> list[str]:
    published = comparison.published
    theirs = f"{published.source}; {published.model}; {published.protocol}; mean ± standard deviation"
    counts = "After each number of ours: seeds · variations · episodes behind it. A dash: not played."
    return [
        f"Ours: mean {published.metric} with interval ({LEGEND['published_interval']}). {counts}",
        f"Published, not played by us: {theirs}. Models, protocols and the remarks below say what is comparable.",
        *published.notes,
        *comparison.notes,
    ]


def to_markdown(comparison: Comparison) -> str:
    published, columns = comparison.published, comparison.columns
    head, rows = _build_table(comparison)
    num_theirs = len(published.columns)
    models = ["*model*", *(column.model for column in columns), *[published.model] * num_theirs]
    protocols = ["*protocol*", *(column.protocol for column in columns), *[published.protocol] * num_theirs]
    lines = [f"# {comparison.panel}: {published.metric}", "", *format_table(head, [models, protocols, *rows]), ""]
    lines += [f"- {line}" for line in _build_legend(comparison)]
    trained = [column for column in columns if column.costs]
    costs = [[c.label, str(c.num_runs), *(f"{c.costs[name]:,.0f}" for name in TABLE_FIELDS)] for c in trained]
    if costs:
        head = ["mean of a training run", "runs", *(name.replace("_", " ") for name in TABLE_FIELDS)]
        lines += ["", *format_table(head, costs)]
    return "\n".join(lines) + "\n"


def print_comparison(comparison: Comparison) -> None:
    """Print the table; on a terminal that is too narrow, the columns on the right are left out."""
    print_table(f"{comparison.panel}: {comparison.published.metric}", _build_table(comparison))
    protocols = [f"{column.label}: {column.model}; {column.protocol}." for column in comparison.columns]
    print_text([*protocols, *_build_legend(comparison)])


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
    return {**asdict(cell.estimate), **counts}

"""Published figures, each table with its model and its protocol, as `figures.toml` has them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class PrintedFigure:
    """One printed cell: mean and standard deviation, in the unit of its table."""

    mean: float
    sd: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.sd:.1f}"


@dataclass(frozen=True, slots=True)
class PrintedColumn:
    """The figures of one published method."""

    method: str
    figures: tuple[PrintedFigure, ...]  # one a row of the table, in its order
    average: float  # as printed


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table of a paper: rows, columns, and the protocol of its numbers."""

    env: str
    source: str
    model: str
    protocol: str  # one line for the head of the columns
    facts: Mapping[str, object]  # the part that a config can be compared with; see protocol.py
    metric: str
    rows: Mapping[str, str]  # task as the simulator calls it -> as the paper prints it, in the paper's order
    columns: tuple[PrintedColumn, ...]
    notes: tuple[str, ...]


def _build_table(record: dict[str, Any]) -> PublishedTable:
    rows, columns = record.pop("rows"), zip(record.pop("methods"), record.pop("averages"), strict=True)
    figures = [tuple(PrintedFigure(*row[2 + i]) for row in rows) for i in range(len(rows[0]) - 2)]
    return PublishedTable(
        **record | {"notes": tuple(record["notes"])},
        rows={task: name for task, name, *_ in rows},
        columns=tuple(PrintedColumn(name, own, mean) for (name, mean), own in zip(columns, figures, strict=True)),
    )


_DATA: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PUBLISHED_PANELS: Final[Mapping[str, PublishedTable]] = {
    name: _build_table(record) for name, record in _DATA["panels"].items()
}

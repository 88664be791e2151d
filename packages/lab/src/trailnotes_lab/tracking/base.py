"""What a tracker is: a place where people look at runs. What it is told of a run, and what it may be shown."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trailnotes.errors import MissingExtraError, format_install_command

PROJECT = "trailnotes"
"""Where a service puts our runs, unless its own environment variable names another place."""
TRACKERS_DIR = "trackers"
"""In a run directory: what its trackers keep there."""
BUILTIN_TRACKERS = {
    "tensorboard": "trailnotes_lab.tracking.tensorboard:TensorBoard",
    "wandb": "trailnotes_lab.tracking.wandb:Wandb",
    "mlflow": "trailnotes_lab.tracking.mlflow:MLflow",
    "trackio": "trailnotes_lab.tracking.trackio:Trackio",
}
"""Name in `run.trackers` -> its class, which only its own process imports."""

TableCell = str | float | None


class Table(NamedTuple):
    """Rows under names; every row is as long as `columns`."""

    columns: list[str]
    rows: list[list[TableCell]]


@dataclass(frozen=True, slots=True)
class About:
    """What a tracker is told of a run before anything else."""

    directory: Path  # of the run
    name: str
    settings: Mapping[str, Any]  # dotted name -> value of each key of the config, as JSON has it
    id: str = ""  # that this tracker gave the run in an earlier start; "" if it has not met it


class Tracker(Protocol):
    """One run in one service. Made as ``Class(about)``; what it raises, and whether it returns, harms nobody.

    `id` is kept beside the run, and brings the next start to the same place of the service, where each iteration is
    shown once. One that is "" keeps nothing: the next start shows everything anew.
    """

    id: str

    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        """The numbers of one iteration, from 0; iterations come in order."""
        ...

    def text(self, iteration: int, name: str, text: str) -> None:
        """Plain text, whatever it holds: no markup of ours, and none of a model that wrote it."""
        ...

    def table(self, name: str, table: Table) -> None:
        """A table, in place of the last one of that name."""
        ...

    def close(self, *, finished: bool) -> None:
        """Nothing comes after this; `finished`: the run ended by itself, and was not stopped."""
        ...


def make_tracker(name: str, about: About) -> Tracker:
    """The tracker of a name in ``run.trackers``: built in, or ``module:Class``.

    Raises:
        MissingExtraError: its package is not installed.
        Exception: whatever else the tracker, or finding it, raises.
    """
    try:
        tracker: Tracker = pkgutil.resolve_name(BUILTIN_TRACKERS.get(name, name))(about)
    except ModuleNotFoundError as error:
        if name not in BUILTIN_TRACKERS:
            raise
        raise MissingExtraError(f"it needs the package {error.name}: {format_install_command(name)}") from error
    return tracker


def render_plain_text(text: str) -> str:
    """`text` in Markdown that shows it as it is: an indented block has no end that a text could hold."""
    return "".join(f"    {line}\n" for line in text.splitlines())


def render_table_markdown(table: Table) -> str:
    """The table in Markdown, its cells on one line each."""
    lines = [table.columns, ["---"] * len(table.columns), *([_format_cell(cell) for cell in row] for row in table.rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _format_cell(value: TableCell) -> str:
    if isinstance(value, str):
        return "`" + " ".join(value.split()).replace("|", "¦").replace("`", "'") + "`" if value.strip() else ""
    return "" if value is None else f"{value:g}"

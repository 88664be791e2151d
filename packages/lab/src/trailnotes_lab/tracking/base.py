"""The interface of experiment trackers, the texts that they share, and the redaction of secrets."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trailnotes.errors import SECRET_NAME, SECRET_NAMES, MissingExtraError, format_install_command, redact_environment

PROJECT = "trailnotes"  # of a service, unless its own environment variable names another one
TRACKERS_DIR = "trackers"  # inside a run directory
REDACTED = "***"
_ADDRESS_SECRET = re.compile(r"(?<=://)[^\s/@]+(?=@)")
_QUERY_SECRET = re.compile(rf"([?&](?:[^\s=&?]*[._-])?(?:{SECRET_NAMES})=)[^\s&#\"']+", re.IGNORECASE)
# Name in `run.trackers` -> its module and class, which is imported when a run names it.
BUILTIN_TRACKERS = {"tensorboard": "TensorBoard", "wandb": "Wandb", "mlflow": "MLflow", "trackio": "Trackio"}

TableCell = str | float | None


class Table(NamedTuple):
    """Rows under column names; every row is as long as `columns`."""

    columns: list[str]
    rows: list[list[TableCell]]


@dataclass(frozen=True, slots=True)
class About:
    """Directory, name and settings of a run, which a tracker gets first."""

    directory: Path  # of the run
    name: str
    settings: Mapping[str, Any]  # dotted name -> value of each key of the config, as JSON has it
    id: str = ""  # that this tracker gave the run in an earlier start; "" if there was none
    iterations: int = 0  # that were reported in earlier starts


class Tracker(Protocol):
    """One run in one service, made as ``Class(about)``; an error in it ends the tracker, not the run.

    `id` is kept beside the run, and leads the next start to the same run of the service, where each iteration is
    reported once. An empty `id` keeps nothing: the next start reports everything again.
    """

    id: str

    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        """Show the numbers of one iteration, from 0; iterations come in order."""

    def text(self, iteration: int, name: str, text: str) -> None:
        """Show plain text: nothing in it is markup."""

    def table(self, name: str, table: Table) -> None:
        """Show a table in place of the last one of that name."""

    def close(self, *, finished: bool) -> None:
        """Close the tracker; `finished`: the run ended by itself, and was not stopped."""


def make_tracker(name: str, about: About) -> Tracker:
    """Make the tracker of a name in ``run.trackers``, built in or ``module:Class``; any error of its code gets out."""
    try:
        place = f"{__package__}.{name}:{BUILTIN_TRACKERS[name]}" if name in BUILTIN_TRACKERS else name
        tracker: Tracker = pkgutil.resolve_name(place)(about)
    except ModuleNotFoundError as error:
        if name not in BUILTIN_TRACKERS:
            raise
        raise MissingExtraError(f"it needs the package {error.name}: {format_install_command(name)}") from error
    return tracker


def render_plain_text(text: str) -> str:
    """Render text as Markdown that shows it as it is: an indented block has no end that a text could hold."""
    return "".join(f"    {line}\n" for line in text.splitlines())


def render_table_markdown(table: Table) -> str:
    lines = [table.columns, ["---"] * len(table.columns), *([_format_cell(cell) for cell in row] for row in table.rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _format_cell(value: TableCell) -> str:
    if isinstance(value, str):
        return "`" + " ".join(value.split()).replace("|", "¦").replace("`", "'") + "`" if value.strip() else ""
    return "" if value is None else f"{value:g}"


def redact_secrets(value: Any) -> Any:
    """Replace keys, passwords in addresses, and secrets of the environment (`redact_environment`) in JSON values."""
    match value:
        case str():
            value = _ADDRESS_SECRET.sub(REDACTED, redact_environment(value))
            value = _QUERY_SECRET.sub(rf"\1{REDACTED}", value)
            return value.encode(errors="replace").decode()  # half a surrogate pair: no service can store one
        case Mapping():
            return {
                name: REDACTED if SECRET_NAME.search(str(name)) and item else redact_secrets(item)
                for name, item in value.items()
            }
        case list() | tuple():
            return [redact_secrets(item) for item in value]
    return value


class LoggedRun:
    """A run of a service that logs values by step and takes tables at the last step."""

    _run: Any

    def __init__(self, about: About) -> None:
        self._last = max(0, about.iterations - 1)

    def curves(self, iteration: int, values: Mapping[str, float]) -> None:
        self._last = iteration
        self._run.log(dict(values), step=iteration)

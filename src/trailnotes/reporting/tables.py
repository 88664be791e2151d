"""Tables as Markdown and on a terminal, and the text below them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trailnotes.reporting.terminal import open_console

if TYPE_CHECKING:
    from rich.table import Table as RichTable

DASH = "-"  # in a cell of which nothing is known
TEXT_WIDTH = 118  # of the text below a table on the console, where that is as wide
Table = tuple[list[str], list[list[str]]]  # head and rows


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns but the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def print_table(title: str, table: Table) -> None:
    """A table on the console, as wide as it is; its heads are stacked where that is too wide. Text is never markup."""
    width = _columns()
    shown = _drawn(title, table)
    if width_of(shown) > width:
        head, rows = table
        shown = _drawn(title, ([name.replace(" ", "\n") for name in head], rows))
    open_console(sys.stdout, max(width_of(shown), width)).print(shown)


def _drawn(title: str, table: Table) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    head, rows = table
    shown = RichTable(title=title)
    for index, name in enumerate(head):
        shown.add_column(Text(name), justify="right" if index else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*(Text(cell.replace("**", "")) for cell in row))
    return shown


def _columns() -> int:
    """Of the terminal; of a pipe as many as text takes."""
    return shutil.get_terminal_size((TEXT_WIDTH, 24)).columns


def print_text(lines: Iterable[str]) -> None:
    """What is said below a table, each line wrapped by itself."""
    for line in lines:
        print(textwrap.fill(line, min(TEXT_WIDTH, _columns()), subsequent_indent="  "))


def width_of(table: RichTable) -> int:
    """Columns that a table takes if nothing of it is cut."""
    from rich.console import Console

    return Console(width=10_000).measure(table).maximum

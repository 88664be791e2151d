"""Tables as Markdown and on a terminal, with the text below them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from trailnotes.reporting.terminal import CONSOLE_HEIGHT, open_console

if TYPE_CHECKING:
    from rich.table import Column
    from rich.table import Table as RichTable

MISSING_CELL = "-"  # in a cell of which nothing is known
TEXT_WIDTH = 118  # of the text below a table on the console, where that is as wide
Table = tuple[list[str], list[list[str]]]  # head and rows


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a Markdown table whose columns but the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def print_table(title: str, table: Table) -> None:
    """Print a table on the console, with stacked heads where it is too wide. Text is never markup."""
    shown = _build_rich_table(title, table)
    if measure_width(shown) > _get_console_width():
        head, rows = table
        shown = _build_rich_table(title, ([name.replace(" ", "\n") for name in head], rows))
    print_untruncated(shown)


def print_untruncated(table: RichTable) -> None:
    """Print a table without cutting a cell, on a narrow terminal in parts.

    Each part is a table of its own, with the first column and as many others as fit.
    """
    width = _get_console_width()
    if not sys.stdout.isatty():
        width = max(width, measure_width(table))
    console = open_console(sys.stdout, width)
    for part in _split_table(table, width):
        console.print(part)


def _split_table(table: RichTable, width: int) -> Iterator[RichTable]:
    left = table.columns[1:]
    while True:
        part, left = _select_columns(table, left[:1]), left[1:]
        while left and measure_width(wider := _select_columns(table, [*part.columns[1:], left[0]])) <= width:
            part, left = wider, left[1:]
        if measure_width(part) > width:  # nothing else is left to give way
            part.columns[0].no_wrap, part.columns[0].overflow = False, "fold"
        yield part
        if not left:
            return


def _select_columns(table: RichTable, columns: Sequence[Column]) -> RichTable:
    part = copy(table)
    part.columns = [replace(column, _index=index) for index, column in enumerate([table.columns[0], *columns])]
    return part


def _build_rich_table(title: str, table: Table) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    head, rows = table
    shown = RichTable(title=title)
    for index, name in enumerate(head):
        shown.add_column(Text(name), justify="right" if index else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*(Text(cell.replace("**", "")) for cell in row))
    return shown


def _get_console_width() -> int:
    return shutil.get_terminal_size((TEXT_WIDTH, CONSOLE_HEIGHT)).columns


def print_text(lines: Iterable[str]) -> None:
    """Print the text below a table, each line wrapped by itself."""
    for line in lines:
        print(textwrap.fill(line, min(TEXT_WIDTH, _get_console_width()), subsequent_indent="  "))


def measure_width(table: RichTable) -> int:
    """Measure the columns that a table takes uncut."""
    from rich.console import Console

    return Console(width=10_000, height=CONSOLE_HEIGHT).measure(table).maximum

"""Tables as Markdown and on a terminal, with the text below them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from trailnotes.reporting.terminal import CONSOLE_HEIGHT, open_console

if TYPE_CHECKING:
    from rich.table import Column
    from rich.table import Table as RichTable

MISSING_CELL = "-"  # in a cell of which nothing is known
TEXT_WIDTH = 118  # of the text below a table on the console, where that is as wide
MIN_HEAD_WIDTH = 8  # characters to which the head of a narrow column is wrapped
Table = tuple[list[str], list[list[str]]]  # head and rows


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def print_table(title: str, table: Table, least: Sequence[str] = ()) -> None:
    """Print a table on the console, with wrapped heads where it is too wide. Text is never markup.

    `least` are the columns that go first where a terminal has no room, as for `print_untruncated`.
    """
    shown = _build_rich_table(title, table)
    if measure_width(shown) > get_console_width():
        head, rows = table
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(len(head))]
        wrapped = ["\n".join(textwrap.wrap(name, max(width, MIN_HEAD_WIDTH), break_long_words=False))
                   for name, width in zip(head, widths, strict=True)]  # fmt: skip
        shown = _build_rich_table(title, (wrapped, rows))
    print_untruncated(shown, least)


def print_untruncated(table: RichTable, least: Sequence[str] = ()) -> None:
    """Print a table without cutting a cell: a narrow terminal gets fewer columns, and a line that names the others.

    The columns named in `least` go first, in that order, then those on the right; the first one always stays. What is
    no terminal gets all.
    """
    width, left_out = get_console_width(), list[str]()
    if not sys.stdout.isatty():
        width = max(width, measure_width(table))
    while measure_width(table) > width and len(table.columns) > 2:
        names = [" ".join(str(column.header).split()) for column in table.columns]
        index = next((names.index(name, 1) for name in least if name in names[1:]), len(names) - 1)
        left_out.append(names[index])
        table = _select_columns(table, [column for place, column in enumerate(table.columns) if place != index])
    if measure_width(table) > width:  # nothing else is left to give way
        table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    open_console(sys.stdout, width).print(table)
    if left_out:
        columns = "1 column" if len(left_out) == 1 else f"{len(left_out)} columns"
        print_text([f"{columns} left out ({', '.join(left_out)}): widen the terminal, or pipe the output to see all"])


def _select_columns(table: RichTable, columns: Sequence[Column]) -> RichTable:
    part = copy(table)
    part.columns = [replace(column, _index=index) for index, column in enumerate(columns)]
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


def get_console_width() -> int:
    """Return the columns of the terminal, or what texts take without one."""
    return shutil.get_terminal_size((TEXT_WIDTH, CONSOLE_HEIGHT)).columns


def print_text(lines: Iterable[str]) -> None:
    for line in lines:
        print(textwrap.fill(line, min(TEXT_WIDTH, get_console_width()), subsequent_indent="  "))


def measure_width(table: RichTable) -> int:
    from rich.console import Console

    return Console(width=10_000, height=CONSOLE_HEIGHT).measure(table).maximum

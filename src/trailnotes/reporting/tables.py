"""Tables as Markdown and on a terminal, with the text below them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trailnotes.reporting.terminal import CONSOLE_HEIGHT, open_console

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MISSING_CELL = "-"
TEXT_WIDTH = 118  # of the text below a table on the console, where that is as wide
Table = tuple[list[str], list[list[str]]]  # head and rows


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def print_table(title: str, table: Table) -> None:
    """Print a table on the console; a narrow terminal wraps its cells. Text is never markup."""
    from rich.table import Table as RichTable
    from rich.text import Text

    head, rows = table
    rich_table = RichTable(title=title)
    for index, name in enumerate(head):
        rich_table.add_column(Text(name), justify="right" if index else "left", overflow="fold")
    for row in rows:
        rich_table.add_row(*(Text(cell.replace("**", "")) for cell in row))
    print_untruncated(rich_table)


def print_untruncated(table: RichTable) -> None:
    """Print a table without cutting a cell; what is no terminal gets the whole width."""
    from rich.console import Console

    width = get_console_width()
    if not sys.stdout.isatty():
        width = max(width, Console(width=10_000, height=CONSOLE_HEIGHT).measure(table).maximum)
    open_console(sys.stdout, width).print(table)


def get_console_width() -> int:
    """Return the columns of the terminal, or what texts take without one."""
    return shutil.get_terminal_size((TEXT_WIDTH, CONSOLE_HEIGHT)).columns


def print_text(lines: Iterable[str]) -> None:
    for line in lines:
        print(textwrap.fill(line, min(TEXT_WIDTH, get_console_width()), subsequent_indent="  "))

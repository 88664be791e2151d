"""Prints `docs/cli.md`: ``python -m trailnotes.commands.page > docs/cli.md``."""

from __future__ import annotations

from trailnotes.commands import TABLE
from trailnotes.commands.command import page

if __name__ == "__main__":
    print(page(TABLE), end="")

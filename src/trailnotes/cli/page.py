"""Prints `docs/cli.md`: ``python -m trailnotes.cli.page > docs/cli.md``."""

from __future__ import annotations

from trailnotes.cli import TABLE
from trailnotes.cli.command import page

if __name__ == "__main__":
    print(page(TABLE), end="")

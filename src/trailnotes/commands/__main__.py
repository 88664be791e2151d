"""Prints `docs/cli.md`: ``python -m trailnotes.commands > docs/cli.md``."""

from __future__ import annotations

from trailnotes.commands import TABLE
from trailnotes.commands.command import render_cli_page

print(render_cli_page(TABLE), end="")

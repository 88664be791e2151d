"""Prints the page of commands of the site: ``python -m trailnotes.commands > docs/cli.md``, as `make docs` does."""

from __future__ import annotations

from trailnotes.commands import TABLE
from trailnotes.commands.command import render_cli_page

print(render_cli_page(TABLE), end="")

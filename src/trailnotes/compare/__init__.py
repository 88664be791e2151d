"""Comparisons: runs of ours beside each other, and published rows beside them, never in one column.

`compare_table` reads finished evaluations and plays nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from trailnotes.compare.evaluations import collect
from trailnotes.compare.page import draw, to_json, to_markdown
from trailnotes.compare.table import Comparison, compare
from trailnotes.errors import ConfigError, MissingExtraError
from trailnotes.files import write_text_atomic
from trailnotes.published import PANELS

__all__ = ["Comparison", "compare_table"]

logger = logging.getLogger(__name__)


def compare_table(runs: Sequence[str], *, panel: str = "scienceworld-18", out: Path | None = None) -> Comparison:
    """Read evaluations of a panel and set them beside each other and beside what was published.

    Args:
        runs: run directories, whose evaluations are those at and below ``RUN/eval``, or evaluations themselves; each
            alone or as ``DIR=LABEL``, which names its column.
        panel: a name in `published.PANELS`.
        out: directory for `table.json`, `table.md` and `table.png` (where matplotlib is installed); None writes
            nothing.

    Raises:
        ConfigError: an unknown panel, no directory, or an empty label.
        RunError: a directory that is no evaluation, is half-written, or does not belong to the panel.
    """
    if panel not in PANELS:
        raise ConfigError(f"unknown panel {panel!r}: use {' or '.join(PANELS)}")
    if not runs:
        raise ConfigError("nothing to compare: name one run directory or more")
    evaluations, notes = collect(runs, PANELS[panel].env)
    comparison = compare(evaluations, panel, PANELS[panel], notes)
    if out is not None:
        write_text_atomic(out / "table.json", to_json(comparison))
        write_text_atomic(out / "table.md", to_markdown(comparison))
        try:
            draw(comparison, out / "table.png")
        except MissingExtraError as error:
            logger.warning("no table.png: %s", error)
    return comparison

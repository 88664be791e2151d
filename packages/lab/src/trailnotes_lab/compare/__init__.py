"""Comparisons: runs of ours beside each other, and published rows beside them, never in one column.

`compare_run` plays what a comparison's TOML file asks for; the other two read finished evaluations and play nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from trailnotes.errors import ConfigError, MissingExtraError
from trailnotes.storage.files import write_text_atomic
from trailnotes.types import StrPath
from trailnotes_lab.compare.comparison import compare_run, is_comparison, recompute, write_summary
from trailnotes_lab.compare.evaluations import collect, find, read, split_label
from trailnotes_lab.compare.published.figures import PANELS
from trailnotes_lab.compare.published.page import draw, to_json, to_markdown
from trailnotes_lab.compare.published.table import Comparison, compare
from trailnotes_lab.compare.results import read_result
from trailnotes_lab.compare.summary import Question, Summary, summarise

__all__ = [
    "Comparison",
    "Summary",
    "compare_own",
    "compare_run",
    "compare_table",
    "is_comparison",
    "published_panel",
    "recompute",
]

logger = logging.getLogger(__name__)


def compare_table(runs: Sequence[str], *, panel: str = "scienceworld-18", out: StrPath | None = None) -> Comparison:
    """Read evaluations of a panel and set them beside each other and beside what was published.

    Args:
        runs: run directories, whose evaluations are those at and below ``RUN/eval``, or evaluations themselves; each
            alone or as ``DIR=LABEL``, which names its column.
        panel: a name in `published.PANELS`.
        out: directory for `table.json`, `table.md` and `table.png` (where matplotlib is installed); None writes
            nothing.

    Raises:
        ConfigError: an unknown panel, no directory, or an empty label.
        RunError: a directory that is not an evaluation, is incomplete, or does not belong to the panel.
    """
    if panel not in PANELS:
        raise ConfigError(f"unknown panel {panel!r}: use {' or '.join(PANELS)}")
    if not runs:
        raise ConfigError("nothing to compare: name one run directory or more")
    evaluations, notes = collect(runs, PANELS[panel].env)
    comparison = compare(evaluations, panel, PANELS[panel], notes)
    if out is not None:
        out = Path(out)
        write_text_atomic(out / "table.json", to_json(comparison))
        write_text_atomic(out / "table.md", to_markdown(comparison))
        try:
            draw(comparison, out / "table.png")
        except MissingExtraError as error:
            logger.warning("no table.png: %s", error)
    return comparison


def compare_own(
    runs: Sequence[str], *, out: StrPath | None = None, baseline: str = "", threshold: float = 0.5
) -> Summary:
    """Read evaluations of a panel that nothing was published for, and set them beside each other.

    Args:
        runs: as for `compare_table`; each must have one evaluation, and all the same panel.
        out: directory for `table.json`, `table.md` and `curves.png`; None writes nothing.
        baseline: label of the line that differences are taken to; "" for none.
        threshold: of the sample efficiency.

    Raises:
        ConfigError: no directory, or a baseline that labels no line.
        RunError: a directory without a whole evaluation, or one of another panel.
    """
    if not runs:
        raise ConfigError("nothing to compare: name one run directory or more")
    results = [read_result(*split_label(word)) for word in runs]
    labels = dict.fromkeys(result.label for result in results)
    if baseline and baseline not in labels:
        raise ConfigError(f"no line is called {baseline!r}: use {' or '.join(map(repr, labels))}")
    summary = summarise(results, Question(baseline=baseline, threshold=threshold))
    if out is not None:
        write_summary(summary, results, Path(out))
    return summary


def published_panel(runs: Sequence[str]) -> str:
    """The panel of `published.PANELS` that is of the environment of the first run; "" if there is none."""
    env = read(find(split_label(runs[0])[0])[0]).settings.env.name
    return next((name for name, table in PANELS.items() if table.env == env), "")

"""Compare methods side by side, with published rows beside them, never in one column.

`run_comparison` runs what a comparison's TOML file asks for; the other functions read finished evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trailnotes.errors import ConfigError
from trailnotes.storage.files import write_text_atomic
from trailnotes.types import StrPath
from trailnotes_lab.compare.comparison import is_comparison, recompute, run_comparison, write_summary
from trailnotes_lab.compare.evaluations import find_evaluations, load_evaluation, load_evaluations, split_label
from trailnotes_lab.compare.published.page import to_json, to_markdown
from trailnotes_lab.compare.published.protocol import PUBLISHED_PANELS
from trailnotes_lab.compare.published.table import Comparison, build_comparison
from trailnotes_lab.compare.results import read_result
from trailnotes_lab.compare.summary import Summary, SummaryOptions, summarise

__all__ = [
    "Comparison",
    "Summary",
    "compare_evaluations",
    "compare_table",
    "find_published_panel",
    "is_comparison",
    "recompute",
    "run_comparison",
]


def compare_table(runs: Sequence[str], *, panel: str = "scienceworld-18", out: StrPath | None = None) -> Comparison:
    """Read evaluations of a panel and set them beside each other and beside the published figures.

    Args:
        runs: run directories, whose evaluations are those at and below ``RUN/eval``, or evaluations themselves; each
            alone or as ``DIR=LABEL``, which names its column.
        panel: a name in `PUBLISHED_PANELS`.
        out: directory for `table.json` and `table.md`; None writes nothing.

    Raises:
        ConfigError: an unknown panel, or an empty label.
        RunError: a directory that is not an evaluation, is incomplete, or does not belong to the panel.
    """
    if panel not in PUBLISHED_PANELS:
        raise ConfigError(f"unknown panel {panel!r}: use {' or '.join(PUBLISHED_PANELS)}")
    evaluations, notes = load_evaluations(runs, PUBLISHED_PANELS[panel].env)
    comparison = build_comparison(evaluations, panel, PUBLISHED_PANELS[panel], notes)
    if out is not None:
        out = Path(out)
        write_text_atomic(out / "table.json", to_json(comparison))
        write_text_atomic(out / "table.md", to_markdown(comparison))
    return comparison


def compare_evaluations(runs: Sequence[str], *, out: StrPath | None = None, baseline: str = "") -> Summary:
    """Read evaluations of a panel without published figures and set them beside each other.

    Args:
        runs: as for `compare_table`; each must have one evaluation, and all the same panel.
        out: directory for `table.json`, `table.md` and `curves.png`; None writes nothing.
        baseline: label of the line that differences are taken to; "" for none.

    Raises:
        ConfigError: a baseline that labels no line.
        RunError: a directory without a complete evaluation, or one of another panel.
    """
    results = [read_result(*split_label(word)) for word in runs]
    labels = dict.fromkeys(result.label for result in results)
    if baseline and baseline not in labels:
        raise ConfigError(f"no line is called {baseline!r}: use {' or '.join(map(repr, labels))}")
    summary = summarise(results, SummaryOptions(baseline=baseline))
    if out is not None:
        write_summary(summary, Path(out))
    return summary


def find_published_panel(runs: Sequence[str]) -> str:
    """Find the published panel that is of the first run's environment and has a task of the runs; "" if none is."""
    evaluations = [load_evaluation(path) for word in runs for path in find_evaluations(split_label(word)[0])]
    env, tasks = evaluations[0].settings.env.name, {task for each in evaluations for task in each.tasks}
    fitting = (n for n, table in PUBLISHED_PANELS.items() if table.env == env and not tasks.isdisjoint(table.rows))
    return next(fitting, "")

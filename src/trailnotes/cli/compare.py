"""The commands that set results beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.cli.command import Command, argument

if TYPE_CHECKING:
    from argparse import Namespace


def _table(args: Namespace) -> None:
    from trailnotes.compare import compare_table
    from trailnotes.compare.page import print_comparison

    print_comparison(compare_table(args.runs, panel=args.panel, out=args.out))
    print(f"written to {args.out}")


TABLE = Command(
    name="compare table",
    summary="runs beside each other, and published rows beside them",
    about="Read finished evaluations and write one table: a row for each task of the panel, a column for each method, "
    "its seeds pooled, with interval and counts, and the published rows in columns of their own. Plays nothing: first "
    "write an evaluation with `trailnotes eval RUN --out RUN/eval`. A run stands for all evaluations at and below its "
    "`eval`. Runs of one method, told apart by algorithm.name, algorithm.mode_unit and whether notes were shown, share "
    "a column; DIR=LABEL puts a directory into the column of that name. A mean of fewer tasks than the panel has is "
    "never called its average, and footnotes say where a run left the published protocol.",
    example='trailnotes compare table --panel scienceworld-18 runs/grpo-0 runs/grpo-1 "runs/tuned=GRPO, tuned"',
    run=_table,
    arguments=(
        argument("runs", metavar="RUN", nargs="+", help="a run, or what `trailnotes eval --out` wrote; or DIR=LABEL"),
        argument("--panel", metavar="NAME", default="scienceworld-18", help="rows of the table (scienceworld-18)"),
        argument("--out", type=Path, metavar="DIR", default=Path("runs/compare"),
                 help="where table.json, table.md and table.png go (runs/compare)"),
    ),
)  # fmt: skip

COMMANDS = (TABLE,)

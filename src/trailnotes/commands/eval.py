"""`trailnotes eval`: evaluation of a policy on a fixed panel."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from trailnotes.commands.arguments import MODEL_OR_RUN, OTHER_CONFIG, load_command_config
from trailnotes.commands.command import Command, argument


def _run(args: Namespace) -> None:
    from trailnotes.reporting.tables import print_table, print_text
    from trailnotes.reporting.terminal import ProgressBar
    from trailnotes.runs.evaluate import evaluate
    from trailnotes.runs.panels import build_panel_table, describe_intervals, format_markdown_table

    config = load_command_config(args.subject, args.config, args.settings, plays_panel=True)
    with ProgressBar(1.0, "eval") as bar:
        result = evaluate(config, args.subject, memory=args.memory, out=args.out, progress=bar)
    if sys.stdout.isatty():
        print_table("", build_panel_table([result]))
    else:
        print(format_markdown_table([result]).partition("\n\n")[0])
    print_text(describe_intervals([result]))
    if args.out:
        print(f"written to {args.out}")


EVAL = Command(
    name="eval", summary="evaluate a model on a fixed panel of games",
    about="Play the fixed panel of games of the config's [eval], and print the mean with its interval. The model acts "
    "without memory unless you say --memory. With --out, the command keeps each episode, and the same command resumes "
    "an interrupted evaluation.",
    example="trailnotes eval runs/smoke --out runs/smoke/eval --eval.num_tasks 4", run=_run,
    arguments=(
        MODEL_OR_RUN, OTHER_CONFIG,
        argument("--memory", action="store_true", help="act with the run's memory"),
        argument("--out", type=Path, metavar="DIR", help="write table.json, table.md and the episodes here"),
    ),
    settings=True,
)  # fmt: skip

"""`trailnotes adapt`: a method without weight updates, in a run directory that resumes after a stop."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from trailnotes.commands.arguments import ALLOW_CHANGE, MODEL_OR_RUN, OTHER_CONFIG, load_command_config
from trailnotes.commands.command import Command, argument
from trailnotes.config.methods import TIPS_ONLY_METHOD


def _run(args: Namespace) -> None:
    from trailnotes.reporting.tables import print_table, print_text
    from trailnotes.reporting.terminal import ProgressBar
    from trailnotes.runs.adapt import adapt
    from trailnotes.runs.directory import TRAJECTORIES
    from trailnotes.runs.panels import build_panel_table, describe_intervals, read_table

    config = load_command_config(args.subject, args.config, args.settings, plays_panel=True)
    episodes = args.out / TRAJECTORIES
    before = episodes.stat().st_size if episodes.exists() else 0
    with ProgressBar(1.0, "adapt") as bar:
        adapt(
            config, args.subject, out=args.out, method=args.method, trials=args.trials, allow_change=args.allow_change,
            progress=bar,
        )  # fmt: skip
    if before and episodes.stat().st_size == before:
        print("this adaptation had ended already: nothing was played again (a new --out plays it anew)\n")
    rows, figures = read_table(args.out)
    print_table("", build_panel_table(rows, figures))
    print_text(describe_intervals(rows))
    print(f"written to {args.out}")


ADAPT = Command(
    name="adapt", summary="improve at new games over several trials, without training",
    about="Play the panel of the config's [eval] several times by a method that changes no weights: tips after every "
    "episode (empo2-tips), plans after failures (reflexion), and others; docs/algorithms has a page for each. DIR is "
    "a run directory with the figures, the curve, and the last trial as `trailnotes eval` writes it. The same command "
    "resumes an interrupted run, and repeats no finished episode or request.",
    example="trailnotes adapt runs/smoke --method reflexion --out runs/smoke/adapt --trials 2 --eval.num_tasks 2",
    run=_run,
    arguments=(
        MODEL_OR_RUN, OTHER_CONFIG,
        argument("--method", metavar="METHOD",
            help="a method that changes no weights, as docs/algorithms lists them, or module:NAME of your own; "
            f"default: that of the config if it trains nothing, else {TIPS_ONLY_METHOD}"),
        argument("--trials", type=int, metavar="K", help="trials after trial 0 (default: eval.trials, 10)"),
        argument("--out", type=Path, metavar="DIR", required=True, help="run directory, created if missing"),
        ALLOW_CHANGE,
    ),
    settings=True,
)  # fmt: skip

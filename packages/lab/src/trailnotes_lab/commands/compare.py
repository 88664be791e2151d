"""The commands that compare results."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from trailnotes.commands.command import Command, Group, argument
from trailnotes.errors import ConfigError


def _run(args: Namespace) -> None:
    from trailnotes.config.builtin import find_config
    from trailnotes_lab.compare import comparison
    from trailnotes_lab.compare.page import print_summary
    from trailnotes_lab.compare.spec import load_spec

    if args.jobs is not None and args.jobs < 1:
        raise ConfigError(f"--jobs {args.jobs} must be at least 1")
    plan = find_config(args.plan)
    if args.dry_run:
        print(comparison.describe_comparison(plan, args.out, args.jobs), flush=True)
        return
    summary = comparison.run_comparison(plan, out=args.out, at_once=args.jobs)
    print_summary(summary)
    place = comparison.comparison_directory(load_spec(plan), args.out)
    print(f"written to {place}: table.md, table.json, curves.png")
    summary.require_all_results()


def _run_table(args: Namespace) -> None:
    from trailnotes_lab import compare
    from trailnotes_lab.compare.page import print_summary
    from trailnotes_lab.compare.published.page import print_comparison

    is_whole = len(args.runs) == 1 and compare.is_comparison(args.runs[0])
    out = args.out or Path(args.runs[0] if is_whole else "runs/compare")
    if is_whole:
        if args.panel or args.baseline:
            raise ConfigError(f"{args.runs[0]} is a whole comparison, which has its own panel and baseline: leave out "
                              f"--panel and --baseline, or name its runs, {args.runs[0]}/runs/*")  # fmt: skip
        print_summary(compare.recompute(args.runs[0], out))
    elif args.panel and args.baseline:
        raise ConfigError("--panel names published rows, which have no baseline: leave out --panel or --baseline")
    elif panel := args.panel or ("" if args.baseline else compare.find_published_panel(args.runs)):
        print_comparison(compare.compare_table(args.runs, panel=panel, out=out))
    else:
        print_summary(compare.compare_evaluations(args.runs, out=out, baseline=args.baseline))
    print(f"written to {out}")


RUN = Command(
    name="compare run",
    summary="run all methods with all seeds, then write a table and a plot",
    about="Run every method of a comparison with every seed under one budget, and evaluate all of them on one panel "
    "of games. Then write a table of success with intervals, differences and costs, and a plot. Each run is an "
    "ordinary run directory in DIR/runs. The same command resumes interrupted runs and skips finished ones. If a run "
    "fails, the others go on, its cell of the table gives the reason, and the command exits with 2. Ctrl-C asks each "
    "run to stop.",
    example="trailnotes compare run compare/small --jobs 2",
    run=_run,
    arguments=(
        argument("plan", type=Path, metavar="COMPARISON",
                 help="TOML file of panel, methods, budget and seeds, or its name in `config list`"),
        argument("--out", type=Path, metavar="DIR", help="directory of the comparison (default: runs/compare/NAME)"),
        argument("--jobs", type=int, metavar="N", help="number of runs at the same time (default: compare.jobs)"),
        argument("--dry-run", action="store_true", help="check each run and print its commands, then exit"),
    ),
)  # fmt: skip

TABLE = Command(
    name="compare table",
    summary="tabulate finished runs, with published figures beside them",
    about="Read finished evaluations and write one table. The command plays no games: first write an evaluation with "
    "`trailnotes eval RUN --out RUN/eval`. A run stands for all evaluations at and below its `eval`; DIR=LABEL puts a "
    "directory under that name. The directory of one `compare run`, or its unpacked record, gives the whole table of "
    "that comparison again, further panels included. For a panel with published rows there is a row for each task and "
    "a column for each method, its seeds pooled, with interval and counts, and the published rows in columns of their "
    "own; the average appears only if all tasks are there, and remarks name departures from the published protocol. "
    "For any other panel it is the table of `compare run`: a line for each method. algorithm.name, empo2.mode_unit and "
    "whether tips were shown distinguish methods.",
    example='trailnotes compare table --panel scienceworld-18 runs/grpo-0 runs/grpo-1 "runs/tuned=GRPO, tuned"',
    run=_run_table,
    arguments=(
        argument("runs", metavar="RUN", nargs="+",
                 help="a run, or what `trailnotes eval --out` wrote, or DIR=LABEL; or one comparison"),
        argument("--panel", metavar="NAME", help="published rows; by default those that have a task of the runs"),
        argument("--baseline", metavar="LABEL", default="", help="differences are taken to it, without published rows"),
        argument("--out", type=Path, metavar="DIR",
                 help="where table.json, table.md and curves.png go (default: the comparison; of runs: runs/compare)"),
    ),
)  # fmt: skip

COMPARE = Group("compare", "run a comparison of methods, or tabulate runs", (RUN, TABLE))

"""`trailnotes train`: open or resume a run directory, and train."""

from __future__ import annotations

import re
from argparse import Namespace
from functools import partial
from pathlib import Path

from trailnotes.commands.arguments import ALLOW_CHANGE, OPTIONAL_CONFIG, load_command_config
from trailnotes.commands.command import Command, argument


def _run(args: Namespace) -> None:
    from trailnotes.config.builtin import BUILTIN_PREFIX

    chosen = ["--model.path", args.model] if args.model else []
    config = load_command_config(None, args.config, [*chosen, *args.settings])

    from trailnotes.learner.ranks import is_torchrun_worker
    from trailnotes.learner.sharded import run_torchrun_rank
    from trailnotes.runs.dry_run import dry_run
    from trailnotes.runs.train import train

    if is_torchrun_worker():
        run_torchrun_rank(config)
    elif args.dry_run:
        print(dry_run(config, memory=args.memory, show=partial(print, flush=True)), end="")
    else:
        name = args.config.name.removesuffix(".toml") if args.config else re.sub(r"\W+", "-", config.env.name)
        run_dir = args.run_dir or Path("runs") / name.removeprefix(BUILTIN_PREFIX)
        if not args.run_dir and args.config and (args.config.parent / "run.json").is_file():
            run_dir = args.config.parent  # a run's own settings: it goes on
        print(f"last model: {train(config, run_dir, allow_change=args.allow_change, memory=args.memory)}")


TRAIN = Command(
    name="train", summary="train a model in an environment",
    about="Train a model by the method that the config names, and write a run directory. If the directory holds a run "
    "already, the same command resumes it from its last checkpoint. After Ctrl-C, SIGTERM or a closed terminal, "
    "training finishes the iteration, saves, and exits with 130, 143 or 129; a second signal stops it at once. An "
    "environment of your own needs no CONFIG: --env.name module:Class and --model MODEL are enough.",
    example="trailnotes train smoke --run-dir runs/smoke --dry-run", run=_run,
    arguments=(
        OPTIONAL_CONFIG,
        argument("--model", metavar="MODEL", help="a model directory or a hub name; model.path by default"),
        argument("--run-dir", type=Path, metavar="DIR",
            help="run directory, created if missing (default: runs/NAME after CONFIG or the environment; "
            "for the config.toml of a run, that run)"),
        ALLOW_CHANGE,
        argument("--memory", type=Path, metavar="FILE",
            help="start with these tips: a file of `memory export`, a memory file, or a run directory"),
        argument("--dry-run", action="store_true",
            help="run all checks, estimate the memory of host and device, then train one iteration to estimate time "
            "and disk; at a server, estimate tokens and cost"),
    ),
    settings=True,
)  # fmt: skip

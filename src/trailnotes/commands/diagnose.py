"""`trailnotes diagnose`: which link of a run is weak; with --roles, which role training has hurt."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.arguments import OTHER_CONFIG, load_command_config, print_output_path
from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace


def _run(args: Namespace) -> None:
    if args.roles:
        _run_role_exchange(args)
        return
    if any(getattr(args, name) for name in ("config", "out", "start", "trials", "settings")):
        raise ConfigError("without --roles nothing is played, and no setting changes what is read: add --roles")
    from trailnotes.diagnose.checks import diagnose

    print(diagnose(args.run_dir))


def _run_role_exchange(args: Namespace) -> None:
    from trailnotes.diagnose.roles import DEFAULT_TRIALS, exchange_roles
    from trailnotes.reporting.roles import build_table
    from trailnotes.reporting.tables import print_table, print_text
    from trailnotes.runs.console import ProgressBar

    config = load_command_config(str(args.run_dir), args.config, args.settings)
    trials = DEFAULT_TRIALS if args.trials is None else args.trials
    found, place = exchange_roles(
        config, args.run_dir, trials=trials, out=args.out, start=args.start, make_bar=partial(ProgressBar, 1.0)
    )
    print_table(f"{found.metric} on {config.eval.split}, roles exchanged", build_table(found))
    print_text([*found.verdict(), found.explanation()])
    print_output_path(place)


DIAGNOSE = Command(
    name="diagnose",
    summary="find out why a run does not learn",
    about="Follow a run link by link: are its tips right, are they found, are they followed, "
    "do members of a group differ, does the model learn to do without them? With --roles, play the panel of the "
    "config's [eval] with tips, and exchange one role at a time between the start model and the trained one: the "
    "explorer (trial 0, without tips), the author (of all tips), the reader (the trials with tips). It names the role "
    "whose exchange costs most; the same command continues wherever it stopped.",
    example="trailnotes diagnose runs/smoke",
    run=_run,
    arguments=(
        argument("run_dir", type=Path, metavar="RUN", help="a run directory"),
        argument("--roles", action="store_true", help="exchange roles; all that follows belongs to it"),
        argument("--out", type=Path, metavar="DIR", help="where it is kept; RUN/roles/SPLIT by default"),
        OTHER_CONFIG,
        argument("--trials", type=int, metavar="K", help="trials after trial 0; 2 by default"),
        argument("--start", metavar="MODEL", default="", help="the start model; by default model.path of the run"),
    ),
    settings=True,
)

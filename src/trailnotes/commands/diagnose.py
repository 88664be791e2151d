"""`trailnotes diagnose`: the weak link of a run; with --roles, the role that training has hurt."""

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
        raise ConfigError("without --roles nothing is played, and no setting has an effect: add --roles")
    from trailnotes.runs.diagnose.checks import diagnose

    print(diagnose(args.run_dir))


def _run_role_exchange(args: Namespace) -> None:
    from trailnotes.reporting.tables import print_table, print_text
    from trailnotes.runs.console import ProgressBar
    from trailnotes.runs.diagnose.roles import DEFAULT_TRIALS, exchange_roles

    config = load_command_config(str(args.run_dir), args.config, args.settings)
    trials = DEFAULT_TRIALS if args.trials is None else args.trials
    found, place = exchange_roles(
        config, args.run_dir, trials=trials, out=args.out, start=args.start, make_bar=partial(ProgressBar, 1.0)
    )
    table = found.table()
    print_table(f"{found.metric} on {config.eval.split}, roles exchanged", table, table[0][2:-2])  # trials in between
    print_text([*found.verdict(), found.explanation()])
    print_output_path(place)


DIAGNOSE = Command(
    name="diagnose", summary="find out why a run does not learn",
    about="Check one condition of learning after another and name the first that fails: are tips usable, found and "
    "followed, do members of a group differ, does the model learn to act without tips? With --roles, play the panel "
    "of the config's [eval] with tips, and exchange one role at a time between the initial and the trained model: the "
    "explorer (trial 0, without tips), the author (of all tips), the reader (the trials with tips). The command names "
    "the role whose exchange costs most. The same command resumes an interrupted exchange.",
    example="trailnotes diagnose runs/smoke", run=_run,
    arguments=(
        argument("run_dir", type=Path, metavar="RUN", help="a run directory"),
        argument("--roles", action="store_true", help="exchange roles; the options below belong to it"),
        argument("--out", type=Path, metavar="DIR", help="directory of the exchange (default: RUN/roles/SPLIT)"),
        OTHER_CONFIG,
        argument("--trials", type=int, metavar="K", help="trials after trial 0 (2)"),
        argument("--start", metavar="MODEL", default="", help="the initial model (default: model.path of the run)"),
    ),
    settings=True,
)  # fmt: skip

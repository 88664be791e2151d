"""`trailnotes diagnose`: the weak link of a run."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from trailnotes.commands.command import Command, argument


def _run(args: Namespace) -> None:
    from trailnotes.runs.diagnose import diagnose

    print(diagnose(args.run_dir))


DIAGNOSE = Command(
    name="diagnose", summary="find out why a run does not learn",
    about="Check one condition of learning after another and name the first that fails: are tips usable, found and "
    "followed, do members of a group differ, does the model learn to act without tips?",
    example="trailnotes diagnose runs/smoke", run=_run,
    arguments=(argument("run_dir", type=Path, metavar="RUN", help="a run directory"),),
)  # fmt: skip

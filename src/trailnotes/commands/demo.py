"""`trailnotes demo`: EMPO2 against GRPO, end to end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument

if TYPE_CHECKING:
    from argparse import Namespace


def _run(args: Namespace) -> None:
    from trailnotes.commands.demo_run import demo

    demo(args.out)


DEMO = Command(
    name="demo",
    summary="EMPO2 against GRPO, end to end, in half an hour",
    about="Train the same small model by both methods on games where tips matter, then print the table, draw the "
    "curves, and show one episode before and after. May be interrupted, and continues where it was.",
    example="trailnotes demo",
    run=_run,
    arguments=(
        argument("--out", type=Path, metavar="DIR", default=Path("runs/demo"), help="where it all goes (runs/demo)"),
    ),
)

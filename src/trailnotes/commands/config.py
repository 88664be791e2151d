"""The command that shows settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument

if TYPE_CHECKING:
    from argparse import Namespace


def _show(args: Namespace) -> None:
    from trailnotes.config.toml import render_config, resolve_config

    resolved = resolve_config(args.config, args.settings)
    print(render_config(resolved.config, resolved.origins), end="")


COMMANDS = (
    Command(
        name="config show", summary="print all settings with their values and meaning",
        about="Print every setting with its value, its meaning, its source, the values that it may have, and where "
        "its own was set. The output is a config file itself.",
        example="trailnotes config show --preset paper-scienceworld --optim.lr 1e-5", run=_show,
        arguments=(
            argument("config", type=Path, metavar="CONFIG", nargs="?", help="a TOML file; without one, the defaults"),
        ),
        settings=True,
    ),
)  # fmt: skip

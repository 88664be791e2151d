"""The commands that show settings, and their schema."""

from __future__ import annotations

import itertools
import re
import sys
import textwrap
from argparse import Namespace
from pathlib import Path

from trailnotes.commands.command import Command, argument


def _show(args: Namespace) -> None:
    from trailnotes.config.toml import render_config, resolve_config

    resolved = resolve_config(args.config, args.settings)
    print(render_config(resolved.config, resolved.origins), end="")


def _print_schema(_args: Namespace) -> None:
    from trailnotes.config.json_schema import render_json_schema

    print(render_json_schema(), end="")


START = """\
Which is for me?
  See it work, a minute on one core         trailnotes demo --small
  My model, 0.5 to 7 billion, on one GPU    trailnotes train own-model --model.path NAME --run-dir runs/mine
  A model behind an API, no training        trailnotes adapt openai:NAME --env.name ENV --out runs/tips
  My environment                            trailnotes train own-model --env.name module:Class ...
  One environment, tried in seconds         trailnotes rollout ENV/smoke
  Two methods compared, a minute or two     trailnotes compare run compare/small
"""
GROUPS = {
    "": "To begin with, and for a model of your own",
    "compare": "Comparisons of methods (trailnotes compare run)",
    "compare/fair": "ScienceWorld with one model a task (docs/results/scienceworld-fair.md)",
    "compare/paper": "Comparisons of the EMPO² paper at 7B (docs/reproduce.md)",
    "paper": "The EMPO² paper's training runs, on GPUs, none of them made here (docs/reproduce.md)",
    "puzzles": "Puzzles",
    "qwen": "Qwen2.5-Coder-0.5B, on two cores of a CPU (make real)",
    "scienceworld": "The environment scienceworld. Those marked paper train Qwen2.5-7B: by estimate on eight GPUs of "
    "80 GB, or on one\nwith 29 GiB by --preset paper-scienceworld-lora. None of the eighteen has been run.",
    "smollm2": "SmolLM2-135M",
}
"""Folder -> heading; others are environments."""


def _list(args: Namespace) -> None:
    from trailnotes.config.builtin import list_builtin_configs
    from trailnotes.reporting.tables import get_console_width

    width = get_console_width() if sys.stdout.isatty() else sys.maxsize
    print(START)
    configs = sorted(list_builtin_configs().items(), key=lambda item: (item[0].rpartition("/")[0], item[0]))
    for folder, group in itertools.groupby(configs, key=lambda item: item[0].rpartition("/")[0]):
        heading = GROUPS.get(folder, f"The environment {folder}")
        print(f"\n{heading}" if folder else heading)
        files = dict(group)
        column = max(map(len, files)) + 2
        for name, file in files.items():
            lines = file.read_text(encoding="utf-8").splitlines()
            comment = itertools.takewhile(lambda line: line.startswith("# "), lines)
            about = re.split(r"[.:](?: |$)", " ".join(line.removeprefix("# ") for line in comment))[0]
            text = str(file) if args.paths else textwrap.shorten(about, max(width - column - 3, 40), placeholder=" ...")
            print(f"  {name:<{column}}{text}")


COMMANDS = (
    Command(
        name="config list", summary="list the configs that come with the package",
        about="List the configs of the package by the names that every command takes where it wants a CONFIG or a "
        "COMPARISON (`trailnotes train demo`; `builtin:demo`, where a file is called demo). --paths prints their "
        "files, to copy one and edit it.",
        example="trailnotes config list", run=_list,
        arguments=(argument("--paths", action="store_true", help="print their paths instead of their descriptions"),),
    ),
    Command(
        name="config show", summary="print all settings with their values and meaning",
        about="Print every setting with its value, its meaning, its source, the values that it may have, and where "
        "its own was set. The output is a config file itself.",
        example="trailnotes config show --preset paper-scienceworld --optim.lr 1e-5", run=_show,
        arguments=(
            argument("config", type=Path, metavar="CONFIG", nargs="?",
                     help="a TOML file or a name of `config list`; without one, the defaults"),
        ),
        settings=True,
    ),
    Command(
        name="config schema", summary="print the JSON Schema of a config file",
        about="Print the JSON Schema by which editors complete and check a config; > FILE keeps it. Editors with taplo "
        "(VS Code: Even Better TOML) read it where the first line of the config is #:schema ./FILE.",
        example="trailnotes config schema", run=_print_schema,
    ),
)  # fmt: skip

"""The command `trailnotes completion`: a script by which a shell completes command lines."""

from __future__ import annotations

from argparse import Namespace

from trailnotes.commands.command import Command, argument, build_parser

DIRECTORIES = ("DIR", "FOLDER", "MODEL_OR_RUN", "RUN", "CATALOGUE", "LIBRARY")  # metavars of values that are completed
FILES = ("CONFIG", "COMPARISON", "FILE", "PATH", "SOURCE")


def _run(args: Namespace) -> None:
    import shtab

    from trailnotes.config.schema import full_config_type
    from trailnotes.config.toml import collect_fields

    fields = collect_fields(full_config_type()).items()
    settings = [argument(f"--{key}", help=field.description, metavar="VALUE") for key, field in fields]
    complete = dict.fromkeys(DIRECTORIES, shtab.DIRECTORY) | dict.fromkeys(FILES, shtab.FILE)
    print(shtab.complete(build_parser(args.table, settings, complete), args.shell))


COMPLETION = Command(
    name="completion", summary="print a script by which your shell completes commands, options and settings",
    about="Print a script that completes commands, options, files and --section.key settings. For bash, add this line "
    "to ~/.bashrc: source <(trailnotes completion bash). For zsh, write the script to a file _trailnotes in a folder "
    "of $fpath. Print the script again after you install a package with commands or settings.",
    example="trailnotes completion bash", run=_run,
    arguments=(argument("shell", choices=("bash", "zsh", "tcsh"), help="bash, zsh or tcsh"),),
)  # fmt: skip

"""The command `trailnotes completion`: a script by which a shell completes command lines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from trailnotes.commands.command import Argument, Command, Group, argument, build_parser

if TYPE_CHECKING:
    from argparse import Namespace

DIRECTORIES = ("DIR", "FOLDER", "MODEL_OR_RUN", "RUN", "CATALOGUE", "LIBRARY")  # metavars of values that are completed
FILES = ("FILE", "PATH", "SOURCE")


def _run(args: Namespace) -> None:
    import shtab

    from trailnotes.config.builtin import list_builtin_configs

    names = list_builtin_configs()
    comparisons = [name for name in names if name.startswith("compare/")]
    settings = _list_settings()
    table = [
        replace(entry, commands=tuple(_add_settings(command, settings) for command in entry.commands))
        if isinstance(entry, Group)
        else _add_settings(entry, settings)
        for entry in args.table
    ]
    complete = dict.fromkeys(DIRECTORIES, shtab.DIRECTORY) | dict.fromkeys(FILES, shtab.FILE)
    complete["COMPARISON"] = _complete_configs("comparison", comparisons)
    complete["CONFIG"] = _complete_configs("config", [name for name in names if name not in comparisons])
    print(shtab.complete(build_parser(table, complete), args.shell))


def _complete_configs(kind: str, names: list[str]) -> dict[str, Any]:
    """Complete names of the package's configs, and files; `_file` tells shtab's bash to treat a folder as one."""
    function, words = f"_trailnotes_{kind}_file", " ".join(names)
    files = 'compgen -f -X \'!*.toml\' -- "$1"; compgen -d -- "$1"'
    preamble = {
        "bash": f'{function}() {{ compgen -W "{words}" -- "$1"; {files}; }}',
        "zsh": f"{function}() {{ _alternative 'names:config:({words})' 'files:file:_files' }}",
    }
    return {"bash": function, "zsh": function, "tcsh": "f", "preamble": preamble}


def _add_settings(command: Command, settings: tuple[Argument, ...]) -> Command:
    return replace(command, arguments=(*command.arguments, *settings)) if command.settings else command


def _list_settings() -> tuple[Argument, ...]:
    """List all settings as options, with their values where these are few."""
    from importlib.metadata import entry_points

    from trailnotes.config.methods import list_names
    from trailnotes.config.presets import PRESETS
    from trailnotes.config.schema import full_config_type
    from trailnotes.config.toml import collect_fields
    from trailnotes.envs import ENTRY_POINTS, ENVS

    envs = [*ENVS, *(point.name for point in entry_points(group=ENTRY_POINTS))]
    values: dict[str, Any] = {"preset": PRESETS, "algorithm.name": list_names(), "env.name": envs}
    settings = []
    for key, field in collect_fields(full_config_type()).items():
        kind: Any = field.annotation
        few = ("true", "false") if kind is bool else get_args(kind) if get_origin(kind) is Literal else ()
        choices = tuple(values.get(key, few)) or None
        settings.append(argument(f"--{key}", help=field.description or "", metavar="VALUE", choices=choices))
    return tuple(settings)


COMPLETION = Command(
    name="completion", summary="print a script by which your shell completes commands, options and settings",
    about="Print a script that completes commands, options, configs, files and --section.key settings. For bash, add "
    "this line to ~/.bashrc: source <(trailnotes completion bash). For zsh, write the script to a file _trailnotes in "
    "a folder of $fpath. Commands and environments of packages that you install later need the script anew.",
    example="trailnotes completion bash", run=_run,
    arguments=(argument("shell", choices=("bash", "zsh", "tcsh"), help="bash, zsh or tcsh"),),
)  # fmt: skip

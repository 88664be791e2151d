"""Definition of a command: its name, its arguments, its help and its function.

The parsers, their ``--help`` and the page of the site all come from the same table of commands. Importing this
module, as every start does, loads argparse and little else.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

from trailnotes.errors import format_install_command, format_sibling_command

ABOUT = "Train LLM agents that explore, write tips for later attempts, and learn to act well without them."
SETTINGS = ("--section.key VALUE overrides any setting of the file (VALUE is TOML; plain words need no quotes). "
            "`trailnotes config show` lists and explains all settings.")  # fmt: skip
EPILOG = "`trailnotes COMMAND --help` explains a command and shows an example."
WIDTH = 100
COMMANDS_ELSEWHERE = {
    "compare": "trailnotes-lab", "critic": "trailnotes-lab", "view": "trailnotes-lab",
    "webshop": "trailnotes-worlds", "wikihow": "trailnotes-worlds",
}  # fmt: skip
"""Commands of our other distributions, for those who lack them."""
_SETTING = re.compile(r"--(preset|[A-Za-z_]\w*\.[^=]*)(=.*)?", re.DOTALL)


class Argument(NamedTuple):
    """Argument of a command: its names and keywords for argparse."""

    names: tuple[str, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Command:
    """Command of the command line; `run` gets its parsed arguments and `settings`."""

    name: str  # words after "trailnotes", for example "memory list"
    summary: str  # one line
    about: str  # what it does, for someone who has never done it
    example: str  # a command line that runs
    run: Callable[[argparse.Namespace], None]
    arguments: tuple[Argument, ...] = ()
    settings: bool = False  # whether --section.key VALUE may follow


@dataclass(frozen=True)
class Group:
    """Group of commands that share their first word."""

    name: str
    summary: str
    commands: tuple[Command, ...]


CommandTable = Sequence[Command | Group]


def argument(*names: str, **options: Any) -> Argument:
    """Build an `Argument` from the arguments of `add_argument`."""
    return Argument(names, options)


def list_commands(table: CommandTable) -> list[Command]:
    """List all commands of a table, those of groups among them."""
    return [command for entry in table for command in (entry.commands if isinstance(entry, Group) else (entry,))]


def build_parser(
    table: CommandTable, settings: Sequence[Argument] = (), complete: Mapping[str, Any] | None = None
) -> argparse.ArgumentParser:
    """Build the parser of all commands, which sets the attribute `command`.

    Args:
        table: all commands.
        settings: further arguments of commands that take settings.
        complete: what shtab is to complete, by the metavar of an argument.
    """
    parser = _make_parser(argparse.ArgumentParser, prog="trailnotes", description=ABOUT, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"trailnotes {version('trailnotes')}")
    parser.set_defaults(command=None, unfinished=parser)
    top = parser.add_subparsers(title="commands", metavar="COMMAND")
    added = []
    for entry in table:
        if isinstance(entry, Command):
            added.append((entry, add_command(top, entry)))
            continue
        about = f"{entry.summary[0].upper()}{entry.summary[1:]}."
        group = _make_parser(top.add_parser, entry.name, help=entry.summary, description=about)
        group.set_defaults(command=None, unfinished=group)
        inner = group.add_subparsers(title="commands", metavar="COMMAND")
        added += [(command, add_command(inner, command)) for command in entry.commands]
    for command, own in added:
        for item in settings if command.settings else ():
            own.add_argument(*item.names, **item.options)
        for action in own._actions:  # noqa: SLF001 (argparse names no other way)
            if hint := (complete or {}).get(str(action.metavar)):
                vars(action)["complete"] = hint  # where shtab looks
    return parser


def parse_command_line(table: CommandTable, words: Sequence[str]) -> argparse.Namespace:
    """Parse one command line into its `command`, its arguments, its `settings`, and the `table` that it is from.

    Exits with code 2 on a command line that cannot be parsed; without a command, it prints the help.
    """
    rest: list[str] = []
    settings: list[str] = []
    pending = list(words)
    while pending:
        word = pending.pop(0)
        match = _SETTING.fullmatch(word)
        (settings if match else rest).append(word)
        if match and match[2] is None and pending and not pending[0].startswith("--"):
            settings.append(pending.pop(0))
    parser = build_parser(table)
    names = [entry.name for entry in table]
    if rest and not rest[0].startswith("-") and rest[0] not in names:
        if home := COMMANDS_ELSEWHERE.get(rest[0]):
            parser.error(f"{rest[0]} is a command of the package {home}: {format_sibling_command(home)}"
                         + (f" && {format_install_command('web')}" if rest[0] == "view" else ""))  # fmt: skip
        near = difflib.get_close_matches(rest[0], names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        parser.error(f"there is no command {rest[0]!r}; {hint}")
    args, unknown = parser.parse_known_args(rest)
    if unknown:  # the command's own parser prints its usage
        args.unfinished.error(f"unrecognized arguments: {' '.join(unknown)}{_suggest(unknown[0], args.command)}")
    if args.command is None:
        args.unfinished.print_help(sys.stderr)
        parser.exit(2)
    if settings and not args.command.settings:
        parser.error(f"trailnotes {args.command.name} takes no settings: leave out {settings[0]}")
    args.settings, args.table = settings, table
    return args


def _suggest(word: str, command: Command | None) -> str:
    """Suggest the command's options and settings nearest to an unknown word; '' where none is."""
    if command is None:
        return ""
    name = word.lstrip("-").partition("=")[0]
    options = [option for item in command.arguments for option in item.names if option.startswith("--")]
    near = difflib.get_close_matches(f"--{name.replace('_', '-')}", options, 1)
    if not near and command.settings:
        from trailnotes.config.schema import full_config_type
        from trailnotes.config.toml import collect_fields

        keys = collect_fields(full_config_type())
        near = [
            f"--{key}" for key in keys if name.replace("-", "_") in (key.rpartition(".")[2], key.removesuffix(".name"))
        ]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def add_command(parsers: Any, command: Command) -> argparse.ArgumentParser:
    about = textwrap.fill(f"{command.about} {SETTINGS}" if command.settings else command.about, WIDTH)
    word, epilog = command.name.rpartition(" ")[2], f"example:\n  {command.example}"
    parser = _make_parser(parsers.add_parser, word, help=command.summary, description=about, epilog=epilog)
    for item in command.arguments:
        parser.add_argument(*item.names, **item.options)
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    parser.set_defaults(command=command, unfinished=parser)
    return parser


def _make_parser(make: Callable[..., argparse.ArgumentParser], *names: str, **options: Any) -> argparse.ArgumentParser:
    return make(
        *names,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=WIDTH),
        **options,
    )

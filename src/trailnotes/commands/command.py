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
from typing import Any

from trailnotes.errors import format_sibling_command

ABOUT = "Train LLM agents that explore, write tips for later attempts, and learn to act well without them."
SETTINGS = ("--section.key VALUE overrides any setting of the file (VALUE is TOML; plain words need no quotes). "
            "`trailnotes config show` lists and explains all settings.")  # fmt: skip
EPILOG = "`trailnotes COMMAND --help` explains a command and shows an example."
WIDTH = 100
NOTHING: Mapping[str, Any] = {}
COMMANDS_ELSEWHERE = {
    "compare": "trailnotes-lab", "view": "trailnotes-lab",
    "webshop": "trailnotes-worlds", "wikihow": "trailnotes-worlds",
}  # fmt: skip
"""Commands of our other distributions, for those who lack them."""
_SETTING = re.compile(r"--(preset|[A-Za-z_]\w*\.[^=]*)(=.*)?", re.DOTALL)


@dataclass(frozen=True)
class Argument:
    """Argument of a command: its names and keywords for argparse."""

    names: tuple[str, ...]
    help: str
    options: dict[str, Any]

    @property
    def word(self) -> str:
        """Return the argument as the user types it, with its value."""
        name, metavar = self.names[0], self.options.get("metavar", "")
        if not name.startswith("-"):
            return str(metavar or name)
        return f"{name} {metavar}".strip()

    @property
    def usage(self) -> str:
        """Return the argument as a usage line shows it."""
        many = {"+": " ...", "*": " ..."}.get(self.options.get("nargs", ""), "")
        positional = not self.names[0].startswith("-")
        needed = self.options.get("nargs") not in {"*", "?"} if positional else self.options.get("required")
        return f"{self.word}{many}" if needed else f"[{self.word}{many}]"


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


def argument(*names: str, help: str, **options: Any) -> Argument:  # noqa: A002 (argparse's word)
    """Build an `Argument` from the arguments of `add_argument`."""
    return Argument(names, help, options)


class _VersionAction(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"trailnotes {version('trailnotes')}")
        parser.exit()


def build_parser(table: CommandTable, complete: Mapping[str, Any] = NOTHING) -> argparse.ArgumentParser:
    """Build the parser of all commands, which sets the attribute `command`.

    Args:
        table: all commands.
        complete: what shtab is to complete, by the metavar of an argument.
    """
    parser = _make_parser(argparse.ArgumentParser, prog="trailnotes", description=ABOUT, epilog=EPILOG)
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="show program's version number and exit")
    parser.set_defaults(command=None, unfinished=parser)
    top = parser.add_subparsers(title="commands", metavar="COMMAND")
    for entry in table:
        if isinstance(entry, Command):
            _add_command(top, entry, complete)
            continue
        about = f"{entry.summary[0].upper()}{entry.summary[1:]}."
        group = _make_parser(top.add_parser, entry.name, help=entry.summary, description=about)
        group.set_defaults(command=None, unfinished=group)
        inner = group.add_subparsers(title="commands", metavar="COMMAND")
        for command in entry.commands:
            _add_command(inner, command, complete)
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
        found = _SETTING.fullmatch(word)
        (settings if found else rest).append(word)
        if found and found[2] is None and pending:
            settings.append(pending.pop(0))
    parser = build_parser(table)
    names = [entry.name for entry in table]
    if rest and not rest[0].startswith("-") and rest[0] not in names:
        if home := COMMANDS_ELSEWHERE.get(rest[0]):
            parser.error(f"{rest[0]} is a command of the package {home}: {format_sibling_command(home)}")
        near = difflib.get_close_matches(rest[0], names, 1)
        more = f"(there are {', '.join(names)}; trailnotes-lab and trailnotes-worlds bring more)"
        parser.error(f"there is no command {rest[0]!r}" + (f"; did you mean {near[0]}?" if near else f" {more}"))
    args, unknown = parser.parse_known_args(rest)
    if unknown:  # the command's own parser prints its usage
        args.unfinished.error(
            f"unrecognized arguments: {' '.join(unknown)}{_suggest_options(unknown[0], args.command)}"
        )
    if args.command is None:
        args.unfinished.print_help(sys.stderr)
        parser.exit(2)
    if settings and not args.command.settings:
        parser.error(f"trailnotes {args.command.name} takes no settings: leave out {settings[0]}")
    args.settings, args.table = settings, table
    return args


def _suggest_options(word: str, command: Command | None) -> str:
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
        near = [f"--{key}" for key in keys if key.rpartition(".")[2] == name.replace("-", "_")]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def render_cli_page(table: CommandTable) -> str:
    """Render the page of the site that documents the table of commands."""
    commands = [c for entry in table for c in (entry.commands if isinstance(entry, Group) else (entry,))]
    index = "\n".join(
        f"- [`trailnotes {c.name}`](#trailnotes-{c.name.replace(' ', '-')}): {c.summary}" for c in commands
    )
    intro = (
        f"{ABOUT} {SETTINGS}\n\n"
        "A command exits with 0 on success, and with 2 and one line on standard error if its input is wrong. If a "
        "signal stops it, it exits with 128 plus the signal's number: 130 after Ctrl-C, 143 after SIGTERM, 129 after "
        "SIGHUP, which a closing terminal sends (not under nohup). `--debug` prints the traceback of an error."
    )
    return "\n\n".join(["# The command line", intro, index, *map(_render_section, commands)]) + "\n"


def _add_command(parsers: Any, command: Command, complete: Mapping[str, Any]) -> None:
    epilog = f"example:\n  {command.example}"
    about = textwrap.fill(f"{command.about} {SETTINGS}" if command.settings else command.about, WIDTH)
    word = command.name.rpartition(" ")[2]
    parser = _make_parser(parsers.add_parser, word, help=command.summary, description=about, epilog=epilog)
    for item in command.arguments:
        action: Any = parser.add_argument(*item.names, help=item.help, **item.options)
        if (metavar := item.options.get("metavar", "")) in complete:
            action.complete = complete[metavar]
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    parser.set_defaults(command=command, unfinished=parser)


def _make_parser(make: Callable[..., argparse.ArgumentParser], *names: str, **options: Any) -> argparse.ArgumentParser:
    return make(
        *names,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=WIDTH),
        **options,
    )


def _render_section(command: Command) -> str:
    usage = " ".join(["trailnotes", command.name, *(item.usage for item in command.arguments)])
    rows = [f"| `{item.word}` | {item.help} |" for item in command.arguments]
    table = ["| argument | meaning |\n|---|---|\n" + "\n".join(rows)] if rows else []
    settings = " [--section.key VALUE ...]" if command.settings else ""
    parts = [
        f"## `trailnotes {command.name}`",
        command.about,
        f"```\n{usage}{settings}\n```",
        *table,
        f"Example:\n\n```\n{command.example}\n```",
    ]
    return "\n\n".join(parts)

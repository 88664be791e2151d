"""The command line: ``trailnotes COMMAND``."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import logging
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points

from trailnotes.commands import config, engine, envs, memory, rehearsal
from trailnotes.commands.adapt import ADAPT
from trailnotes.commands.command import Command, CommandTable, Group, parse_command_line
from trailnotes.commands.completion import COMPLETION
from trailnotes.commands.demo import DEMO
from trailnotes.commands.diagnose import DIAGNOSE
from trailnotes.commands.doctor import DOCTOR
from trailnotes.commands.eval import EVAL
from trailnotes.commands.export import EXPORT
from trailnotes.commands.gateway import GATEWAY
from trailnotes.commands.init import INIT
from trailnotes.commands.models import MODELS
from trailnotes.commands.rollout import ROLLOUT
from trailnotes.commands.train import TRAIN
from trailnotes.commands.warmstart import WARMSTART
from trailnotes.errors import Interrupted, TrailnotesError, format_install_command, list_extras
from trailnotes.reporting.terminal import PrintableStream, escape_unprintable, escape_unprintable_lines
from trailnotes.runs.signals import interrupt_on_signals

__all__ = ["TABLE", "main"]

CORE: CommandTable = (
    DEMO,
    INIT,
    TRAIN,
    EVAL,
    ADAPT,
    ROLLOUT,
    GATEWAY,
    WARMSTART,
    EXPORT,
    DIAGNOSE,
    Group("rehearsal", "record or script conversations that anchor a training", rehearsal.COMMANDS),
    Group("memory", "read, edit, share and serve the tips of a run", memory.COMMANDS),
    Group("config", "show all settings, or their schema", config.COMMANDS),
    Group("envs", "list and check environments", envs.COMMANDS),
    Group("engine", "serve vLLM engines to runs on other machines", engine.COMMANDS),
    MODELS,
    DOCTOR,
    COMPLETION,
)
ENTRY_POINTS = "trailnotes.commands"  # group under which other packages offer a `Command`, or a `Group` of them


def with_offered(core: CommandTable) -> CommandTable:
    """Return `core` and the commands that installed packages offer; a group of a known name grows.

    A package whose command cannot be loaded costs that command alone, and one line on standard error.
    """
    table = {entry.name: entry for entry in core}
    for point in sorted(entry_points(group=ENTRY_POINTS)):
        try:
            entry: Command | Group = point.load()
        except Exception as error:  # noqa: BLE001 - the package of another author may fail in any way
            print(f"trailnotes: the command {point.name} cannot be loaded from {point.value}: {error}", file=sys.stderr)
            continue
        known = table.get(entry.name)
        if isinstance(entry, Group) and isinstance(known, Group):
            entry = Group(known.name, entry.summary, (*known.commands, *entry.commands))
        table[entry.name] = entry
    return tuple(table.values())


TABLE = with_offered(CORE)

_SURROGATE = re.compile("[\ud800-\udfff]")  # by which Python keeps a byte that it cannot decode
QUIET_ENV = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # those of transformers, too
    "HF_HUB_VERBOSITY": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for bad input, 128 + the signal's number when interrupted.

    argparse itself exits with 2 for a command line that it cannot read.
    """
    words = sys.argv[1:] if argv is None else argv
    if odd := [word for word in words if _SURROGATE.search(word)]:
        # The tokenizers library, for one, cannot write there, and that would end a run at its first checkpoint.
        print(f"trailnotes: {odd[0]!r} is not UTF-8, or the locale is not: rename it, or export LC_ALL=C.UTF-8",
              file=sys.stderr)  # fmt: skip
        return 2
    args = parse_command_line(TABLE, words)
    if argv is None:
        _prepare_process(args.debug)
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if args.debug else logging.WARNING, handlers=[handler])
    try:
        with interrupt_on_signals(), contextlib.redirect_stdout(PrintableStream(sys.stdout)):
            args.command.run(args)
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (TrailnotesError, ModuleNotFoundError, KeyboardInterrupt, OSError, UnicodeEncodeError) as error:
        text = _explain_error(error)
        with contextlib.suppress(OSError):  # the terminal may be what has gone
            if args.debug:
                print(escape_unprintable_lines(traceback.format_exc()), file=sys.stderr)
            print(f"trailnotes: {escape_unprintable(' '.join(text.split()))}", file=sys.stderr)
        if not isinstance(error, KeyboardInterrupt):
            return 2
        return 128 + (error.number if isinstance(error, Interrupted) else signal.SIGINT)
    return 0


def _explain_error(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, TrailnotesError):
        package = (error.name or "").partition(".")[0]
        extras = [extra for extra, (_, modules) in list_extras().items() if package in modules]
        if not extras:
            raise error
        return f"this needs the package {package}: {format_install_command(extras[-1])}"
    if isinstance(error, OSError):
        return f"{error.filename or 'system error'}: {error.strerror or error}"
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:500]!r} is not UTF-8: rename it"
    return str(error) or "interrupted"


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escape_unprintable_lines(super().format(record))


def relax_gc() -> None:
    """Relax garbage collection: torch and transformers load a million objects."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 100)
    atexit.register(gc.freeze)


def _prepare_process(debug: bool) -> None:
    for stream in (sys.stdout, sys.stderr):  # a tip may be in any script, and a terminal's encoding may lack it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    relax_gc()
    if debug:
        return
    for name, value in QUIET_ENV.items():  # libraries that are not loaded yet
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")

"""`trailnotes view`: serve the window on a port of this machine, or export it as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError, MissingExtraError, find_missing_module, format_install_command

if TYPE_CHECKING:
    from argparse import Namespace

MAX_EXPORTED = 500  # episodes and tips of a run that are written down


def _run(args: Namespace) -> None:
    if package := find_missing_module("web"):
        raise MissingExtraError(f"the window needs {package}: {format_install_command('web')}")
    if not args.directory.is_dir():
        raise ConfigError(f"{args.directory} is no directory: name one that holds runs, or a run")
    if args.export is None:
        _serve(args)
        return
    from trailnotes_lab.view.export import export_pages

    if args.write:
        raise ConfigError("files cannot change tips: leave out --write, or --export")
    if args.limit < 1:
        raise ConfigError(f"--limit {args.limit} leaves nothing to write: give 1 or more")
    print(f"{export_pages(args.directory, args.export, args.limit)} pages written: open {args.export / 'index.html'}")


def _serve(args: Namespace) -> None:
    import secrets
    from contextlib import closing

    from trailnotes.web.serving import format_url, open_listener, serve
    from trailnotes_lab.view.app import make_app
    from trailnotes_lab.view.window import Window

    token = secrets.token_urlsafe(18)
    with (
        open_listener("127.0.0.1", args.port) as door,
        closing(Window(args.directory, write=args.write, embedder=args.embedder)) as window,
    ):
        address = f"{format_url(door)}/?token={token}"
        serve(make_app(window, token), door, lambda: print(f"ready: {address}", flush=True))


VIEW = Command(
    name="view",
    summary="view runs, episodes and tips in a browser",
    about="Serve pages over all runs and comparisons at and below a directory, live while a run goes on: curves laid "
    "over each other, episodes with both contexts beside each other, tips with their authors and readers, the chain of "
    "`diagnose`. The server answers only this machine, and only with the token in the address that it prints. Pages "
    "change nothing; with --write they can edit, switch and delete tips, by the checks of `memory`. With --export, "
    "write the same pages as files that need no server. Needs the extra `web`.",
    example="trailnotes view runs",
    run=_run,
    arguments=(
        argument("directory", type=Path, metavar="DIR", help="a run directory, or one with runs below it"),
        argument("--port", type=int, metavar="N", default=8765, help="where to serve (8765); 0 takes a free one"),
        argument("--write", action="store_true", help="let tips be edited, switched and deleted"),
        argument(
            "--embedder", metavar="NAME", default="",
            help="what searches tips, where runs use neither hashing nor minilm, as `memory search` takes it",
        ),
        argument("--export", type=Path, metavar="FOLDER", help="write files there, a new folder, instead of serving"),
        argument(
            "--limit", type=int, metavar="N", default=MAX_EXPORTED,
            help=f"of each run, the newest N episodes and tips are exported ({MAX_EXPORTED})",
        ),
    ),
)  # fmt: skip

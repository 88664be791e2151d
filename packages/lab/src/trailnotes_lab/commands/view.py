"""`trailnotes view`: serve pages over runs on a port of this machine."""

from __future__ import annotations

import secrets
from argparse import Namespace
from pathlib import Path

from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError, require_extra


def _run(args: Namespace) -> None:
    require_extra("web", "trailnotes view")
    if not args.directory.is_dir():
        raise ConfigError(f"{args.directory} is no directory: name one that holds runs, or a run")
    from trailnotes.web.serving import format_url, open_listener, serve
    from trailnotes_lab.view.app import make_app
    from trailnotes_lab.view.window import Window

    token = secrets.token_urlsafe(18)
    with open_listener("127.0.0.1", args.port) as listener:
        address = f"{format_url(listener)}/?token={token}"
        serve(make_app(Window(args.directory), token), listener, lambda: print(f"ready: {address}", flush=True))


VIEW = Command(
    name="view",
    summary="view runs, episodes and tips in a browser",
    about="Serve pages over all runs and comparisons at and below a directory, live while a run goes on: curves laid "
    "over each other, episodes with both contexts beside each other, tips with their authors and readers. The server "
    "answers only this machine, and only with the token in the address that it prints. Pages change nothing. Needs the "
    "extra `web`.",
    example="trailnotes view runs",
    run=_run,
    arguments=(
        argument("directory", type=Path, metavar="DIR", help="a run directory, or one with runs below it"),
        argument("--port", type=int, metavar="N", default=8765, help="where to serve (8765); 0 takes a free one"),
    ),
)

"""The commands about environments."""

from __future__ import annotations

import contextlib
import functools
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING

from trailnotes.commands.command import WIDTH, Command, argument
from trailnotes.errors import ConfigError, Interrupted, MissingExtraError, how_to_install, missing_package

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from trailnotes.types import Task

INDENT = 21  # columns before what is said of an environment
LOOPBACK = "127.0.0.1"
ALL = "all"  # in place of a split
PORT = 8000  # where clients of OpenEnv look first
OPEN = (
    "would let other machines play, without passwords or encryption: add --public if that is meant, or leave --host out"
)


def _list(_: Namespace) -> None:
    from importlib.metadata import entry_points

    from trailnotes.envs import ENTRY_POINTS, ENVS, EXTRAS, env_class

    names = [*ENVS, *(point.name for point in entry_points(group=ENTRY_POINTS))]
    for name in sorted(set(names)):
        try:
            about = (env_class(name).__doc__ or "").strip().partition("\n")[0]
        except (ConfigError, MissingExtraError) as error:
            about = f"cannot be used: {error}"
        lines = textwrap.wrap(about, WIDTH - INDENT) or [""]
        if name in EXTRAS and missing_package(EXTRAS[name]):
            lines.append(f"not installed: {how_to_install(EXTRAS[name])}")
        print("\n".join(f"{head:<{INDENT}}{line}".rstrip() for head, line in zip_longest([name], lines, fillvalue="")))


def _check(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes.envs import check_env, check_options, env_class, make_env

    _refuse_missing(args.name)
    options = load_config(None, args.settings).env.options
    check_options(args.name, env_class(args.name), options)
    skipped = check_env(functools.partial(make_env, args.name, **options))
    print(f"{args.name} keeps the contract")
    for line in skipped:
        print(f"  not checked: {line}")


def _serve(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes.envs import env_class
    from trailnotes.envs.tasks import tasks_of

    _refuse_missing(args.name, serves=True)
    if args.sessions < 1 or not args.idle > 0:
        raise ConfigError(f"--sessions {args.sessions} and --idle {args.idle:g} must both be above 0")
    config = load_config(None, ["--env.name", args.name, *args.settings])
    tasks = tasks_of(config, "train" if args.split == ALL else args.split)
    if args.split == ALL:
        for split in ("validation", "test"):
            with contextlib.suppress(ConfigError):  # an environment may lack one
                tasks += tasks_of(config, split)
    from trailnotes.envs.openenv.server import MOST_BYTES, Settings, make_app
    from trailnotes.envs.openenv.sessions import Games
    from trailnotes.envs.workers.pool import EnvPool
    from trailnotes.web import guard
    from trailnotes.web.serving import address_of, host_of, listening, serve

    about = (env_class(args.name).__doc__ or args.name).strip().partition("\n")[0]
    with EnvPool(config.env) as pool, listening(args.host, args.port, refusal="" if args.public else OPEN) as door:
        names = None if args.public else guard.LOOPBACK | {host_of(door)}
        settings = Settings(args.name, about, names, args.sessions, args.idle)
        ready = f"ready: {address_of(door)} ({len(tasks)} tasks of {_said_of(tasks)})"
        try:
            app = make_app(pool, Games(tasks), settings)
            serve(app, door, ready=lambda: print(ready, flush=True), most_ws_bytes=MOST_BYTES)
        except Interrupted:  # SIGTERM or SIGHUP, which whoever sent it wants to read from the exit code
            raise
        except KeyboardInterrupt:
            print("the server has ended")


def _said_of(tasks: Sequence[Task]) -> str:
    splits = [*dict.fromkeys(task.split for task in tasks)]
    return f"split{'s' * (len(splits) > 1)} {', '.join(splits)}"


def _refuse_missing(name: str, *, serves: bool = False) -> None:
    """Refuse an environment whose packages are not here. Raises `MissingExtraError`."""
    from trailnotes.envs import EXTRAS

    for extra in (*([EXTRAS[name]] if name in EXTRAS else []), *(["openenv"] if serves else [])):
        if package := missing_package(extra):
            raise MissingExtraError(f"{name} needs the package {package}: {how_to_install(extra)}")


COMMANDS = (
    Command(
        name="envs list",
        summary="the environments that can be named in env.name",
        about="List built-in environments and those that installed packages offer by an entry point of the group "
        "trailnotes.envs, and say which are not installed. An environment of your own needs neither: name it "
        "module:Class.",
        example="trailnotes envs list",
        run=_list,
    ),
    Command(
        name="envs check",
        summary="does an environment keep the contract?",
        about="Play an environment as an author's test would: same seed, same text; endings; odd actions; what comes "
        "after the end. Stops at the first violation and says what to change.",
        example="trailnotes envs check waymarks-simulator",
        run=_check,
        arguments=(argument("name", metavar="NAME", help="built-in name, entry point, or module:Class"),),
        settings=True,
    ),
    Command(
        name="envs serve",
        summary="open an environment to other trainers, by the OpenEnv protocol",
        about="Serve an environment over WebSockets as OpenEnv words it, so that whatever speaks OpenEnv can play it. "
        "Each connection is a session with an environment of its own, in worker processes (env.num_workers, "
        "env.timeout). A reset may name a task or a seed, which counts through the tasks of the split. See "
        "docs/envs/openenv.md.",
        example="trailnotes envs serve waymarks-simulator --env.options.actions true",
        run=_serve,
        arguments=(
            argument("name", metavar="NAME", help="built-in name, entry point, or module:Class"),
            argument(
                "--split",
                metavar="NAME",
                default="train",
                help="split whose tasks are played (default train); all: each has the seeds that env.name = "
                "openenv gives it",
            ),
            argument("--sessions", metavar="N", type=int, default=64, help="sessions at once (default 64)"),
            argument(
                "--idle",
                metavar="SECONDS",
                type=float,
                default=600.0,
                help="end a session after that long without a request (default 600)",
            ),
            argument("--host", metavar="HOST", default=LOOPBACK, help=f"address to listen at (default {LOOPBACK})"),
            argument("--port", metavar="PORT", type=int, default=PORT, help=f"default {PORT}; 0 takes a free one"),
            argument("--public", action="store_true", help="let other machines in: there are no passwords"),
        ),
        settings=True,
    ),
)

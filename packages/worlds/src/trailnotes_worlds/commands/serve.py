"""`trailnotes envs serve`: server of an environment for other trainers, by the OpenEnv protocol."""

from __future__ import annotations

import contextlib
from argparse import Namespace

from trailnotes.commands.command import Command, Group, argument
from trailnotes.commands.envs import require_env_packages
from trailnotes.errors import ConfigError, require_extra
from trailnotes.web.loopback import LOOPBACK, PUBLIC_HOST_WARNING

ALL = "all"  # in place of a split
PORT = 8000  # where clients of OpenEnv look first


def _serve(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes.envs import load_env_class
    from trailnotes.envs.tasks import load_tasks

    require_env_packages(args.name)
    require_extra("openenv", args.name)
    if args.sessions < 1 or not args.idle > 0:
        raise ConfigError(f"--sessions {args.sessions} and --idle {args.idle:g} must both be above 0")
    config = load_config(None, ["--env.name", args.name, *args.settings])
    tasks = load_tasks(config, "train" if args.split == ALL else args.split)
    if args.split == ALL:
        for split in ("validation", "test"):
            with contextlib.suppress(ConfigError):  # an environment may lack one
                tasks += load_tasks(config, split)
    from trailnotes.envs.workers.pool import EnvPool
    from trailnotes.web import guard
    from trailnotes.web.serving import format_host, format_url, open_listener, serve
    from trailnotes_worlds.openenv.server import MAX_MESSAGE_BYTES, ServedTasks, ServerSettings, make_app

    about = (load_env_class(args.name).__doc__ or args.name).strip().partition("\n")[0]
    refusal = "" if args.public else PUBLIC_HOST_WARNING
    with EnvPool(config.env) as pool, open_listener(args.host, args.port, refusal=refusal) as listener:
        names = None if args.public else guard.LOOPBACK_NAMES | {format_host(listener)}
        settings = ServerSettings(args.name, about, names, args.sessions, args.idle)
        splits = [*dict.fromkeys(task.split for task in tasks)]
        named = f"split{'s' * (len(splits) > 1)} {', '.join(splits)}"
        ready = f"ready: {format_url(listener)} ({len(tasks)} tasks of {named})"
        serve(
            make_app(pool, ServedTasks(tasks), settings), listener, lambda: print(ready, flush=True),
            most_ws_bytes=MAX_MESSAGE_BYTES, exit_message="the server has ended",
        )  # fmt: skip


_SPLIT = "split of the tasks (default train); all: each split has the seeds that env.name = openenv gives it"
_IDLE = "seconds without a request after which a session ends (default 600)"
_COMMAND = Command(
    name="envs serve",
    summary="serve an environment to other trainers over OpenEnv",
    about="Serve an environment over WebSockets by the OpenEnv protocol, so that any OpenEnv client can play it. Each "
    "connection is a session with an environment of its own, in worker processes (env.num_workers, env.timeout). A "
    "reset may name a task or a seed, which counts through the tasks of the split. See docs/envs/openenv.md.",
    example="trailnotes envs serve waymarks-simulator --env.options.actions true",
    run=_serve,
    arguments=(
        argument("name", metavar="NAME", help="built-in name, entry point, or module:Class"),
        argument("--split", metavar="NAME", default="train", help=_SPLIT),
        argument("--sessions", metavar="N", type=int, default=64, help="sessions at once (default 64)"),
        argument("--idle", metavar="SECONDS", type=float, default=600.0, help=_IDLE),
        argument("--host", metavar="HOST", default=LOOPBACK, help=f"address to listen at (default {LOOPBACK})"),
        argument("--port", metavar="PORT", type=int, default=PORT, help=f"default {PORT}; 0 takes a free one"),
        argument("--public", action="store_true", help="let other machines in: there are no passwords"),
    ),
    settings=True,
)
SERVE = Group("envs", "list, check and serve environments", (_COMMAND,))

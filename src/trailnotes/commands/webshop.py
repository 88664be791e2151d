"""`trailnotes webshop`: the shop of WebShop, for a person."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.arguments import OTHER_CONFIG
from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from trailnotes.config.schema import Config
    from trailnotes.envs.webshop.env import WebShopEnv
    from trailnotes.warmstart.demonstrations.played import PlayRecorder

LOOPBACK = "127.0.0.1"
PORT = 7466


def _serve(args: Namespace) -> None:
    from contextlib import closing, nullcontext

    from trailnotes.envs.tasks import tasks_of
    from trailnotes.envs.webshop.env import WebShopEnv
    from trailnotes.envs.webshop.site import guard
    from trailnotes.envs.webshop.site.app import Settings, make_app
    from trailnotes.envs.webshop.site.server import address_of, listening, serve
    from trailnotes.envs.webshop.site.visits import MOST_STEPS, Floor

    config = _shop_config(args.config, args.settings, args.catalogue)
    tasks = tasks_of(config, args.split)
    if args.goal is not None and not 0 <= args.goal < len(tasks):
        raise ConfigError(f"--goal {args.goal}: split {args.split!r} has goals 0 to {len(tasks) - 1}")
    options = {**config.env.options, "max_steps": MOST_STEPS}  # a person takes the time that they need
    with closing(WebShopEnv(**options)) as env, listening(args.host, args.port, public=args.public) as door:
        address, port = address_of(door), door.getsockname()[1]
        names = None if args.public else guard.LOOPBACK | {guard.name_of(args.host)}
        settings = Settings(cookie=f"trailnotes-shop-{port}", names=names, only=args.goal)
        recording = closing(_recorder(args.record, env, config)) if args.record else nullcontext()
        with recording as recorder:
            app = make_app(Floor(env.shop, tasks), settings, recorder)
            serve(app, door, ready=lambda: print(f"ready: {address}", flush=True))


def _shop_config(path: Path | None, settings: Sequence[str], catalogue: str | None) -> Config:
    """The settings of a config, or those of the environment without any, with the catalogue given.

    Raises:
        ConfigError: the config is of another environment.
    """
    from trailnotes.config.toml import load_config

    config = load_config(path, settings if path else ["--env.name", "webshop", *settings])
    if config.env.name != "webshop":
        raise ConfigError(f"env.name = {config.env.name!r}: only webshop has a site; name another --config, or none")
    if catalogue is None:
        return config
    env = config.env.model_copy(update={"options": {**config.env.options, "catalogue": catalogue}})
    return config.model_copy(update={"env": env})


def _recorder(path: Path, env: WebShopEnv, config: Config) -> PlayRecorder:
    from trailnotes.warmstart.demonstrations.played import PlayRecorder

    recorder = PlayRecorder(path, env, config, _counting(config))
    if recorder.half:
        print(f"the last line of {path} was cut: it is now in {recorder.half}")
    return recorder


def _counting(config: Config) -> Callable[[str], int]:
    """Tokens of the config's model, or words where it is still to be made."""
    if not config.model.path:
        return lambda text: len(text.split())
    from trailnotes.policies.chat import ChatFormat
    from trailnotes.policies.hf.policy import load_tokenizer

    return ChatFormat(load_tokenizer(config.model), config.model.template_options).count_tokens


COMMANDS = (
    Command(
        name="webshop serve",
        summary="open the shop to a person in a browser",
        about="The pages, goals, offers and rewards of the environment webshop, as a site: open the address that it "
        "prints. Each browser has a visit of its own, which ends after an hour without a click. The score and its "
        "parts are told after the purchase. With --record, each purchase is appended to a file that "
        "`warmstart.demonstrations` may name: what was done, played again in the environment with the settings given, "
        "so that each turn is what an agent would have been shown. Listens on this machine only, unless --host and "
        "--public say otherwise. Ends with Ctrl-C.",
        example="trailnotes webshop serve --record runs/played.jsonl",
        run=_serve,
        arguments=(
            argument(
                "catalogue", metavar="CATALOGUE", nargs="?",
                help="a folder that `trailnotes webshop import` wrote (that of the config, or ours)",
            ),
            OTHER_CONFIG,
            argument("--split", metavar="SPLIT", default="train", help="whose goals are given to visitors (train)"),
            argument("--goal", type=int, metavar="N", help="the one goal of all visits, from 0 (theirs to choose)"),
            argument("--record", type=Path, metavar="FILE", help="append the purchases as demonstrations, JSONL"),
            argument("--host", metavar="ADDRESS", default=LOOPBACK, help=f"where to listen ({LOOPBACK})"),
            argument("--port", type=int, metavar="N", default=PORT, help=f"port; 0 takes a free one ({PORT})"),
            argument("--public", action="store_true", help="let other machines in, without passwords or encryption"),
        ),
        settings=True,
    ),
)  # fmt: skip

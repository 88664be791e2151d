"""`trailnotes webshop`: catalogues of the shop, and the shop in a browser."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, Group, argument
from trailnotes.errors import ConfigError, Interrupted
from trailnotes.reporting.terminal import escape_unprintable

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from trailnotes.config.schema import Config
    from trailnotes_worlds.demonstrations.played import PlayRecorder
    from trailnotes_worlds.webshop.catalogue import Catalogue
    from trailnotes_worlds.webshop.env import WebShopEnv
    from trailnotes_worlds.webshop.products import Product

LOOPBACK = "127.0.0.1"
PORT = 7466
MAX_TITLE_LENGTH = 300  # characters
PUBLIC_HOST_WARNING = (
    "would open the shop to other machines, without passwords or encryption: add --public if that is meant, or leave "
    "--host out"
)


def _import(args: Namespace) -> None:
    from trailnotes.runs.console import ProgressBar
    from trailnotes_worlds.webshop.catalogue import REPORT
    from trailnotes_worlds.webshop.importing import SourceFiles, import_catalogue

    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit {args.limit} leaves no product: give 1 or more, or leave it out")
    sources = SourceFiles(args.products, args.attributes, args.human, args.order)
    with ProgressBar(2.0, "import") as bar:

        def tell(stage: str, done: float, total: float) -> None:
            share = done / total if total else 1.0
            bar.update(share + (stage == "index"), label=f"{stage} {share:.0%}")

        catalogue = import_catalogue(args.folder, sources, limit=args.limit, nouns=args.nouns, progress=tell)
    with closing(catalogue):
        _describe(catalogue)
        if (report := catalogue.folder / REPORT).stat().st_size:
            print(f"what was left out, entry by entry: {report}")
        if args.attributes is None and args.human is None and not any(each.instructions for each in catalogue):
            print("no instructions, so no goals: import with --attributes (synthetic ones) or --human to play")


def _show(args: Namespace) -> None:
    from trailnotes_worlds.webshop.synthetic import open_catalogue

    _validate_arguments(args)
    with closing(open_catalogue(args.catalogue)) as catalogue:
        if args.verify:
            catalogue.verify()
            print("every file is as it was written")
        if args.asin is not None:
            asin = next((each for each in (args.asin, args.asin.upper()) if each in catalogue), None)
            if asin is None:
                raise ConfigError(f"{args.catalogue} has no product {args.asin}: --search WORDS finds some")
            _print_products([catalogue[asin]], in_full=True)
        elif args.search is not None:
            found = catalogue.search(args.search, args.limit)
            _print_products([catalogue[asin] for asin in found], in_full=False)
            if not found:
                print("no product has any of these words")
        else:
            _describe(catalogue)


def _validate_arguments(args: Namespace) -> None:
    if args.asin is not None and args.search is not None:
        raise ConfigError("--asin and --search ask for two things: give one of them")
    if args.search is not None and not args.search.strip():
        raise ConfigError("--search is empty: name the words to look for, or leave it out")
    if args.limit < 1:
        raise ConfigError(f"--limit {args.limit} shows no product: give 1 or more, or leave it out")


def _print_products(products: list[Product], *, in_full: bool) -> None:
    from trailnotes_worlds.webshop.texts import sanitize_text

    for product in products:
        if in_full:
            print(json.dumps(asdict(product), ensure_ascii=True, indent=1))
        else:
            print(
                escape_unprintable(
                    f"{product.asin}  {product.tag:<20}  {sanitize_text(product.title, MAX_TITLE_LENGTH)}"
                )
            )


def _describe(catalogue: Catalogue) -> None:
    print(f"{len(catalogue):,} products, {catalogue.meta['bytes'] / 1e6:,.1f} MB; catalogue {catalogue.name}")
    for role, (name, size) in catalogue.meta.get("sources", {}).items():
        print(escape_unprintable(f"  {role:<12} {name} ({size / 1e6:,.1f} MB)"))
    for reason, count in sorted(catalogue.meta.get("left_out", {}).items()):
        print(escape_unprintable(f"  left out     {count:,} x {reason}"))
    for name, count in sorted(catalogue.meta.get("counts", {}).items()):
        print(escape_unprintable(f"  {name:<24} {count:>9,}"))


def _serve(args: Namespace) -> None:
    from trailnotes.envs.tasks import tasks_of
    from trailnotes.web import guard
    from trailnotes.web.serving import format_host, format_url, open_listener, serve
    from trailnotes_worlds.webshop.env import WebShopEnv
    from trailnotes_worlds.webshop.site.app import SiteSettings, make_app
    from trailnotes_worlds.webshop.site.visits import MAX_VISIT_STEPS, ShopService

    if args.record and args.split != "train":
        raise ConfigError(
            f"--record keeps what models learn from, and goals of split {args.split!r} are examined: leave out "
            "--record or --split"
        )
    config = _load_shop_config(args.config, args.settings, args.catalogue)
    tasks = tasks_of(config, args.split)
    if args.goal is not None and not 0 <= args.goal < len(tasks):
        raise ConfigError(f"--goal {args.goal}: split {args.split!r} has goals 0 to {len(tasks) - 1}")
    options = {**config.env.options, "max_steps": MAX_VISIT_STEPS}  # a person takes the time that they need
    refusal = "" if args.public else PUBLIC_HOST_WARNING
    with closing(WebShopEnv(**options)) as env, open_listener(args.host, args.port, refusal=refusal) as door:
        address, port = format_url(door), door.getsockname()[1]
        names = None if args.public else guard.LOOPBACK_NAMES | {format_host(door)}
        settings = SiteSettings(cookie=f"trailnotes-shop-{port}", names=names, only=args.goal)
        recording = closing(_open_recorder(args.record, env, config)) if args.record else nullcontext()
        with recording as recorder:
            app = make_app(ShopService(env.shop, tasks), settings, recorder)
            try:
                serve(app, door, ready=lambda: print(f"ready: {address}", flush=True))
            except Interrupted:  # SIGTERM or SIGHUP, which whoever sent it wants to read from the exit code
                raise
            except KeyboardInterrupt:
                print("the shop is closed")


def _load_shop_config(path: Path | None, settings: Sequence[str], catalogue: str | None) -> Config:
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


def _open_recorder(path: Path, env: WebShopEnv, config: Config) -> PlayRecorder:
    from trailnotes_worlds.demonstrations.played import PlayRecorder

    recorder = PlayRecorder(path, env, config, build_token_counter(config))
    if recorder.torn_line_path:
        print(f"the last line of {path} was cut: it is now in {recorder.torn_line_path}")
    return recorder


def build_token_counter(config: Config) -> Callable[[str], int]:
    """Tokens of the config's model, or words where there is none, or it is still to be made."""
    from trailnotes.config.model_schema import is_missing_directory
    from trailnotes.runs.load_policy import RANDOM

    if config.model.path in ("", RANDOM) or is_missing_directory(config.model.path):
        return lambda text: len(text.split())
    from trailnotes.policies.chat import ChatFormat
    from trailnotes.policies.hf.policy import load_tokenizer

    return ChatFormat(load_tokenizer(config.model), config.model.template_options).count_tokens


COMMANDS = (
    Command(
        name="webshop import",
        summary="make a catalogue of the original files",
        about="Read WebShop's own files (or the records of its 1,000-product index) into a catalogue: one folder, "
        "searched as Lucene would, which any number of processes read without a copy of their own. Files may end in "
        ".gz; a list is read entry by entry, so its size does not matter. What is no product is counted by reason and "
        "listed in the catalogue's report.jsonl. An import that was interrupted goes on when the same command is given "
        "again.",
        example="trailnotes webshop import shop --products items_shuffle.json --attributes items_ins_v2.json "
        "--human items_human_ins.json --order human_goals.json",
        run=_import,
        arguments=(
            argument("folder", type=Path, metavar="FOLDER", help="the catalogue, which is not there yet"),
            argument(
                "--products",
                type=Path,
                required=True,
                metavar="FILE",
                help="items_shuffle.json, or a line of JSON for each product",
            ),
            argument(
                "--attributes",
                type=Path,
                metavar="FILE",
                help="items_ins_v2.json: hidden attributes, synthetic instructions",
            ),
            argument(
                "--human",
                type=Path,
                metavar="FILE",
                help="items_human_ins.json: human instructions; without it, those in the records",
            ),
            argument(
                "--order",
                type=Path,
                metavar="FILE",
                help="human_goals.json: the human goals in the order that the protocols original and rememberer split",
            ),
            argument("--limit", type=int, metavar="N", help="the first N entries only, as the original's num_products"),
            argument(
                "--nouns",
                choices=("rules", "spacy"),
                default="rules",
                help="who finds the nouns of titles, by which the reward knows the kind of a product",
            ),
        ),
    ),
    Command(
        name="webshop show",
        summary="what is in a catalogue",
        about="Say what a catalogue holds: products by department, instructions, and what its import left out. Or look "
        "up one product, or see what a search finds. The word synthetic names the catalogue that Trailnotes makes "
        "itself.",
        example="trailnotes webshop show synthetic --search 'wool hiking socks'",
        run=_show,
        arguments=(
            argument("catalogue", metavar="CATALOGUE", help="a folder that webshop import made, or synthetic"),
            argument("--search", metavar="WORDS", help="the products that these words find, best first"),
            argument("--limit", type=int, default=10, metavar="N", help="so many of them (default 10)"),
            argument("--asin", metavar="ASIN", help="one product in full, with what is hidden in the shop"),
            argument("--verify", action="store_true", help="read every file and compare it with its hash"),
        ),
    ),
    Command(
        name="webshop serve",
        summary="open the shop to a person in a browser",
        about="The pages, goals, offers and rewards of the environment webshop, as a site: open the address that it "
        "prints. Each browser has a visit of its own, which ends after an hour without a click. The score and its "
        "parts are told after the purchase. With --record, each purchase is appended to a file that "
        "`warmstart.demonstrations` may name: what was done, played again in the environment with the settings given, "
        "so that each turn is what an agent would have been shown. Listens on this machine only, unless --host and "
        "--public say otherwise. Ctrl-C closes it.",
        example="trailnotes webshop serve --record runs/played.jsonl",
        run=_serve,
        arguments=(
            argument(
                "catalogue",
                metavar="CATALOGUE",
                nargs="?",
                help="a folder that `trailnotes webshop import` wrote (that of the config, or ours)",
            ),
            argument(
                "--config", type=Path, metavar="CONFIG", help="settings, a TOML file; the environment's own without one"
            ),
            argument("--split", metavar="SPLIT", default="train", help="whose goals are given to visitors (train)"),
            argument("--goal", type=int, metavar="N", help="the one goal of all visits, from 0 (theirs to choose)"),
            argument(
                "--record",
                type=Path,
                metavar="FILE",
                help="append the purchases as demonstrations, JSONL (split train only)",
            ),
            argument("--host", metavar="ADDRESS", default=LOOPBACK, help=f"where to listen ({LOOPBACK})"),
            argument("--port", type=int, metavar="N", default=PORT, help=f"port; 0 takes a free one ({PORT})"),
            argument("--public", action="store_true", help="let other machines in, without passwords or encryption"),
        ),
        settings=True,
    ),
)

WEBSHOP = Group("webshop", "import, show and serve catalogues of WebShop", COMMANDS)

"""`trailnotes webshop`: commands that import, show and serve catalogues of the shop."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trailnotes.commands.command import Command, Group, argument
from trailnotes.errors import ConfigError
from trailnotes.reporting.terminal import escape_unprintable
from trailnotes.web.loopback import LOOPBACK, PUBLIC_HOST_WARNING

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from trailnotes.config.schema import Config
    from trailnotes_worlds.demonstrations.played import PlayRecorder
    from trailnotes_worlds.webshop.catalogue import Catalogue
    from trailnotes_worlds.webshop.env import WebShopEnv

PORT = 7466
MAX_TITLE_LENGTH = 300  # characters


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
    from trailnotes_worlds.webshop.texts import sanitize_text

    if args.asin is not None and args.search is not None:
        raise ConfigError("--asin and --search ask for two things: give one of them")
    if args.search is not None and not args.search.strip():
        raise ConfigError("--search is empty: name the words to look for, or leave it out")
    if args.limit < 1:
        raise ConfigError(f"--limit {args.limit} shows no product: give 1 or more, or leave it out")
    with closing(open_catalogue(args.catalogue)) as catalogue:
        if args.verify:
            catalogue.verify()
            print("every file is as it was written")
        if args.asin is not None:
            asin = next((each for each in (args.asin, args.asin.upper()) if each in catalogue), None)
            if asin is None:
                raise ConfigError(f"{args.catalogue} has no product {args.asin}: --search WORDS finds some")
            print(json.dumps(asdict(catalogue[asin]), ensure_ascii=True, indent=1))
        elif args.search is not None:
            found = catalogue.search(args.search, args.limit)
            for product in map(catalogue.__getitem__, found):
                title = sanitize_text(product.title, MAX_TITLE_LENGTH)
                print(escape_unprintable(f"{product.asin}  {product.tag:<20}  {title}"))
            if not found:
                print("no product has any of these words")
        else:
            _describe(catalogue)


def _describe(catalogue: Catalogue) -> None:
    print(f"{len(catalogue):,} products, {catalogue.meta['bytes'] / 1e6:,.1f} MB; catalogue {catalogue.name}")
    for role, (name, size) in catalogue.meta.get("sources", {}).items():
        print(escape_unprintable(f"  {role:<12} {name} ({size / 1e6:,.1f} MB)"))
    for reason, count in sorted(catalogue.meta.get("left_out", {}).items()):
        print(escape_unprintable(f"  left out     {count:,} x {reason}"))
    for name, count in sorted(catalogue.meta.get("counts", {}).items()):
        print(escape_unprintable(f"  {name:<24} {count:>9,}"))


def _serve(args: Namespace) -> None:
    from trailnotes.envs import make_env
    from trailnotes.envs.tasks import tasks_of
    from trailnotes.web import guard
    from trailnotes.web.serving import format_host, format_url, open_listener, serve
    from trailnotes_worlds.webshop.site.app import SiteSettings, make_app
    from trailnotes_worlds.webshop.site.visits import MAX_VISIT_STEPS, ShopService

    if args.record and args.split != "train":
        why = f"--record makes training data, and split {args.split!r} is for evaluation"
        raise ConfigError(f"{why}: leave out --record or --split")
    config = _load_shop_config(args.config, args.settings, args.catalogue)
    tasks = tasks_of(config, args.split)
    if args.goal is not None and not 0 <= args.goal < len(tasks):
        raise ConfigError(f"--goal {args.goal}: split {args.split!r} has goals 0 to {len(tasks) - 1}")
    options = {**config.env.options, "max_steps": MAX_VISIT_STEPS}
    refusal = "" if args.public else PUBLIC_HOST_WARNING
    shop = cast("WebShopEnv", make_env("webshop", **options))
    with closing(shop) as env, open_listener(args.host, args.port, refusal=refusal) as door:
        address, port = format_url(door), door.getsockname()[1]
        names = None if args.public else guard.LOOPBACK_NAMES | {format_host(door)}
        settings = SiteSettings(cookie=f"trailnotes-shop-{port}", names=names, only=args.goal)
        recording = closing(_open_recorder(args.record, env, config)) if args.record else nullcontext()
        with recording as recorder:
            app = make_app(ShopService(env.shop, tasks), settings, recorder)
            serve(app, door, lambda: print(f"ready: {address}", flush=True), exit_message="the shop is closed")


def _load_shop_config(path: Path | None, settings: Sequence[str], catalogue: str | None) -> Config:
    """Load a config, or the defaults of webshop, with the catalogue given."""
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
    """Build a counter of the tokens of the config's model, or of words if there is no model yet."""
    from trailnotes.config.model_schema import is_missing_directory
    from trailnotes.runs.load_policy import RANDOM

    if config.model.path in ("", RANDOM) or is_missing_directory(config.model.path):
        return lambda text: len(text.split())
    from trailnotes.policies.chat import ChatFormat
    from trailnotes.policies.hf.policy import load_tokenizer

    return ChatFormat(load_tokenizer(config.model), config.model.template_options).count_tokens


_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
_ORDER = "human_goals.json: the human goals in the order that the protocols original and rememberer split"
_NOUNS = "tagger of the nouns in titles, by which the reward tells the kind of a product"
_FOLDER = "folder of `trailnotes webshop import` (default: that of the config, or the synthetic catalogue)"

_IMPORT_ARGUMENTS = (
    argument("folder", type=Path, metavar="FOLDER", help="new folder for the catalogue"),
    argument("--products", required=True, **_FILE, help="items_shuffle.json, or a line of JSON for each product"),
    argument("--attributes", **_FILE, help="items_ins_v2.json: hidden attributes, synthetic instructions"),
    argument("--human", **_FILE, help="items_human_ins.json: human instructions; without it, those in the records"),
    argument("--order", **_FILE, help=_ORDER),
    argument("--limit", **_NUMBER, help="read only the first N entries, as the original's num_products"),
    argument("--nouns", choices=("rules", "spacy"), default="rules", help=_NOUNS),
)
_SHOW_ARGUMENTS = (
    argument("catalogue", metavar="CATALOGUE", help="folder of webshop import, or synthetic"),
    argument("--search", metavar="WORDS", help="list the products that a search for these words finds, best first"),
    argument("--limit", **_NUMBER, default=10, help="number of products to list (default 10)"),
    argument("--asin", metavar="ASIN", help="show one product in full, with its hidden attributes"),
    argument("--verify", action="store_true", help="compare every file with its hash"),
)
_SERVE_ARGUMENTS = (
    argument("catalogue", metavar="CATALOGUE", nargs="?", help=_FOLDER),
    argument("--config", type=Path, metavar="CONFIG", help="TOML file of settings (default: those of webshop)"),
    argument("--split", metavar="SPLIT", default="train", help="split of the visitors' goals (train)"),
    argument("--goal", **_NUMBER, help="number of the goal of all visits, from 0 (default: the visitors choose)"),
    argument("--record", **_FILE, help="append the purchases as demonstrations, JSONL (split train only)"),
    argument("--host", metavar="ADDRESS", default=LOOPBACK, help=f"address to listen at ({LOOPBACK})"),
    argument("--port", **_NUMBER, default=PORT, help=f"port; 0 takes a free one ({PORT})"),
    argument("--public", action="store_true", help="let other machines in, without passwords or encryption"),
)
COMMANDS = (
    Command(
        name="webshop import",
        summary="import the original files as a catalogue",
        about="Read WebShop's own files (or the records of its 1,000-product index) into a catalogue: one folder "
        "with a search like Lucene's, which any number of processes share. Files may end in .gz, and have any size. "
        "The import counts records that are no product by reason, and lists them in the catalogue's report.jsonl. The "
        "same command resumes an interrupted import.",
        example="trailnotes webshop import shop --products items_shuffle.json --attributes items_ins_v2.json "
        "--human items_human_ins.json --order human_goals.json",
        run=_import,
        arguments=_IMPORT_ARGUMENTS,
    ),
    Command(
        name="webshop show",
        summary="show the contents of a catalogue",
        about="Summarize a catalogue: products by department, instructions, and records that its import left out. Or "
        "show one product, or the results of a search. The word synthetic names the catalogue that Trailnotes "
        "generates.",
        example="trailnotes webshop show synthetic --search 'wool hiking socks'",
        run=_show,
        arguments=_SHOW_ARGUMENTS,
    ),
    Command(
        name="webshop serve",
        summary="serve the shop as a web site",
        about="Serve the pages, goals, actions and rewards of the environment webshop as a web site: open the address "
        "that it prints. Each browser has a visit of its own, which ends after an hour without a click. The site shows "
        "the score and its parts after the purchase. With --record, it appends each purchase to a file for "
        "`warmstart.demonstrations`: it replays the visit in the environment with the given settings, so that each "
        "turn is as an agent would see it. It listens on this machine only, unless --host and --public say otherwise. "
        "Ctrl-C closes it.",
        example="trailnotes webshop serve --record runs/played.jsonl",
        run=_serve,
        arguments=_SERVE_ARGUMENTS,
        settings=True,
    ),
)

WEBSHOP = Group("webshop", "import, show and serve product catalogues", COMMANDS)

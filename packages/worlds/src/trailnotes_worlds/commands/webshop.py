"""`trailnotes webshop`: commands that import and show catalogues of the shop."""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.commands.command import Command, Group, argument
from trailnotes.errors import ConfigError
from trailnotes.reporting.terminal import ProgressBar, escape_unprintable

if TYPE_CHECKING:
    from trailnotes_worlds.webshop.catalogue import Catalogue

MAX_TITLE_LENGTH = 300  # characters


def _import(args: Namespace) -> None:
    from trailnotes_worlds.webshop.catalogue import REPORT
    from trailnotes_worlds.webshop.importing import SourceFiles, import_catalogue

    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit {args.limit} leaves no product: give 1 or more, or leave it out")
    sources = SourceFiles(args.products, args.attributes, args.human, args.order)
    with ProgressBar(2.0, "import") as bar:

        def update(stage: str, done: float, total: float) -> None:
            share = done / total if total else 1.0
            bar.update(share + (stage == "index"), label=f"{stage} {share:.0%}")

        catalogue = import_catalogue(args.folder, sources, limit=args.limit, nouns=args.nouns, progress=update)
    with closing(catalogue):
        _describe(catalogue)
        if (report := catalogue.folder / REPORT).stat().st_size:
            print(f"what was left out, entry by entry: {report}")
        if args.attributes is None and args.human is None and not any(each.instructions for each in catalogue):
            print("no instructions, so no goals: import with --attributes (synthetic ones) or --human to play")


def _show(args: Namespace) -> None:
    from trailnotes_worlds.webshop.shop import sanitize_text
    from trailnotes_worlds.webshop.synthetic import open_catalogue

    if args.asin is not None and args.search is not None:
        raise ConfigError("--asin and --search ask for two things: give one of them")
    if args.search is not None and not args.search.strip():
        raise ConfigError("--search is empty: name the words to look for, or leave it out")
    if args.limit < 1:
        raise ConfigError(f"--limit {args.limit} shows no product: give 1 or more, or leave it out")
    with closing(open_catalogue(args.catalogue)) as catalogue:
        if args.asin is not None:
            asin = next((each for each in (args.asin, args.asin.upper()) if each in catalogue), None)
            if asin is None:
                raise ConfigError(f"{args.catalogue} has no product {args.asin}: --search WORDS finds some")
            print(json.dumps(asdict(catalogue[asin]), ensure_ascii=True, indent=1))
        elif args.search is not None:
            asins = catalogue.search(args.search, args.limit)
            for product in map(catalogue.__getitem__, asins):
                title = sanitize_text(product.title, MAX_TITLE_LENGTH)
                print(escape_unprintable(f"{product.asin}  {product.tag:<20}  {title}"))
            if not asins:
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


_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
_ORDER = "human_goals.json: the human goals in the order that the protocols original and rememberer split"
_NOUNS = "tagger of the nouns in titles, by which the reward tells the kind of a product"

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
)
COMMANDS = (
    Command(
        name="webshop import",
        summary="import the original files as a catalogue",
        about="Read WebShop's own files (or the records of its 1,000-product index) into a catalogue: one folder "
        "with a search like Lucene's, which any number of processes share. Files may end in .gz, and have any size. "
        "The import counts records that are no product by reason, and lists them in the catalogue's "
        "report.jsonl. The folder appears when the import is complete.",
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
)

WEBSHOP = Group("webshop", "import and show product catalogues", COMMANDS)

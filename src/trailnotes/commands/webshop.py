"""The commands on a shop's catalogue."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

    from trailnotes.envs.webshop.catalogue import Catalogue
    from trailnotes.envs.webshop.products import Product


def _import(args: Namespace) -> None:
    from trailnotes.envs.webshop.catalogue import REPORT
    from trailnotes.envs.webshop.importing import Sources, import_catalogue
    from trailnotes.runs.console import Bar

    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit {args.limit} leaves no product: give 1 or more, or leave it out")
    sources = Sources(args.products, args.attributes, args.human, args.order)
    with Bar(2.0, "import") as bar:

        def tell(stage: str, done: float, total: float) -> None:
            share = done / total if total else 1.0
            bar.update(share + (stage == "index"), label=f"{stage} {share:.0%}")

        catalogue = import_catalogue(args.folder, sources, limit=args.limit, nouns=args.nouns, progress=tell)
    with closing(catalogue):
        _describe(catalogue)
        if any(catalogue.meta["left_out"].values()):
            print(f"what was left out, entry by entry: {catalogue.folder / REPORT}")


def _show(args: Namespace) -> None:
    from trailnotes.envs.webshop.synthetic import open_catalogue

    with closing(open_catalogue(args.catalogue)) as catalogue:
        if args.verify:
            catalogue.verify()
            print("every file is as it was written")
        if args.asin is not None:
            if args.asin not in catalogue:
                raise ConfigError(f"{args.catalogue} has no product {args.asin}: --search WORDS finds some")
            _print([catalogue[args.asin]], in_full=True)
        elif args.search is not None:
            found = catalogue.search(args.search, args.limit)
            _print([catalogue[asin] for asin in found], in_full=False)
            if not found:
                print("no product has any of these words")
        else:
            _describe(catalogue)


def _print(products: list[Product], *, in_full: bool) -> None:
    for product in products:
        if in_full:
            print(json.dumps(asdict(product), ensure_ascii=True, indent=1))
        else:
            print(f"{product.asin}  {product.tag:<20}  {' '.join(product.title.split())}")


def _describe(catalogue: Catalogue) -> None:
    print(f"{len(catalogue):,} products, {catalogue.meta['bytes'] / 1e6:,.1f} MB; catalogue {catalogue.name}")
    for role, (name, size) in catalogue.meta.get("sources", {}).items():
        print(f"  {role:<12} {name} ({size / 1e6:,.1f} MB)")
    for reason, count in sorted(catalogue.meta.get("left_out", {}).items()):
        print(f"  left out     {count:,} x {reason}")
    counts = Counter[str]()
    for product in catalogue:
        counts[product.category] += 1
        counts.update(f"{item.kind} instructions" for item in product.instructions)
    for name, count in sorted(counts.items()):
        print(f"  {name:<24} {count:>9,}")


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
        "--human items_human_ins.json",
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
                help="human_goals.json: the human goals in the order of the original's splits",
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
)

"""`trailnotes wikihow`: commands that import and show libraries of articles."""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, Group, argument
from trailnotes.errors import ConfigError
from trailnotes.reporting.terminal import ProgressBar, escape_unprintable

if TYPE_CHECKING:
    from trailnotes_worlds.wikihow.library import Library


def _import(args: Namespace) -> None:
    from trailnotes_worlds.wikihow.importing import import_library
    from trailnotes_worlds.wikihow.library import REPORT

    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit {args.limit} leaves no page: give 1 or more, or leave it out")
    with ProgressBar(1.0, "import") as bar:
        library = import_library(
            args.folder, args.pages, args.meta, limit=args.limit,
            progress=lambda done, total: bar.update(done / total, label=f"page {done:,} of {total:,}"),
        )  # fmt: skip
    with closing(library):
        _describe(library)
        if library.meta["left_out"]:
            print(f"what was left out, page by page: {library.folder / REPORT}")


def _show(args: Namespace) -> None:
    from trailnotes_worlds.wikihow.articles import to_record
    from trailnotes_worlds.wikihow.synthetic import open_library

    if args.path is not None and args.search is not None:
        raise ConfigError("--path and --search ask for two things: give one of them")
    if args.limit < 1:
        raise ConfigError(f"--limit {args.limit} shows no article: give 1 or more, or leave it out")
    with closing(open_library(args.library)) as library:
        if args.path is not None:
            page = library.get(args.path)
            if page is None:
                raise ConfigError(f"{args.library} has no page {args.path}: --search WORDS finds some")
            print(json.dumps(to_record(page), ensure_ascii=True, indent=1))
        elif args.search is not None:
            paths = library.search(args.search, args.limit)
            for article in library.articles(paths):
                print(escape_unprintable(f"{article.path}  {article.display_title}"))
            if not paths:
                print("no title has any of these words")
        else:
            _describe(library)


def _describe(library: Library) -> None:
    counts = ", ".join(f"{count:,} x {kind}" for kind, count in sorted(library.meta["counts"].items()))
    print(f"{counts}; library {library.name}")
    for reason, count in sorted(library.meta.get("left_out", {}).items()):
        print(escape_unprintable(f"  left out     {count:,} x {reason}"))


_PAGES = "a file for each page: HTML, or HTTP responses"
COMMANDS = (
    Command(
        name="wikihow import",
        summary="import recorded pages as a library",
        about="Read recorded pages of the real site (the folder dumps of the published archive, or HTML files with "
        "their paths as names) into a library: one folder that any number of processes share. The import counts pages "
        "that are no article, author or category by reason, and lists them in the library's report.jsonl.",
        example="trailnotes wikihow import runs/pages --pages dumps --meta doc_meta.csv",
        run=_import,
        arguments=(
            argument("folder", type=Path, metavar="FOLDER", help="new folder for the library"),
            argument("--pages", type=Path, required=True, metavar="DIR", help=_PAGES),
            argument("--meta", type=Path, metavar="FILE", help="doc_meta.csv: views, dates and marks of the articles"),
            argument("--limit", type=int, metavar="N", help="read only the first N files, by name"),
        ),
    ),
    Command(
        name="wikihow show",
        summary="show the contents of a library",
        about="Count the pages of a library, and those that its import left out. Or show one page, or the results of a "
        "search. The word synthetic names the library that Trailnotes generates.",
        example="trailnotes wikihow show synthetic --search 'sharpen a bread knife'",
        run=_show,
        arguments=(
            argument("library", metavar="LIBRARY", help="folder of wikihow import, or synthetic"),
            argument("--search", metavar="WORDS", help="list the articles that these words find, best first"),
            argument("--limit", type=int, default=10, metavar="N", help="number of articles to list (default 10)"),
            argument("--path", metavar="PATH", help="show one page: Boil-an-Egg, Author/NAME or Category:NAME"),
        ),
    ),
)

WIKIHOW = Group("wikihow", "import and show libraries of article pages", COMMANDS)

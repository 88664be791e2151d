"""The commands that put memories beside each other: several made one, and what two do not have in common."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from trailnotes.types import Tip

SOURCE = "a run directory, a memory file, or a file that `memory export` wrote"


def printable(text: str) -> str:
    """`text` as a terminal may show it: what is no letter there, as names from a foreign file may hold, is escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _merge(args: Namespace) -> None:
    from trailnotes.memory.merging import merge

    merged = merge(args.out, args.sources, embedder=args.embedder)
    print(f"{merged.tips} tips written to {args.out}, of {merged.read} read from {len(args.sources)} memories")


def _diff(args: Namespace) -> None:
    from trailnotes.memory.merging import changes, differences
    from trailnotes.memory.tipfile import read_tips

    sides = [read_tips(args.here), read_tips(args.there)]
    if args.namespace is not None:
        sides = [[tip for tip in tips if tip.namespace == args.namespace] for tips in sides]
    found = differences(*sides)
    changed = [(ours, changes(ours, theirs)) for ours, theirs in found.changed]
    if args.json:
        for name, tips in (("only_here", found.only_here), ("only_there", found.only_there)):
            for tip in tips:
                print(json.dumps({name: asdict(tip)}))
        for tip, fields in changed:
            print(json.dumps({"changed": asdict(tip), "fields": fields}))
        return
    for sign, tips in (("-", found.only_here), ("+", found.only_there)):
        for tip in tips:
            print(f"{sign} {_told(tip)}")
    for tip, fields in changed:
        print(f"~ {_told(tip)}: {_what(fields)}")
    print(
        f"{len(found.only_here)} only in {args.here}, {len(found.only_there)} only in {args.there}, {len(changed)} "
        f"changed, {found.same} the same"
    )


def _told(tip: Tip) -> str:
    return printable(f"{tip.namespace}  {tip.text}")


def _what(fields: Mapping[str, tuple[object, object]]) -> str:
    return ", ".join(f"{name} {here!a} -> {there!a}" for name, (here, there) in fields.items())


COMMANDS = (
    Command(
        name="memory merge",
        summary="make one memory of several",
        about="Write a new memory file with the tips of all sources, which stay as they are. The same text under the "
        "same key of a task becomes one tip, with its first author, the best score and the most support; it is on if "
        "nobody switched it off. The order of the sources does not matter, and merging again changes nothing. Begin a "
        "run with it by `trailnotes train --memory`.",
        example="trailnotes memory merge runs/both.db runs/smoke tips.jsonl",
        run=_merge,
        arguments=(
            argument("out", type=Path, metavar="FILE", help="the memory file to write, which is not there yet"),
            argument("sources", type=Path, metavar="SOURCE", nargs="+", help=SOURCE),
            argument(
                "--embedder",
                metavar="NAME",
                default="",
                help="whose vectors the new memory has (those of the memory files among the sources, or hashing)",
            ),
        ),
    ),
    Command(
        name="memory diff",
        summary="what two memories do not have in common",
        about="Print the tips that are only here (-), those that are only there (+), and those that both have with "
        "other fields (~). Tips are compared by what they say, not by their ids; an edited one is found by its author "
        "and key.",
        example="trailnotes memory diff runs/smoke tips.jsonl",
        run=_diff,
        arguments=(
            argument("here", type=Path, metavar="HERE", help=SOURCE),
            argument("there", type=Path, metavar="THERE", help="another one"),
            argument("--namespace", metavar="TASK", help="only the tips of this task"),
            argument("--json", action="store_true", help="one JSON object a line, with all fields, without the sums"),
        ),
    ),
)

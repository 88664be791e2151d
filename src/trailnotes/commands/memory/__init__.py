"""The commands on a memory of tips: list, search, edit, delete, import and export."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument
from trailnotes.commands.memory import sharing
from trailnotes.commands.memory.sharing import EMBEDDER_ARGUMENT, load_memory_settings
from trailnotes.errors import ConfigError, RunError
from trailnotes.reporting.terminal import escape_unprintable

if TYPE_CHECKING:
    from argparse import Namespace

    from trailnotes.memory.scope import Retirement
    from trailnotes.types import Tip

_PLACE = argument("place", type=Path, metavar="DIR", help="a run directory, or a memory file")
_IDS = argument("ids", type=int, metavar="ID", nargs="+", help="ids of tips, as `memory list` prints them")
_NAMESPACE = argument("--namespace", metavar="TASK", help="only the tips of this task")


def _list(args: Namespace) -> None:
    from trailnotes.memory.exchange import list_tips, open_store

    few_letters = not (sys.stdout.encoding or "").lower().startswith("utf")
    with open_store(args.place) as store:
        for tip in list_tips(store, args.namespace, limit=args.limit, by=args.by, retired=args.retired):
            mark = store.load_retirements(tip.id).get(tip.id or 0) if args.retired else None
            if args.json:
                why = {"retirement": mark._asdict()} if mark else {}
                print(json.dumps(asdict(tip) | why, ensure_ascii=few_letters))
            else:
                (readers,) = store.load_reader_stats(tip.id).values() if args.by == "worth" else (None,)
                worth = f"worth {readers.worth:+.2f}  " if readers else ""
                print(_format_tip(tip, worth + (f"{_format_retirement(mark)}  " if mark else "")))


def _show(args: Namespace) -> None:
    from trailnotes.memory.exchange import open_store, require_tip

    with open_store(args.place) as store:
        tip, written = require_tip(store, args.id), store.sequence
        (readers,) = store.load_reader_stats(args.id).values()
        mark, joined = store.load_retirements(args.id).get(args.id), store.find_merged_tips(args.id)
    for name, value in asdict(tip).items():
        print(escape_unprintable(f"{name:<10} {value}"))
    if readers.shown:
        mean = readers.earned / readers.shown
        print(f"{'readers':<10} {readers.shown} episodes, which earned {mean:.2g} of 1 on average")
        print(f"{'last read':<10} at write {readers.used} of {written}")
    if readers.compared:
        gain = readers.gained / readers.compared
        print(f"{'gain':<10} {gain:+.2g}, mean of {readers.compared} readers less members that did not read it")
    if readers.measured:
        lead = f"{readers.tip_free_ratio:.2g} as often without tips as with them ({readers.lead:+.2g} nats)"
        print(f"{'anyway':<10} what {readers.measured} readers who did well did: {lead}")
    if mark is not None:
        when = f"at write {mark.write} of {written}{f' on {mark.on}' * bool(mark.on)}"
        print(f"{'retired':<10} {_format_retirement(mark)}, {when}")
    if joined:
        print(f"{'merged':<10} with it: tip {', tip '.join(map(str, joined))}")
    print("".join(f"{'read by':<10} {line}\n" for line in _iter_episode_lines(args.place, tip)), end="")


def _format_retirement(mark: Retirement) -> str:
    return escape_unprintable(f"{mark.rule} ({mark.by})")


def _iter_episode_lines(place: Path, tip: Tip) -> Iterator[str]:
    """A line for each episode of the run that was shown `tip` with its present text."""
    from trailnotes.runs.directory import TRAJECTORIES
    from trailnotes.storage.files import read_jsonl

    for record in read_jsonl((place if place.is_dir() else place.parent) / TRAJECTORIES):
        shown = [each for step in record["steps"] for each in step["tips"]]
        if any((each.get("id"), each["text"]) == (tip.id, tip.text) for each in shown):
            won = "success" if record["success"] else "no success"
            episode = f"{record['task']['id']}, member {record['member']}"
            line = f"iteration {record['iteration']}: {episode}: {won}, {record['score']:g}/{record['max_score']:g}"
            yield escape_unprintable(line)


def _search(args: Namespace) -> None:
    from trailnotes.memory.exchange import open_store, search_tips

    with open_store(args.place) as store:
        found = search_tips(store, args.namespace, args.query, args.top_k, scope=args.scope, embedder=args.embedder)
    for tip, similarity in found:
        print(_format_tip(tip, f"similarity {similarity:.3f}  "))
    if not found:
        print(f"all tips of {args.namespace} are off or retired: `trailnotes memory enable` lets them be found")


def _stats(args: Namespace) -> None:
    from trailnotes.memory.exchange import open_store

    with open_store(args.place) as store:
        for name, value in store.stats().items():
            print(f"{name:<12} {value:.0f}")
        for namespace, count in store.count_by_namespace().items():
            print(escape_unprintable(f"  {count:>6} {namespace}"))


def _export(args: Namespace) -> None:
    from trailnotes.memory.exchange import export_tips, open_store

    with open_store(args.place) as store:
        print(f"{export_tips(store, args.file, args.namespace)} tips written to {args.file}")


def _import(args: Namespace) -> None:
    from trailnotes.memory.exchange import import_tips, open_store
    from trailnotes.runs.console import ProgressBar

    settings, bars = load_memory_settings(args.place, args.embedder), list[ProgressBar]()
    with open_store(args.place) as store, ExitStack() as stack:

        def show(done: int, total: int) -> None:
            if not bars and done < total:  # no bar where one batch holds all
                bars.append(stack.enter_context(ProgressBar(total, "importing tips")))
            for bar in bars:
                bar.update(done, label=f"{done:,}/{total:,}")

        before = store.load_retirements()
        result = import_tips(store, args.file, enable=args.enable, config=settings, progress=show)
        gone = len(store.load_retirements().keys() - before.keys())
    state = "enabled" if args.enable else "off until `trailnotes memory enable`"
    print(f"{result.added} tips imported ({state}), {result.known} were known")
    if gone:
        why = f"memory.capacity = {settings.capacity}"
        print(f"{gone} tips were retired to make room ({why}): `memory list --retired`")


def _add(args: Namespace) -> None:
    from trailnotes.memory.exchange import add_tip, open_store

    with open_store(args.place) as store:
        first, settings = (
            args.namespace not in store.count_by_namespace(),
            load_memory_settings(args.place, args.embedder),
        )
        tip = add_tip(
            store, args.namespace, args.text, key=args.key, score=args.score, enabled=not args.off, config=settings
        )
    print(_format_tip(tip))
    if first:
        print(f"it is the first tip of {args.namespace}: check the name, under another one no task will find it")


def _edit(args: Namespace) -> None:
    from trailnotes.memory.exchange import edit_tip, open_store

    with open_store(args.place) as store:
        print(_format_tip(edit_tip(store, args.id, args.text, score=args.score)))


def _delete(args: Namespace) -> None:
    from trailnotes.memory.exchange import delete_tips, open_store

    with open_store(args.place) as store:
        print(f"{delete_tips(store, args.ids)} tips deleted")


def _enable(args: Namespace) -> None:
    from trailnotes.memory.exchange import enable_all, enable_tips, open_store
    from trailnotes.memory.tips import find_over_capacity

    if bool(args.ids) == args.all:
        raise ConfigError("name the tips: give either IDs or --all")
    with open_store(args.place) as store:
        on = not args.off
        changed = enable_all(store, enabled=on) if args.all else enable_tips(store, args.ids, enabled=on)
        print(f"{changed} tips {'enabled' if on else 'disabled'}")
        if on:
            named = [tip.namespace for tip_id in args.ids if (tip := store.get_tip(tip_id))]
            with suppress(RunError):  # of settings that cannot be read; the tips are on all the same
                settings, names = load_memory_settings(args.place), store.sizes() if args.all else dict.fromkeys(named)
                if excess := sum(excess for _, excess in find_over_capacity(store, names, settings)):
                    print(
                        f"that is {excess} more than memory.capacity = {settings.capacity} lets be on: when the run "
                        f"writes more, as many are retired (memory.retire = {settings.retire})"
                    )


def _format_tip(tip: Tip, measured: str = "") -> str:
    marks = "".join([" imported" * tip.imported, " off" * (not tip.enabled), f" x{tip.support}" * (tip.support > 1)])
    return escape_unprintable(
        f"{tip.id or 0:>6}  {measured}{tip.score:g}/{tip.max_score:g}  {tip.namespace}{marks}  {tip.text}"
    )


COMMANDS = (
    Command(
        name="memory list", summary="the tips, newest first or by what they did",
        about="Print the tips of a run, the newest first, or as --by says: id, score of the episode, task, marks, "
        "text. The worth of a tip is what its readers gained over members of their group that did not read it, as if "
        "one more reader had gained nothing.",
        example="trailnotes memory list runs/smoke --limit 20", run=_list,
        arguments=(
            _PLACE, _NAMESPACE,
            argument("--limit", type=int, metavar="N", default=0, help="at most this many; 0, the default, means all"),
            argument("--by", choices=("recency", "score", "shown", "worth"), default="recency",
                help="what comes first: the newest, the best score, most readers, or those that helped their readers "
                "most"),
            argument("--retired", action="store_true",
                help="instead those that are searched no more, since they had to make room (memory.retire) or the "
                "policy knows them by heart (memory.distilled), and why; `memory enable` brings them back"),
            argument("--json", action="store_true", help="one JSON object a line, with all fields"),
        ),
    ),
    Command(
        name="memory show", summary="one tip with its author and its worth",
        about="Print every field of one tip: text, task, retrieval key, score, and the model, version and run that "
        "wrote it; how its readers fared, against members of their group that did not read it; how often the policy "
        "does without tips what they did; why it was retired, if it was; and the episodes of the run that read it.",
        example="trailnotes memory show runs/smoke 1", run=_show,
        arguments=(_PLACE, argument("id", type=int, metavar="ID", help="id of a tip")),
    ),
    Command(
        name="memory search", summary="search the tips of a task",
        about="Print the tips of a task that are most similar to a text, by the embedder of the memory: id, cosine "
        "similarity, score of the episode, task, marks, text. A run takes those above its `memory.threshold`, by its "
        "`memory.order`.",
        example="trailnotes memory search runs/smoke waymarks/route/amber/train-0 'which way from the hall' --top-k 3",
        run=_search,
        arguments=(
            _PLACE,
            argument("namespace", metavar="TASK", help="id of the task whose tips are searched"),
            argument("query", metavar="TEXT", help="what to search for"),
            argument("--top-k", type=int, metavar="K", default=10, help="at most this many tips (10)"),
            argument("--scope", choices=("task", "family", "env", "all"), default="task",
                help="whose tips: the task's own, or as a run with this memory.scope finds them"),
            EMBEDDER_ARGUMENT,
        ),
    ),
    Command(
        name="memory stats", summary="how many tips there are",
        about="Print counts of tips, and the number of tips of each task.",
        example="trailnotes memory stats runs/smoke", run=_stats,
        arguments=(_PLACE,),
    ),
    Command(
        name="memory export", summary="write tips to a JSONL file",
        about="Write tips to a file that people and other programs can read, one JSON object a line behind a header: "
        "docs/tip-format.md names the fields.",
        example="trailnotes memory export runs/smoke tips.jsonl", run=_export,
        arguments=(
            _PLACE,
            argument("file", type=Path, metavar="FILE", help="the file to write or replace"),
            _NAMESPACE,
        ),
    ),
    Command(
        name="memory import", summary="take in tips from a file or another run",
        about="Add exported tips, or those of another run. They are marked as imported, and stay "
        "off until they are enabled, since a tip tells the agent what to do.",
        example="trailnotes memory import runs/smoke tips.jsonl", run=_import,
        arguments=(
            _PLACE,
            argument("file", type=Path, metavar="FILE",
                help="one tip a line, as `memory export` writes them; or a memory file, or a run directory"),
            argument("--enable", action="store_true", help="let them be retrieved at once"),
            EMBEDDER_ARGUMENT,
        ),
    ),
    Command(
        name="memory add", summary="write a tip yourself",
        about="Add a tip of your own. It is marked as imported, like all that the run did not write itself, and shown "
        "from now on.",
        example="trailnotes memory add runs/smoke 'turn left at the well' --task waymarks/route/amber/train-0",
        run=_add,
        arguments=(
            _PLACE,
            argument("text", metavar="TEXT", help="what the agent should know"),
            argument("--task", "--namespace", dest="namespace", metavar="TASK", required=True,
                help="the task it belongs to"),
            argument("--score", type=float, metavar="X",
                help="its worth as the score of an episode; by default that of the best tip of the task, or 1"),
            argument("--key", metavar="TEXT",
                help="what it is found by, such as an observation; by default its own text"),
            argument("--off", action="store_true", help="do not show it yet"),
            EMBEDDER_ARGUMENT,
        ),
    ),
    Command(
        name="memory edit", summary="replace the text of a tip, or its score",
        about="Replace the text of a tip, its score, or both; it is found in the same places as before. Tips are "
        "shown in the order of their score first, so a corrected one wants the score that it deserves now.",
        example="trailnotes memory edit runs/smoke 1 'the red door needs the brass key' --score 1", run=_edit,
        arguments=(
            _PLACE,
            argument("id", type=int, metavar="ID", help="id of a tip"),
            argument("text", metavar="TEXT", nargs="?", help="the new text"),
            argument("--score", type=float, metavar="X", help="the new score; above the highest it becomes that"),
        ),
    ),
    Command(
        name="memory delete", summary="delete tips",
        about="Delete tips for good: all of those named, or none if one of them does not exist. The agent may write "
        "the same text again; `memory enable --off` keeps a text from being shown if it is written again.",
        example="trailnotes memory delete runs/smoke 1 2", run=_delete,
        arguments=(_PLACE, _IDS),
    ),
    Command(
        name="memory enable", summary="let tips be retrieved, or not",
        about="Switch tips on, for example imported ones after reading them; or off, without deleting them. A retired "
        "tip that is named comes back as the newest; --all leaves those that are retired. Nothing is retired for it, "
        "since a switch changes the tips that it names and no others: what is more than memory.capacity goes when the "
        "run writes again.",
        example="trailnotes memory enable runs/smoke --all", run=_enable,
        arguments=(
            _PLACE,
            argument("ids", type=int, metavar="ID", nargs="*", help="ids of tips, as `memory list` prints them"),
            argument("--all", action="store_true", help="all tips that are not retired, instead of IDs"),
            argument("--off", action="store_true", help="switch off instead of on"),
        ),
    ),
    *sharing.COMMANDS,
)  # fmt: skip

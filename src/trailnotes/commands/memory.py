"""The commands on a memory of tips: make, list, search, edit, delete, import, export and serve."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError, require_extra
from trailnotes.reporting.terminal import escape_unprintable
from trailnotes.types import Tip

if TYPE_CHECKING:
    from trailnotes.config.schema import MemoryConfig
    from trailnotes.memory.store import TipStore

TOKEN_VARIABLE = "TRAILNOTES_MCP_TOKEN"  # noqa: S105 (the variable that holds one)
EMBEDDER_ARGUMENT = argument(
    "--embedder", metavar="NAME", default="",
    help="embedder of the memory, needed unless that is hashing or minilm: a model that you trust, or "
    "openai:NAME@URL with the key in TRAILNOTES_EMBEDDER_KEY; OPENAI_BASE_URL may give the URL of openai:NAME",
)  # fmt: skip
_PLACE = argument("place", type=Path, metavar="DIR", help="a run directory, or a memory file")
_ID = argument("id", type=int, metavar="ID", help="id of a tip")
_IDS_HELP = "ids of tips, as `memory list` prints them"
_NAMESPACE = argument("--namespace", metavar="TASK", help="only the tips of this task")


def _opened(act: Callable[[TipStore, Namespace], None]) -> Callable[[Namespace], None]:
    """Make a command of a function that gets the open memory of `args.place`."""

    @wraps(act)
    def run(args: Namespace) -> None:
        from trailnotes.memory.exchange import open_store

        with open_store(args.place) as store:
            act(store, args)

    return run


@_opened
def _list(store: TipStore, args: Namespace) -> None:
    from trailnotes.memory.exchange import list_tips

    few_letters = not (sys.stdout.encoding or "").lower().startswith("utf")
    tips = list_tips(store, args.namespace, limit=args.limit, by=args.by, retired=args.retired)
    if tips and not args.json:
        print("    id  " + "worth  " * (args.by == "worth") + "reason  " * args.retired + "score  task and marks  text")
    for tip in tips:
        mark = store.load_retirements(tip.id).get(tip.id or 0) if args.retired else None
        if args.json:
            why = {"retirement": mark._asdict()} if mark else {}
            print(json.dumps(asdict(tip) | why, ensure_ascii=few_letters))
            continue
        measured = f"{mark.rule} ({mark.by})  " if mark else ""
        if args.by == "worth":
            (readers,) = store.load_reader_stats(tip.id).values()
            measured = f"{readers.worth:+.2f}  {measured}"
        print(_format_tip(tip, measured))


@_opened
def _show(store: TipStore, args: Namespace) -> None:
    from trailnotes.memory.exchange import require_tip

    tip = require_tip(store, args.id)
    (readers,) = store.load_reader_stats(args.id).values()
    lines = [*asdict(tip).items()]
    if readers.shown:
        mean, last = readers.earned / readers.shown, f"the last at write {readers.used} of {store.sequence}"
        lines.append(("readers", f"{readers.shown} episodes, which earned {mean:.2g} of 1 on average, {last}"))
    if readers.compared:
        gain = readers.gained / readers.compared
        lines.append(("gain", f"{gain:+.2g}, mean of {readers.compared} readers less members that did not read it"))
    if readers.measured:
        lead = f"{readers.tip_free_ratio:.2g} as often without tips as with them ({readers.lead:+.2g} nats)"
        lines.append(("anyway", f"what {readers.measured} readers who did well did: {lead}"))
    if mark := store.load_retirements(args.id).get(args.id):
        lines.append(("retired", f"{mark.rule} ({mark.by}), at write {mark.write} of {store.sequence} {mark.on}"))
    lines += [("read by", line) for line in _iter_episode_lines(args.place, tip)]
    for name, text in lines:
        print(escape_unprintable(f"{name:<10} {text}"))


def _iter_episode_lines(place: Path, tip: Tip) -> Iterator[str]:
    """A line for each episode of the run that read `tip` with its present text."""
    from trailnotes.runs.directory import TRAJECTORIES
    from trailnotes.storage.files import read_jsonl

    for record in read_jsonl((place if place.is_dir() else place.parent) / TRAJECTORIES):
        read = [each for step in record["steps"] for each in step["tips"]]
        if any((each.get("id"), each["text"]) == (tip.id, tip.text) for each in read):
            won = "success" if record["success"] else "no success"
            episode = f"{record['task']['id']}, member {record['member']}"
            yield f"iteration {record['iteration']}: {episode}: {won}, {record['score']:g}/{record['max_score']:g}"


@_opened
def _search(store: TipStore, args: Namespace) -> None:
    from trailnotes.memory.exchange import search_tips

    hits = search_tips(store, args.namespace, args.query, args.top_k, scope=args.scope, embedder=args.embedder)
    for tip, similarity in hits:
        print(_format_tip(tip, f"similarity {similarity:.3f}  "))
    if not hits:
        print(f"all tips of {args.namespace} are off or retired: `trailnotes memory enable` lets searches return them")


@_opened
def _stats(store: TipStore, _args: Namespace) -> None:
    for name, value in store.stats().items():
        print(f"{name:<12} {value:.0f}")
    for namespace, count in store.count_by_namespace().items():
        print(escape_unprintable(f"  {count:>6} {namespace}"))


@_opened
def _export(store: TipStore, args: Namespace) -> None:
    from trailnotes.memory.exchange import export_tips

    print(f"{export_tips(store, args.file, args.namespace)} tips written to {args.file}")


@_opened
def _import(store: TipStore, args: Namespace) -> None:
    from trailnotes.memory.exchange import import_tips

    settings = _load_run_settings(args.place).with_embedder(args.embedder)
    before = store.load_retirements()
    result = import_tips(store, args.file, enable=args.enable, config=settings)
    state = " (enabled)" if args.enable else " (off until `trailnotes memory enable`)"
    hint = "; known tips stay as they are: `trailnotes memory enable` switches them on" if result.known else ""
    print(f"{result.added} tips imported{state if result.added else ''}, {result.known} were known{hint}")
    if gone := len(store.load_retirements().keys() - before.keys()):
        why = f"memory.capacity = {settings.capacity}"
        print(f"{gone} tips were retired to make room ({why}): `memory list --retired`")


@_opened
def _add(store: TipStore, args: Namespace) -> None:
    from trailnotes.memory.exchange import add_tip

    settings = _load_run_settings(args.place).with_embedder(args.embedder)
    is_first = args.namespace not in store.count_by_namespace()
    added = {"key": args.key, "score": args.score, "enabled": not args.off}
    print(_format_tip(add_tip(store, args.namespace, args.text, config=settings, **added)))
    if is_first:
        print(f"it is the first tip of {args.namespace}: check the name, under another one no task will find it")


@_opened
def _edit(store: TipStore, args: Namespace) -> None:
    from trailnotes.memory.exchange import edit_tip

    print(_format_tip(edit_tip(store, args.id, args.text, score=args.score)))


@_opened
def _delete(store: TipStore, args: Namespace) -> None:
    from trailnotes.memory.exchange import delete_namespace, delete_tips, require_namespace

    if bool(args.ids) == (args.namespace is not None):
        raise ConfigError("name the tips: give either IDs or --namespace")
    if args.namespace is not None and args.namespace not in {tip.namespace for tip in store.load_tips(args.namespace)}:
        require_namespace(store, args.namespace)
    deleted = delete_tips(store, args.ids) if args.ids else delete_namespace(store, args.namespace)
    print(f"{deleted} tips deleted")


@_opened
def _enable(store: TipStore, args: Namespace) -> None:
    from trailnotes.memory.exchange import enable_tips

    if bool(args.ids) == args.all:
        raise ConfigError("name the tips: give either IDs or --all")
    on = not args.off
    changed = store.enable_all(enabled=on) if args.all else enable_tips(store, args.ids, enabled=on)
    print(f"{changed} tips {'enabled' if on else 'disabled'}")


def _format_tip(tip: Tip, measured: str = "") -> str:
    marks = {"imported": tip.imported, "off": not tip.enabled, f"x{tip.support}": tip.support > 1}
    about = " ".join([tip.namespace, *(mark for mark, applies in marks.items() if applies)])
    return escape_unprintable(f"{tip.id or 0:>6}  {measured}{tip.score:g}/{tip.max_score:g}  {about}  {tip.text}")


def _load_run_settings(place: Path) -> MemoryConfig:
    """Read the memory settings of the run that a memory belongs to, or the default ones."""
    from trailnotes.config.schema import MemoryConfig
    from trailnotes.runs.directory import load_run_config

    run = place if place.is_dir() else place.parent
    return load_run_config(run).memory if (run / "config.toml").is_file() else MemoryConfig()


def _new(args: Namespace) -> None:
    from trailnotes.memory.exchange import create_store

    create_store(args.file, args.embedder).close()
    print(f"{args.file} is there, without tips, for vectors of {args.embedder}")


def _serve(args: Namespace) -> None:
    require_extra("mcp", "the protocol")
    if args.off and not args.write:
        raise ConfigError("--off is about what is added: give --write, too, or leave it out")
    from trailnotes.memory.exchange import open_store
    from trailnotes.memory.mcp import AccessRules, Toolbox, make_app, make_server
    from trailnotes.memory.retrieval import load_file_embedder
    from trailnotes.memory.schema import EmbedderIdentity
    from trailnotes.memory.tipfile import resolve_memory_file
    from trailnotes.memory.tips import TipMemory
    from trailnotes.runs.loop import run_to_end
    from trailnotes.runs.signals import run_until_signal
    from trailnotes.web.serving import format_url, open_listener, serve

    run_settings, new = _load_run_settings(args.place), None
    settings = run_settings.with_embedder(args.embedder)
    if args.write and not resolve_memory_file(args.place).exists():
        new = load_file_embedder(run_settings.embedder, settings.embedder)
    with open_store(args.place, EmbedderIdentity(new.name, new.dim) if new else None) as store:
        rules = AccessRules(write=args.write, namespace=args.namespace, enabled=not args.off,
                            capacity=settings.capacity, scope=settings.scope)  # fmt: skip
        embedder = new or load_file_embedder(store.identity.name, args.embedder)
        # A task that is full takes no more by the rules; the memory itself would let the oldest go.
        own = settings.model_copy(update={"scope": "task", "capacity": sys.maxsize})
        toolbox = Toolbox(TipMemory(store, embedder, own), rules)
        if args.port is None:
            try:
                run_to_end(run_until_signal(make_server(toolbox).run_stdio_async()))
            except KeyboardInterrupt as stop:  # a thread reads standard input, and would be waited for
                store.close()
                os._exit(128 + getattr(stop, "number", signal.SIGINT))
            return
        given = os.environ.get(TOKEN_VARIABLE, "").strip()
        token = given or secrets.token_urlsafe(18)
        credential = f"the token in {TOKEN_VARIABLE}" if given else f"Authorization: Bearer {token}"
        with open_listener("127.0.0.1", args.port) as listener:
            ready = f"ready: {format_url(listener)}/mcp with {credential}"
            serve(make_app(toolbox, token), listener, lambda: print(ready, flush=True), lifespan=True)


COMMANDS = (
    Command(
        name="memory list", summary="list tips by age, score, readers or worth",
        about="Print id, score of the episode, task, marks and text of each tip, the newest first unless --by names "
        "another order. The worth of a tip is the mean gain of its readers over members of their group that did not "
        "read it, with one more reader of gain 0.",
        example="trailnotes memory list runs/smoke --limit 20", run=_list,
        arguments=(
            _PLACE, _NAMESPACE,
            argument("--limit", type=int, metavar="N", default=0, help="at most this many (default 0: all)"),
            argument("--by", choices=("recency", "score", "shown", "worth"), default="recency",
                help="order: newest, best score, most readers, or highest worth first"),
            argument("--retired", action="store_true",
                help="list retired tips instead, with the reason: evicted (memory.retire), or no longer needed by the "
                "policy (memory.distilled); `memory enable` restores them"),
            argument("--json", action="store_true", help="one JSON object a line, with all fields"),
        ),
    ),
    Command(
        name="memory show", summary="show one tip with its author, readers and worth",
        about="Print every field of one tip: text, task, retrieval key and score; the model, version and run that "
        "wrote it; the results of its readers against members of their group that did not read it; how likely the "
        "policy repeats its readers' actions without tips; why it was retired, if so; and the episodes that read it.",
        example="trailnotes memory show runs/smoke 1", run=_show,
        arguments=(_PLACE, _ID),
    ),
    Command(
        name="memory search", summary="search the tips of a task",
        about="Print id, cosine similarity, score of the episode, task, marks and text of the enabled tips that are "
        "most similar to a text (`memory list` shows those that are off), by the embedder of the memory. A run keeps "
        "those above its `memory.threshold` and sorts them by its `memory.order`.",
        example="trailnotes memory search runs/smoke waymarks/route/amber/train-0 'which way from the hall' --top-k 3",
        run=_search,
        arguments=(
            _PLACE,
            argument("namespace", metavar="TASK", help="id of the task whose tips are searched"),
            argument("query", metavar="TEXT", help="what to search for"),
            argument("--top-k", type=int, metavar="K", default=10, help="at most this many tips (10)"),
            argument("--scope", choices=("task", "family", "env", "all"), default="task",
                help="search the task's own tips, or those that a run with this memory.scope finds"),
            EMBEDDER_ARGUMENT,
        ),
    ),
    Command(
        name="memory stats", summary="count tips",
        about="Print counts of tips, and the number of tips of each task.",
        example="trailnotes memory stats runs/smoke", run=_stats, arguments=(_PLACE,),
    ),
    Command(
        name="memory export", summary="write tips to a JSONL file",
        about="Write tips to a file that people and other programs can read, one JSON object a line behind a header: "
        "docs/tip-format.md names the fields.",
        example="trailnotes memory export runs/smoke tips.jsonl", run=_export,
        arguments=(
            _PLACE,
            argument("file", type=Path, metavar="FILE", help="the file to write or replace; must not be a memory file"),
            _NAMESPACE,
        ),
    ),
    Command(
        name="memory import", summary="add tips from a file or another run, disabled",
        about="Add exported tips, or those of another run. They are marked as imported, and "
        "disabled until you enable them, since a tip tells the agent what to do.",
        example="trailnotes memory import runs/smoke tips.jsonl", run=_import,
        arguments=(
            _PLACE,
            argument("file", type=Path, metavar="FILE",
                help="one tip a line, as `memory export` writes them; or a memory file, or a run directory"),
            argument("--enable", action="store_true", help="enable them at once"),
            EMBEDDER_ARGUMENT,
        ),
    ),
    Command(
        name="memory add", summary="write a tip yourself",
        about="Add a tip of your own. It is marked as imported, as are all tips that the run did not write, and "
        "enabled unless you say --off.",
        example="trailnotes memory add runs/smoke 'turn left at the well' --task waymarks/route/amber/train-0",
        run=_add,
        arguments=(
            _PLACE,
            argument("text", metavar="TEXT", help="what the agent should know"),
            argument("--task", "--namespace", dest="namespace", metavar="TASK", required=True,
                help="the task it belongs to"),
            argument("--score", type=float, metavar="X",
                help="its score (default: that of the best tip of the task, or 1)"),
            argument("--key", metavar="TEXT",
                help="text that searches match, such as an observation (default: its own text)"),
            argument("--off", action="store_true", help="disable it for now"),
            EMBEDDER_ARGUMENT,
        ),
    ),
    Command(
        name="memory edit", summary="replace the text of a tip, or its score",
        about="Replace the text of a tip, its score, or both. Searches still find it by the same key. Of tips "
        "with equal gain agents see the highest score first, so give a corrected tip the score that it deserves.",
        example="trailnotes memory edit runs/smoke 1 'the red door needs the brass key' --score 1", run=_edit,
        arguments=(
            _PLACE,
            _ID, argument("text", metavar="TEXT", nargs="?", help="the new text"),
            argument("--score", type=float, metavar="X", help="the new score; raises the highest score if above it"),
        ),
    ),
    Command(
        name="memory delete", summary="delete tips",
        about="Delete the named tips, or all of a task, for good; none of them if one does not exist. The agent "
        "may write the same text again; `memory enable --off` keeps a text disabled even then.",
        example="trailnotes memory delete runs/smoke 1 2", run=_delete,
        arguments=(
            _PLACE,
            argument("ids", type=int, metavar="ID", nargs="*", help=_IDS_HELP),
            argument("--namespace", metavar="TASK", help="all tips of this task, in place of IDs"),
        ),
    ),
    Command(
        name="memory enable", summary="enable or disable tips",
        about="Enable tips, for example imported ones after you have read them; or disable them, without deleting. A "
        "retired tip that you name becomes the newest one; --all skips retired tips. The command changes only the "
        "tips that you name: above memory.capacity, the run evicts tips when it writes again.",
        example="trailnotes memory enable runs/smoke --all", run=_enable,
        arguments=(
            _PLACE,
            argument("ids", type=int, metavar="ID", nargs="*", help=_IDS_HELP),
            argument("--all", action="store_true", help="all tips that are not retired, in place of IDs"),
            argument("--off", action="store_true", help="disable instead"),
        ),
    ),
    Command(
        name="memory new", summary="create an empty memory file",
        about="Create a memory file without tips, for `memory add`, `import` and `serve` to fill.",
        example="trailnotes memory new runs/tips.db", run=_new,
        arguments=(
            argument("file", type=Path, metavar="FILE", help="the memory file to create, which must not exist"),
            argument("--embedder", metavar="NAME", default="hashing", help="the embedder of its vectors (hashing)"),
        ),
    ),
    Command(
        name="memory serve", summary="serve a memory to any agent over MCP",
        about="Serve a memory by the Model Context Protocol. Any agent that speaks it can list tasks, search tips and "
        "read them, and with --write add tips, which are marked with its name. The server uses standard input and "
        "output, as agents start it; with --port it uses streamable HTTP on this machine, for clients that send the "
        f"printed token (or the one in {TOKEN_VARIABLE}). It never returns disabled tips. Needs the extra `mcp`.",
        example="trailnotes memory serve runs/smoke --write", run=_serve,
        arguments=(
            argument("place", type=Path, metavar="DIR",
                help="a run directory, or a memory file, which --write creates if it is missing"),
            argument("--write", action="store_true", help="let agents add tips"),
            argument("--off", action="store_true", help="added tips stay disabled until `memory enable`"),
            argument("--namespace", metavar="TASK", help="only the tips of this task"),
            argument("--port", type=int, metavar="N", help="serve over HTTP at this port; 0 takes a free one"),
            EMBEDDER_ARGUMENT,
        ),
    ),
)  # fmt: skip

"""The commands that make and share a memory: new, serve."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError, MissingExtraError, find_missing_module, format_install_command

if TYPE_CHECKING:
    from argparse import Namespace

    from trailnotes.config.memory_schema import MemoryConfig

TOKEN_VARIABLE = "TRAILNOTES_MCP_TOKEN"  # noqa: S105 (the variable that holds one)
EMBEDDER_ARGUMENT = argument(
    "--embedder", metavar="NAME", default="",
    help="embedder of the memory, needed unless that is hashing or minilm: a model that you trust, or "
    "openai:NAME@URL with the key in TRAILNOTES_EMBEDDER_KEY; OPENAI_BASE_URL may give the URL of openai:NAME",
)  # fmt: skip


def load_memory_settings(place: Path, embedder: str = "") -> MemoryConfig:
    """Read the memory settings of the run that a memory belongs to, or the default ones.

    `embedder` is the one that the user names (`MemoryConfig.with_embedder`).
    """
    return _load_run_settings(place).with_embedder(embedder)


def _load_run_settings(place: Path) -> MemoryConfig:
    from trailnotes.config.memory_schema import MemoryConfig
    from trailnotes.runs.directory import load_run_config

    run = place if place.is_dir() else place.parent
    return load_run_config(run).memory if (run / "config.toml").is_file() else MemoryConfig()


def _new(args: Namespace) -> None:
    from trailnotes.memory.exchange import create_store

    create_store(args.file, args.embedder).close()
    print(f"{args.file} is there, without tips, for vectors of {args.embedder}")


def _serve(args: Namespace) -> None:
    if package := find_missing_module("mcp"):
        raise MissingExtraError(f"the protocol needs the package {package}: {format_install_command('mcp')}")
    if args.off and not args.write:
        raise ConfigError("--off is about what is added: give --write, too, or leave it out")
    from trailnotes.config.memory_schema import MemoryConfig
    from trailnotes.memory.exchange import open_store
    from trailnotes.memory.mcp import AccessRules, Toolbox, make_app, make_server
    from trailnotes.memory.retrieval import load_file_embedder
    from trailnotes.memory.schema import EmbedderIdentity
    from trailnotes.memory.tipfile import resolve_memory_file
    from trailnotes.memory.tips import TipMemory
    from trailnotes.web.serving import format_url, open_listener, serve

    settings, new = load_memory_settings(args.place, args.embedder), None
    if args.write and not resolve_memory_file(args.place).exists():
        new = load_file_embedder(_load_run_settings(args.place).embedder, settings.embedder)
    with open_store(args.place, EmbedderIdentity(new.name, new.dim) if new else None) as store:
        rules = AccessRules(
            write=args.write, namespace=args.namespace, enabled=not args.off,
            capacity=settings.capacity, scope=settings.scope,
        )  # fmt: skip
        # A task that is full takes no more by the rules; the memory itself would let the oldest go.
        unbound = MemoryConfig(threshold=-1, capacity=sys.maxsize)
        embedder = new or load_file_embedder(store.identity.name, args.embedder)
        toolbox = Toolbox(TipMemory(store, embedder, unbound), rules)
        if args.port is None:
            make_server(toolbox).run()
            return
        given = os.environ.get(TOKEN_VARIABLE, "").strip()
        token = given or secrets.token_urlsafe(18)
        credential = f"the token in {TOKEN_VARIABLE}" if given else f"Authorization: Bearer {token}"
        with open_listener("127.0.0.1", args.port) as listener:
            ready = f"ready: {format_url(listener)}/mcp with {credential}"
            serve(make_app(toolbox, token), listener, lambda: print(ready, flush=True), lifespan=True)


COMMANDS = (
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

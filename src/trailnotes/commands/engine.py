"""`trailnotes engine`: engines for runs on other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trailnotes.commands.arguments import CONFIG
from trailnotes.commands.command import Command, argument
from trailnotes.web.loopback import LOOPBACK

if TYPE_CHECKING:
    from argparse import Namespace

PORT = 7465


def _serve(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes.policies.vllm.building import serve_engine

    config = load_config(args.config, args.settings)
    serve_engine(config, args.host, args.port, say=lambda address: print(f"ready: tcp://{address}", flush=True))


COMMANDS = (
    Command(
        name="engine serve", summary="serve a vLLM engine to a run on another machine",
        about="Start the model of the config in vLLM, and let one run at a time use it: name its address in "
        "engine.urls there. The run sends its weights, so model.path here only gives the shape. It listens on this "
        "machine only; to listen beyond it (--host 0.0.0.0), set TRAILNOTES_ENGINE_TOKEN to the same secret on both "
        "sides. The token is never sent, but the rest is not encrypted: use a network that you trust, or a tunnel. An "
        "engine that dies is restarted. Ctrl-C ends the command.",
        example="trailnotes engine serve demo --engine.name vllm", run=_serve,
        arguments=(
            CONFIG,
            argument("--host", metavar="ADDRESS", default=LOOPBACK, help=f"where to listen ({LOOPBACK})"),
            argument("--port", type=int, metavar="N", default=PORT, help=f"port; 0 takes a free one ({PORT})"),
        ),
        settings=True,
    ),
)  # fmt: skip

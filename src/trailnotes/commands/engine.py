"""`trailnotes engine`: engines for runs on other machines."""

from __future__ import annotations

import os
from argparse import Namespace

from trailnotes.commands.arguments import CONFIG
from trailnotes.commands.command import Command, argument
from trailnotes.web.loopback import LOOPBACK

PORT = 7465


def _serve(args: Namespace) -> None:
    from trailnotes.config.toml import load_config
    from trailnotes.policies.vllm.server import build_command

    config = load_config(args.config, args.settings)
    command, variables = build_command(config, ",".join(config.engine.devices[:1]), alone=True)
    print(f"vLLM serves at http://{args.host}:{args.port} once it is ready", flush=True)
    os.execve(command[0], [*command, "--host", args.host, "--port", str(args.port)], variables)  # noqa: S606


COMMANDS = (
    Command(
        name="engine serve", summary="serve a vLLM engine to a run on another machine",
        about="Run vllm serve with the model and options that a run of the config needs. Put the server's address into "
        "engine.urls of that run. One run at a time may use it. The run hands over its weights as files in its run "
        "directory, which this machine must see under the same path. The server listens on this machine only. Beyond "
        "it (--host 0.0.0.0) anyone who reaches the port can load weights and stop the engine without a key: use a "
        "separate network. Ctrl-C ends the command.",
        example="trailnotes engine serve demo --engine.name vllm", run=_serve,
        arguments=(
            CONFIG,
            argument("--host", metavar="ADDRESS", default=LOOPBACK, help=f"where to listen ({LOOPBACK})"),
            argument("--port", type=int, metavar="N", default=PORT, help=f"port ({PORT})"),
        ),
        settings=True,
    ),
)  # fmt: skip

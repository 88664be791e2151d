"""`trailnotes gateway`: the model's address for agents of any make."""

from __future__ import annotations

import contextlib
import os
import signal
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.commands.arguments import CONFIG, load_command_config
from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError, Interrupted, require_extra
from trailnotes.web.loopback import LOOPBACK, PUBLIC_HOST_WARNING

if TYPE_CHECKING:
    from trailnotes.config.schema import Config

PORT = 8100
TOKEN_VARIABLE = "TRAILNOTES_GATEWAY_TOKEN"  # noqa: S105 (its name)


def _run(args: Namespace) -> None:
    require_extra("web", "the gateway")
    if not 0 <= args.plain_share <= 1:
        raise ConfigError(f"--plain-share {args.plain_share:g} must be between 0 and 1")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if args.public and not token:
        raise ConfigError(f"--public lets other machines in: give them a token in {TOKEN_VARIABLE} of the environment")
    from trailnotes.config.methods import TIPS_ONLY_METHOD, resolve_method
    from trailnotes.config.model_schema import OPENAI_PREFIX
    from trailnotes.memory import make_config_embedder, open_memory
    from trailnotes.runs.directory import RunLock
    from trailnotes.runs.load_policy import open_evaluated_model, open_policy
    from trailnotes.runs.loop import run_to_end
    from trailnotes.runs.serving import EPISODES_FILE, OpenGateway, serve_agents
    from trailnotes.web.serving import open_listener

    config = load_command_config(args.model, args.config, args.settings)
    _refuse_settings(config)
    live = {"deterministic": False}  # a deterministic engine waits for all that are open
    config = config.model_copy(update={"run": config.run.model_copy(update=live)})
    with contextlib.ExitStack() as opened:
        refusal = "" if args.public else PUBLIC_HOST_WARNING
        listener = opened.enter_context(open_listener(args.host, args.port, refusal=refusal))
        args.out.mkdir(parents=True, exist_ok=True)
        opened.enter_context(RunLock(args.out / "lock"))  # a second gateway would write over its lines
        subject = opened.enter_context(open_evaluated_model(args.model or config.model.path))
        memory = None
        if config.algorithm.name == TIPS_ONLY_METHOD or resolve_method(config.algorithm.name).shows_tips:
            memory = open_memory(args.out / "memory.db", config.memory, embedder=make_config_embedder(config))
            opened.callback(memory.close)
        policy: Any = opened.enter_context(open_policy(config, subject, args.out))
        if subject.model.startswith(OPENAI_PREFIX):
            run_to_end(policy.endpoint.require_answer())
        gateway = OpenGateway(policy, memory, config, args.out / EPISODES_FILE, args.plain_share)

        def ready(url: str) -> None:
            print(f"ready: {url}\nepisodes{' and tips' if memory else ''} are kept in {args.out}", flush=True)

        try:
            run_to_end(serve_agents(gateway, listener, ready, token=token, public=args.public))
        except Interrupted as stop:
            print("the gateway has ended")
            if stop.number != signal.SIGINT:  # the exit code tells the sender of SIGTERM or SIGHUP
                raise


def _refuse_settings(config: Config) -> None:
    if config.algorithm.author not in {"policy", "extract"}:
        author = config.algorithm.author
        raise ConfigError(f"algorithm.author = {author}: the model of a gateway writes itself: set policy or extract")
    if config.memory.scope == "family":
        raise ConfigError("memory.scope = family: tasks of agents belong to no family: set task, env or all")
    if config.algorithm.show_tips != "own":
        raise ConfigError("algorithm.show_tips is a control of trainings: a gateway shows the memory's tips: set own")


GATEWAY = Command(
    name="gateway", summary="serve the model to agents of any framework",
    about="Serve /v1/chat/completions and /v1/responses in front of the model. An agent begins a session for a task "
    "(trailnotes.session in Python, or the headers x-trailnotes-session and x-trailnotes-task) and reports its score; "
    "the gateway adds tips to its prompts. The memory learns from the reports. To train the agent instead, see "
    "`trailnotes train` with --env.name gateway, and docs/guides/train-your-agent.md.",
    example="trailnotes gateway demo --out runs/gateway", run=_run,
    arguments=(
        CONFIG,
        argument("--model", metavar="MODEL_OR_RUN",
            help="the model that answers: a run, a model directory, a hub name, or openai:NAME (default model.path)"),
        argument("--out", type=Path, metavar="DIR", default=Path("runs/gateway"),
            help="directory of the memory and the episodes (default runs/gateway)"),
        argument("--plain-share", type=float, metavar="SHARE", default=0.1,
            help="sessions without tips, with which readers are compared (default 0.1)"),
        argument("--host", metavar="HOST", default=LOOPBACK, help=f"address to listen at (default {LOOPBACK})"),
        argument("--port", metavar="PORT", type=int, default=PORT, help=f"default {PORT}; 0 takes a free one"),
        argument("--public", action="store_true",
            help=f"let other machines in that know the token in {TOKEN_VARIABLE}"),
    ),
    settings=True,
)  # fmt: skip

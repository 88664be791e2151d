"""`trailnotes models`: the base models that a server of the Tinker API trains."""

from __future__ import annotations

from argparse import Namespace

from trailnotes.commands.command import Command


def _run(args: Namespace) -> None:
    from trailnotes.config.toml import resolve_config
    from trailnotes.web.tinker import TinkerServer

    print("\n".join(TinkerServer(resolve_config(None, args.settings).config.learner).list_models()))


MODELS = Command(
    name="models", summary="list the models that a server of the Tinker API trains",
    about="Print the names of the base models that a server of the Tinker API has, one a line: the hosted service, "
    "with the key in TINKER_API_KEY, or your own, by --learner.url. Each is a --model.path for train.",
    example="trailnotes models --learner.url http://127.0.0.1:8000", run=_run,
    settings=True,
)  # fmt: skip

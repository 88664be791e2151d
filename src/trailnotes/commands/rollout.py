"""`trailnotes rollout`: a few episodes to read."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from trailnotes.commands.arguments import OPTIONAL_CONFIG, load_command_config
from trailnotes.commands.command import Command, argument


def _run(args: Namespace) -> None:
    from trailnotes.reporting.episodes import render_episode
    from trailnotes.reporting.terminal import ProgressBar
    from trailnotes.runs.evaluate import rollout

    config = load_command_config(args.model, args.config, args.settings)
    with ProgressBar(1.0, "rollout") as bar:
        episodes = rollout(config, args.model, out=args.out, progress=bar)
    for episode in episodes:
        print(render_episode(episode))
    if args.out:
        print(f"written to {args.out}")


ROLLOUT = Command(
    name="rollout", summary="play a few episodes and print them",
    about="Play rollout.num_tasks games of the training split once each, and print the conversations, their tips and "
    "their scores.",
    example="trailnotes rollout smoke --rollout.num_tasks 2 --out runs/episodes.jsonl", run=_run,
    arguments=(
        OPTIONAL_CONFIG,
        argument("--model", metavar="MODEL_OR_RUN", help="the model that plays; model.path by default"),
        argument("--out", type=Path, metavar="FILE",
            help="also write the episodes to this file, one JSON object a line"),
    ),
    settings=True,
)  # fmt: skip

"""`trailnotes rollout`: a few episodes to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.arguments import OPTIONAL_CONFIG, load_command_config, print_output_path
from trailnotes.commands.command import Command, argument
from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

    from trailnotes.config.schema import Config
    from trailnotes.types import StrPath, Trajectory


def rollout(config: Config, model_or_run: StrPath | None = None, *, out: StrPath | None = None) -> list[Trajectory]:
    """Play `rollout.num_tasks` tasks of the training split once each; optionally write them as JSONL.

    Raises:
        ConfigError: not one of them could be played.
    """
    from trailnotes.runs.evaluation import evaluate_model
    from trailnotes.runs.load_policy import open_evaluated_model
    from trailnotes.runs.panels import write_episodes

    panel = config.eval.model_copy(update={"split": config.train.split, "num_tasks": config.rollout.num_tasks})
    with open_evaluated_model(model_or_run or config.model.path) as subject:
        episodes = evaluate_model(config.model_copy(update={"eval": panel}), subject).episodes
    if not episodes:
        raise ConfigError("no episode could be played; see the log for the reason")
    if out is not None:
        write_episodes(episodes, Path(out))
    return episodes


def _run(args: Namespace) -> None:
    from trailnotes.reporting.episodes import render_episode

    config = load_command_config(args.model, args.config, args.settings)
    for episode in rollout(config, args.model, out=args.out):
        print(render_episode(episode))
    print_output_path(args.out)


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

"""`trailnotes eval`: evaluation of a policy on a fixed panel."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.arguments import MODEL_OR_RUN, OTHER_CONFIG, load_command_config, print_output_path
from trailnotes.commands.command import Command, argument

if TYPE_CHECKING:
    from argparse import Namespace

    from trailnotes.config.schema import Config
    from trailnotes.runs.console import ProgressBar
    from trailnotes.runs.panels import PanelResult
    from trailnotes.types import StrPath


logger = logging.getLogger(__name__)


def evaluate(
    config: Config,
    model_or_run: StrPath,
    *,
    memory: bool = False,
    out: StrPath | None = None,
    progress: ProgressBar | None = None,
) -> PanelResult:
    """Play the fixed panel of `config.eval`, with or without the run's memory, and report mean and interval.

    With `out` each episode is kept as it ends; the same call after an interruption plays the rest, and writes the same
    files.

    Args:
        config: panel, sampling and environment.
        model_or_run: run directory, checkpoint, model directory or hub name. A run that is being trained keeps the
            checkpoint until the evaluation has ended.
        memory: act with the run's memory.
        out: directory for the files of `write_evaluation`; None writes nothing.
        progress: shows the number of finished episodes.

    Raises:
        ConfigError: memory is asked for where there is none, or no episode could be played.
        RunError: the run has no whole checkpoint yet, or `out` is in use.
    """
    from trailnotes.envs.tasks import describe_training_overlap
    from trailnotes.runs.evaluation import evaluate_model
    from trailnotes.runs.load_policy import open_evaluated_model
    from trailnotes.runs.panels import build_panel_result, write_evaluation

    directory = None if out is None else Path(out)
    if directory is not None and (directory / "table.json").exists():
        logger.warning("%s holds a finished evaluation, which this one replaces", directory)
    with open_evaluated_model(model_or_run) as subject:
        if said := describe_training_overlap(subject.trained, config):
            logger.warning("%s", said)
        played = evaluate_model(config, subject, use_memory=memory, directory=directory, progress=progress)
    result = replace(build_panel_result(played.episodes, config, subject, memory=memory), remark=played.remark)
    if directory is not None:
        write_evaluation(directory, config, subject, played.episodes, result)
    return result


def _run(args: Namespace) -> None:
    from trailnotes.reporting.tables import print_table, print_text
    from trailnotes.runs.console import ProgressBar
    from trailnotes.runs.panels import build_panel_table, format_markdown_table

    config = load_command_config(args.subject, args.config, args.settings)
    with ProgressBar(1.0, "eval") as bar:
        result = evaluate(config, args.subject, memory=args.memory, out=args.out, progress=bar)
    table, _, below = format_markdown_table([result]).partition("\n\n")
    if sys.stdout.isatty():
        print_table("", build_panel_table([result]), ("seeds", "env steps", "metric", "memory"))
    else:
        print(table.rstrip())
    print_text(below.splitlines())
    print_output_path(args.out)


EVAL = Command(
    name="eval", summary="evaluate a model on a fixed panel of games",
    about="Play the fixed panel of games of the config's [eval], and print the mean with its interval. The model acts "
    "without memory unless you say --memory. With --out, the command keeps each episode, and the same command resumes "
    "an interrupted evaluation.",
    example="trailnotes eval runs/smoke --out runs/smoke/eval --eval.num_tasks 4", run=_run,
    arguments=(
        MODEL_OR_RUN, OTHER_CONFIG,
        argument("--memory", action="store_true", help="act with the run's memory"),
        argument("--out", type=Path, metavar="DIR", help="write table.json, table.md and the episodes here"),
    ),
    settings=True,
)  # fmt: skip

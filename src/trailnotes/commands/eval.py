"""`trailnotes eval`: how a policy does on a fixed panel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.arguments import OTHER_CONFIG, SUBJECT, config_of, say_where
from trailnotes.commands.command import Command, argument

if TYPE_CHECKING:
    from argparse import Namespace

    from trailnotes.config.schema import Config
    from trailnotes.runs.panels import PanelResult


def evaluate(
    config: Config, model_or_run: Path | str, *, memory: bool | None = None, out: Path | None = None
) -> PanelResult:
    """Play the fixed panel of `config.eval`, with or without the run's memory, and report mean and interval.

    Args:
        config: panel, sampling and environment.
        model_or_run: run directory, checkpoint, model directory or hub name.
        memory: act with the run's memory; None takes `config.eval.memory`.
        out: directory for what `write_evaluation` writes; None writes nothing.

    Raises:
        ConfigError: memory is asked for where there is none, or nothing could be played.
    """
    from trailnotes.runs.panels import panel_result, play_subject, write_evaluation

    use_memory = config.eval.memory if memory is None else memory
    subject, episodes = play_subject(config, model_or_run, use_memory=use_memory, directory=out)
    result = panel_result(episodes, config, subject, memory=use_memory)
    if out is not None:
        write_evaluation(out, config, subject, episodes, result)
    return result


def _run(args: Namespace) -> None:
    from trailnotes.runs.panels import markdown_table

    config = config_of(args.subject, args.config, args.settings)
    print(markdown_table([evaluate(config, args.subject, memory=args.memory, out=args.out)]), end="")
    say_where(args.out)


EVAL = Command(
    name="eval",
    summary="success on a fixed panel of games",
    about="Play the fixed panel of games of the config's [eval], and print the mean with its interval. Acts without "
    "memory unless asked.",
    example="trailnotes eval runs/smoke --out runs/smoke/eval --eval.num_tasks 4",
    run=_run,
    arguments=(
        SUBJECT,
        OTHER_CONFIG,
        argument("--memory", action="store_true", default=None, help="act with the run's memory"),
        argument("--out", type=Path, metavar="DIR", help="write table.json, table.md and the episodes here"),
    ),
    settings=True,
)

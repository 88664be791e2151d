"""`trailnotes adapt`: a method without weight updates, in a run directory that resumes after a stop."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.commands.arguments import (
    ALLOW_CHANGE,
    MODEL_OR_RUN,
    OTHER_CONFIG,
    load_command_config,
    print_output_path,
)
from trailnotes.commands.command import Command, argument
from trailnotes.config.methods import TIPS_ONLY_METHOD, list_methods, resolve_method
from trailnotes.errors import BudgetError, ConfigError, MissingExtraError
from trailnotes.runs.signals import explain_interrupt

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from trailnotes.config.schema import Config
    from trailnotes.policies.base import Policy
    from trailnotes.runs.adaptation import ResultRow, Roles
    from trailnotes.runs.console import ProgressBar
    from trailnotes.runs.directory import RunDir
    from trailnotes.runs.load_policy import EvaluatedModel
    from trailnotes.runs.panels import PanelResult
    from trailnotes.types import StrPath

logger = logging.getLogger(__name__)
CHANGEABLE_KEYS = ("eval.trials", "run.trackers")
"""What may differ when a run is resumed, besides its surroundings: how long it lasts, and how it is shown."""


def adapt(
    config: Config,
    model_or_run: StrPath,
    *,
    out: StrPath,
    method: str | None = None,
    trials: int | None = None,
    allow_change: Sequence[str] = (),
    progress: ProgressBar | None = None,
) -> list[PanelResult]:
    """Adapt the policy `model_or_run` by `method` on the panel of `config.eval`, trial after trial.

    `out` becomes an ordinary run directory, with the table, the curve over the trials (with matplotlib), and the last
    trial in `out/eval`. The same call continues after a stop, and repeats no finished episode and no answer.

    Args:
        config: the whole configuration.
        model_or_run: run directory, checkpoint, model directory, hub name, "random" or "openai:NAME".
        out: directory of the run; made if it does not exist.
        method: one without weight updates; by default `algorithm.name` where that is one, else "empo2-tips".
        trials: overrides `eval.trials`.
        allow_change: further keys that may differ from the resumed run, except `FIXED_ADAPTATION_KEYS`.
        progress: shows the progress of each phase, and a line when it ends.

    Returns:
        The points of the curve, trial 0 first.

    Raises:
        ConfigError: a setting that cannot work, or no episode could be played.
        MissingExtraError: a package that the settings need is not installed.
        BudgetError: a spending limit was reached; finished episodes are on disk.
        RunError: `out` is in use, damaged, or belongs to another config.
        Interrupted: a `KeyboardInterrupt`, which says that finished work is kept.
    """
    from trailnotes.config.toml import RUNTIME_KEYS
    from trailnotes.config.unused import warn_unused
    from trailnotes.envs.tasks import describe_training_overlap, validate_splits
    from trailnotes.runs.adaptation import FIXED_ADAPTATION_KEYS
    from trailnotes.runs.dependencies import require_dependencies
    from trailnotes.runs.directory import RunDir
    from trailnotes.runs.load_policy import open_evaluated_model
    from trailnotes.runs.loop import run_to_end

    with open_evaluated_model(model_or_run) as subject:
        config = resolve_adapt_config(config, subject, method, trials)
        require_dependencies(config)
        validate_splits(config)
        warn_unused(config, subject.trained)
        if said := describe_training_overlap(subject.trained, config):
            logger.warning("%s", said)
        allowed = [*RUNTIME_KEYS, *CHANGEABLE_KEYS, *allow_change]
        with (
            RunDir.open(out, config, allow_change=allowed, fixed=FIXED_ADAPTATION_KEYS) as directory,
            explain_interrupt(f"stopped; {directory.path} keeps all finished work: the same command continues"),
        ):
            figures = run_to_end(_adapt(config, directory, subject, progress))
    curve = [figure.result for figure in figures if figure.trial is not None]
    _draw_curve(curve, directory.path / "curve.png")
    return curve


def resolve_adapt_config(config: Config, subject: EvaluatedModel, method: str | None, trials: int | None) -> Config:
    """Resolve the settings of an adaptation, whose method changes no weights."""
    from trailnotes.runs.adaptation import build_adaptation_config

    own = config.algorithm.name
    name = method or (TIPS_ONLY_METHOD if resolve_method(own).trains else own)
    if resolve_method(name).trains:
        raise ConfigError(
            f"{name} changes weights, so it cannot adapt: choose one of {', '.join(list_methods(trains=False))}"
        )
    if trials is not None and trials < 0:
        raise ConfigError(f"--trials {trials} is none: name 0 or more")
    return build_adaptation_config(config, name, subject, config.eval.trials if trials is None else trials)


async def _adapt(
    config: Config, directory: RunDir, subject: EvaluatedModel, progress: ProgressBar | None
) -> list[ResultRow]:
    from trailnotes.gateway.pool import open_pool
    from trailnotes.runs.adaptation import AdaptationRun

    with open_pool(config.env) as pool, contextlib.ExitStack() as opened:
        run = AdaptationRun(config, directory, _load_roles(config, directory, subject, opened), pool, subject, progress)
        try:
            await resolve_method(config.algorithm.name).load()(run)
        except BudgetError as error:
            run.write_table()
            raise BudgetError(f"{error}; every episode and tip that has ended is kept in {directory.path}: raise the "
                              "limit, and the same command continues") from error  # fmt: skip
        run.write_table()
        return run.figures


def _load_roles(
    config: Config, directory: RunDir, subject: EvaluatedModel, opened: contextlib.ExitStack
) -> Policy | Roles:
    from trailnotes.runs.adaptation import Roles
    from trailnotes.runs.load_policy import EvaluatedModel, load_endpoint_author, open_policy

    policy = opened.enter_context(open_policy(config, subject, directory.path))
    if config.algorithm.name != TIPS_ONLY_METHOD:
        return policy
    if author := load_endpoint_author(config, directory.path):
        return Roles(policy, author, policy)
    if config.algorithm.author != "start" or subject.trained is None:
        return policy
    start = opened.enter_context(open_policy(config, EvaluatedModel(subject.trained.model.path, "start")))
    return Roles(policy, start, policy)


def _draw_curve(results: Sequence[PanelResult], path: Path) -> None:
    if len(results) < 2:
        return
    from trailnotes.reporting.intervals import Interval
    from trailnotes.reporting.plots import TEXT_COLOUR, plot_trials

    colour = resolve_method(results[0].algorithm).colour or TEXT_COLOUR
    bands = [
        None if row.ci_low is None or row.ci_high is None else Interval(row.mean, row.ci_low, row.ci_high)
        for row in results
    ]
    title = f"{results[0].algorithm} on {results[0].panel} ({results[0].num_tasks} tasks)\n{results[-1].interval}"
    try:
        plot_trials([row.mean for row in results], bands, path, colour=colour, ylabel=results[0].metric, title=title)
    except MissingExtraError as error:
        logger.warning("no %s: %s", path.name, error)


def _run(args: Namespace) -> None:
    from trailnotes.runs.console import ProgressBar

    config = load_command_config(args.subject, args.config, args.settings)
    with ProgressBar(1.0, "adapt") as bar:
        adapt(
            config, args.subject, out=args.out, method=args.method, trials=args.trials, allow_change=args.allow_change,
            progress=bar,
        )  # fmt: skip
    print((args.out / "table.md").read_text(encoding="utf-8"), end="")
    print_output_path(args.out)


ADAPT = Command(
    name="adapt", summary="improve at new games over several trials, without training",
    about="Play the panel of the config's [eval] several times by a method that changes no weights: tips after every "
    "episode (empo2-tips), plans after failures (reflexion), and others; docs/algorithms has a page for each. DIR is "
    "a run directory with the figures, the curve, and the last trial as `trailnotes eval` writes it. The same command "
    "resumes an interrupted run, and repeats no finished episode or request.",
    example="trailnotes adapt runs/smoke --method reflexion --out runs/smoke/adapt --trials 2 --eval.num_tasks 2",
    run=_run,
    arguments=(
        MODEL_OR_RUN, OTHER_CONFIG,
        argument("--method", metavar="METHOD",
            help="a method that changes no weights, as docs/algorithms lists them, or module:NAME of your own; "
            f"default: that of the config if it trains nothing, else {TIPS_ONLY_METHOD}"),
        argument("--trials", type=int, metavar="K", help="trials after trial 0 (default: eval.trials)"),
        argument("--out", type=Path, metavar="DIR", required=True, help="run directory, created if missing"),
        ALLOW_CHANGE,
    ),
    settings=True,
)  # fmt: skip

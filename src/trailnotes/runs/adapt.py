"""Adaptation by a method without weight updates: `trailnotes.adapt`. Its run directory resumes after a stop."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from trailnotes.config.methods import TIPS_ONLY_METHOD, find_modules, list_methods, load_methods, resolve_method
from trailnotes.config.model_schema import OPENAI_PREFIX
from trailnotes.config.schema import Config
from trailnotes.config.toml import RUNTIME_KEYS
from trailnotes.config.unused import warn_unused
from trailnotes.envs.tasks import describe_training_overlap, validate_splits
from trailnotes.errors import BudgetError, ConfigError, MissingExtraError
from trailnotes.gateway.pool import open_pool
from trailnotes.reporting.terminal import ProgressBar, begin_activity
from trailnotes.runs.adaptation import FIXED_ADAPTATION_KEYS, AdaptationRun, ResultRow
from trailnotes.runs.directory import RunDir
from trailnotes.runs.load_policy import RANDOM, EvaluatedModel, load_endpoint_author, open_evaluated_model, open_policy
from trailnotes.runs.loop import run_to_end
from trailnotes.runs.panels import PanelResult
from trailnotes.runs.preflight import require_dependencies
from trailnotes.runs.signals import explain_interrupt
from trailnotes.types import StrPath

logger = logging.getLogger(__name__)
CHANGEABLE_KEYS = ("eval.trials", "run.trackers")
"""These settings may differ when a run is resumed, as may `RUNTIME_KEYS`."""


def adapt(
    config: Config, model_or_run: StrPath, *, out: StrPath, method: str | None = None, trials: int | None = None,
    allow_change: Sequence[str] = (), progress: ProgressBar | None = None,
) -> list[PanelResult]:  # fmt: skip
    """Adapt the policy `model_or_run` by `method` on the panel of `config.eval`, trial after trial.

    `out` becomes a run directory with the table, the curve over the trials (with matplotlib), and the last trial in
    `out/eval`. The same call continues after a stop, and repeats no finished episode and no answer.

    Args:
        config: the whole configuration.
        model_or_run: run directory, checkpoint, model directory, hub name, "random" or "openai:NAME".
        out: directory of the run; made if it does not exist.
        method: one without weight updates; by default `algorithm.name` where that is one, else "empo2-tips".
        trials: overrides `eval.trials`.
        allow_change: further keys that may differ from the resumed run, except `FIXED_ADAPTATION_KEYS` and those of
            the method.
        progress: displays the progress of each phase, and a line when it ends.

    Returns:
        The points of the curve, trial 0 first.

    Raises:
        ConfigError: a setting that cannot work, or no episode could be played.
        MissingExtraError: a package that the settings need is not installed.
        BudgetError: a spending limit was reached; finished episodes are on disk.
        RunError: `out` is in use, damaged, or belongs to another config.
        Interrupted: a `KeyboardInterrupt`, which says that finished work is kept.
    """
    with open_evaluated_model(model_or_run) as subject:
        if Path(out).resolve() == Path(model_or_run).resolve():
            raise ConfigError(f"{out} has files of its own: give a directory inside, --out {out}/adapt")
        config = _resolve_config(config, subject, method, trials)
        _validate_served_author(config, subject)
        require_dependencies(config)
        validate_splits(config)
        warn_unused(config, subject.trained)
        if warning := describe_training_overlap(subject.trained, config):
            logger.warning("%s", warning)
        allowed = [*RUNTIME_KEYS, *CHANGEABLE_KEYS, *allow_change]
        fixed = [*FIXED_ADAPTATION_KEYS, *resolve_method(config.algorithm.name).sections]
        with (
            RunDir.open(out, config, allow_change=allowed, fixed=fixed) as directory,
            explain_interrupt(f"stopped; {directory.path} keeps all finished work: the same command continues"),
        ):
            rows = run_to_end(_adapt(config, directory, subject, progress))
    curve = [row.result for row in rows if row.trial is not None]
    _draw_curve(curve, directory.path / "curve.png")
    return curve


def _resolve_config(config: Config, subject: EvaluatedModel, method: str | None, trials: int | None) -> Config:
    own = config.algorithm.name
    name = method or (TIPS_ONLY_METHOD if resolve_method(own).trains else own)
    if resolve_method(name).trains:
        raise ConfigError(
            f"{name} changes weights, so it cannot adapt: choose one of {', '.join(list_methods(trains=False))}"
        )
    if trials is not None and trials < 0:
        raise ConfigError(f"--trials must be 0 or more, not {trials}")
    changes = {
        "algorithm": {"name": name},
        "model": {"path": subject.model},
        "eval": {"trials": config.eval.trials if trials is None else trials},
    }
    sections = {key: getattr(config, key).model_copy(update=values) for key, values in changes.items()}
    # The section of a method of the user's own could not be read again, once the config names another method.
    readable = [method for each, method in load_methods().items() if each in {name, *find_modules()}]
    known = Config.model_fields.keys() | {section for method in readable for section in method.sections}
    adapted = Config(**{key: value for key, value in config if key in known} | sections)
    adapted.validate_method()
    has_other_author = name == TIPS_ONLY_METHOD and adapted.algorithm.author not in {"policy", "start"}
    if subject.model == RANDOM and name in list_methods(trains=False) and name != "naive" and not has_other_author:
        raise ConfigError("random writes nothing: --method naive")
    return adapted


def _validate_served_author(config: Config, subject: EvaluatedModel) -> None:
    """Refuse two models at one served engine, unless both are adapters, which it keeps side by side."""
    if subject.trained is None or (config.algorithm.name, config.algorithm.author) != (TIPS_ONLY_METHOD, "start"):
        return
    paths = Path(subject.model), Path(subject.trained.model.path)
    are_adapters = all((path / "adapter_config.json").is_file() for path in paths)
    if config.engine.name == "vllm" and config.engine.urls and not are_adapters:
        raise ConfigError(
            'algorithm.author = "start" needs two models, and the weights of the second would replace those of the '
            'first in the engines of engine.urls: set engine.urls = [], or algorithm.author = "policy"'
        )


async def _adapt(
    config: Config, directory: RunDir, subject: EvaluatedModel, progress: ProgressBar | None
) -> list[ResultRow]:
    with open_pool(config.env) as pool, ExitStack() as opened:
        with begin_activity(progress, "opening the model"):
            policy: Any = opened.enter_context(open_policy(config, subject, directory.path))
        author: Any = policy
        if config.algorithm.name == TIPS_ONLY_METHOD:
            if endpoint := load_endpoint_author(config, directory.path):
                author = endpoint
                if subject.model.startswith(OPENAI_PREFIX):
                    author.answers.share_limits(policy.answers)
            elif config.algorithm.author == "start" and subject.trained is not None:
                initial = EvaluatedModel(subject.trained.model.path, "start")
                author = opened.enter_context(open_policy(config, initial, directory.path / "author"))
                if config.is_hosted:
                    author.server.ledger = policy.server.ledger  # one limit for both
        run = AdaptationRun(config, directory, policy, author, pool, subject, progress)
        try:
            await resolve_method(config.algorithm.name).load()(run)
        except BudgetError as error:
            run.write_table()
            kept = f"every episode and tip that has ended is kept in {directory.path}"
            raise BudgetError(f"{error}; {kept}") from error
        run.write_table()
        return run.figures


def _draw_curve(results: Sequence[PanelResult], path: Path) -> None:
    if len(results) < 2:
        path.unlink(missing_ok=True)  # of an earlier start with more trials
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

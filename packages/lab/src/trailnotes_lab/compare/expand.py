"""The runs that a comparison asks for, each with its settings, and what of them is refused before any is started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trailnotes.config.methods import TIPS_ONLY_METHOD, resolve_method
from trailnotes.config.schema import Config
from trailnotes.config.toml import collect_fields, flatten_config, load_config
from trailnotes.envs.tasks import (
    load_panel,
    load_rehearsal_tasks,
    load_used_tasks,
    require_outside_panel,
    tasks_of,
    validate_learning_tasks,
    validate_splits,
)
from trailnotes.errors import ConfigError
from trailnotes.training.rehearsal import validate_rehearsal
from trailnotes.types import Task
from trailnotes_lab.compare.spec import Budget, ComparisonSpec, panel_directory, run_directory, slugify

_RESERVED_KEYS = ("run.name", "run.seed", "algorithm.name")  # what the comparison itself sets in each run
_RESERVED_PANEL_KEYS = (*_RESERVED_KEYS, "eval.trials", "eval.metric", "model.path")
_TRAINING_DEFAULTS = {"train.keep_optimizer": False}  # unless settings say so: a comparison never trains a run further
_PANEL_KEYS = ("env.name", "eval.split", "eval.num_tasks", "eval.metric")  # must be the same in all of them


@dataclass(frozen=True, slots=True)
class PlannedPanel:
    """A panel as the model of one run plays it: an adaptation in a directory of its own, inside that of the run."""

    name: str
    directory: Path
    config: Config
    subject: str  # who plays, as `trailnotes adapt` takes it


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One method with one seed: an ordinary run directory."""

    method: str
    seed: int
    directory: Path
    config: Config
    after: str = ""  # name of the run that must have been trained before
    panels: tuple[PlannedPanel, ...] = ()  # played by its model

    @property
    def name(self) -> str:
        """Also of its directory."""
        return self.directory.name

    @property
    def trains(self) -> bool:
        """Whether it changes weights."""
        return resolve_method(self.config.algorithm.name).trains

    @property
    def uses_prior_model(self) -> bool:
        """Whether it plays the last model of the run that went before."""
        return bool(self.after) and not resolve_method(self.config.algorithm.name).data

    @property
    def initial_model(self) -> str:
        """What it starts from, as `trailnotes adapt` takes it: a model, or the directory of the run before."""
        return _relative_path(self.directory.parent / self.after) if self.uses_prior_model else self.config.model.path


def expand_runs(plan: ComparisonSpec, path: Path, out: Path) -> list[PlannedRun]:
    """All runs, seed by seed, so that an unfinished comparison has every method of its first seeds.

    Args:
        plan: the comparison.
        path: its file, beside which the shared settings lie.
        out: the directory of the comparison.

    Raises:
        ConfigError: settings that cannot work; names the method.
    """
    base = path.parent / plan.compare.config if plan.compare.config else None
    _validate_shared_settings(plan, path)
    runs = [_expand_run(plan, name, seed, base, path, out) for seed in plan.compare.seeds for name in plan.methods]
    panels = {run.method: {name: flatten_config(run.config)[name] for name in _PANEL_KEYS} for run in runs}
    for method, own in panels.items():
        for name, value in panels[runs[0].method].items():
            if own[name] != value:
                raise ConfigError(f"{path}: methods.{method} has another {name} than {runs[0].method}: all methods "
                                  "play one panel, so set it in [settings]")  # fmt: skip
    first = {run.method: run for run in runs if run.seed == plan.compare.seeds[0]}
    _validate_training_data(first, plan, path)
    _validate_panels(first, path)
    return runs


def _validate_training_data(runs: Mapping[str, PlannedRun], plan: ComparisonSpec, path: Path) -> None:
    """Refuse methods that would learn from the panel; `runs` has one run of each."""
    for name, run in runs.items():
        after = plan.methods[name].after
        try:
            if after and not run.uses_prior_model:  # its data is not there yet, but which games it will be of is known
                validate_learning_tasks(_list_played_tasks(runs[after].config), f"the episodes of {after}", run.config)
            else:
                validate_splits(run.config)
            if run.trains:
                validate_rehearsal(run.config)
        except ConfigError as error:
            raise ConfigError(f"{path}: methods.{name}: {error}") from None


def _validate_panels(runs: Mapping[str, PlannedRun], path: Path) -> None:
    """Refuse panels of games that somebody learns from, and such as are not the same for all; a run of each method."""
    games: dict[str, list[str]] = {}
    for run in runs.values():
        for panel in run.panels:
            try:
                own = [task.id for task in load_panel(panel.config)]
                if run.trains:
                    _validate_panel_unseen(run.config, panel.config)
            except ConfigError as error:
                raise ConfigError(f"{path}: panels.{panel.name}: {error}") from None
            if games.setdefault(panel.name, own) != own:
                raise ConfigError(f"{path}: panels.{panel.name} has other games in methods.{run.method} than in those "
                                  "before it: all play one panel, so set in it what the method sets")  # fmt: skip


def _validate_panel_unseen(trained: Config, examined: Config) -> None:
    """As `validate_splits`, where what is examined has settings of its own."""
    for source, games in load_used_tasks(trained).items():
        require_outside_panel(games, source, examined)
    key = "path" if trained.rehearsal.path else "split"
    source = f"rehearsal.{key} = {getattr(trained.rehearsal, key)!r}"
    require_outside_panel(load_rehearsal_tasks(trained), source, examined)


def _list_played_tasks(config: Config) -> list[Task]:
    """The games whose episodes a run will leave: one that trains never plays its panel, any other does."""
    return tasks_of(config, config.train.split) if resolve_method(config.algorithm.name).trains else load_panel(config)


def _expand_run(plan: ComparisonSpec, name: str, seed: int, base: Path | None, path: Path, out: Path) -> PlannedRun:
    method = plan.methods[name]
    after = f"{slugify(method.after)}-{seed}" if method.after else ""
    algorithm = plan.get_algorithm(name)
    own = flatten_settings(method.settings)
    trains, budget = resolve_method(algorithm).trains, _make_budget_settings(plan.budget, algorithm)
    taken = [k for k in own if k in (*_RESERVED_KEYS, *(budget if trains else ()))]
    if taken:
        raise ConfigError(f"{path}: methods.{name} sets {taken[0]}, which is the comparison's to set: leave it out")
    directory = run_directory(out, name, seed)
    ours = {"run.name": directory.name, "run.seed": seed, "algorithm.name": algorithm}
    if after and resolve_method(algorithm).data:
        ours[resolve_method(algorithm).data] = [_relative_path(out / "runs" / after)]
    source = _SettingsSource(base, path, f"methods.{name}")
    config = _load_layered_config(
        source,
        [_TRAINING_DEFAULTS if trains else {}, flatten_settings(plan.settings), budget, own, ours],
        trains=trains,
    )
    if not config.model.path:
        raise ConfigError(f"{path}: model.path is empty: name the model that all methods start from")
    run = PlannedRun(name, seed, directory, config, after)
    panels = [
        _expand_panel(plan, panel, run, base, path) for panel in plan.panels if name in plan.list_panel_methods(panel)
    ]
    return replace(run, panels=tuple(panels))


def _expand_panel(plan: ComparisonSpec, name: str, run: PlannedRun, base: Path | None, path: Path) -> PlannedPanel:
    """The settings are those of the run, and over them the panel's own."""
    panel = plan.panels[name]
    own = flatten_settings(panel.settings)
    if taken := [k for k in own if k in _RESERVED_PANEL_KEYS]:
        raise ConfigError(f"{path}: panels.{name} sets {taken[0]}, which is the comparison's to set: leave it out")
    directory = panel_directory(run.directory, name)
    ours = {"run.name": directory.name, "run.seed": run.seed, "algorithm.name": TIPS_ONLY_METHOD, "eval.trials": panel.trials,
            "archive.share": 0.0}  # fmt: skip
    shared, method = flatten_settings(plan.settings), flatten_settings(plan.methods[run.method].settings)
    config = _load_layered_config(_SettingsSource(base, path, f"panels.{name}"), [shared, method, own, ours])
    return PlannedPanel(name, directory, config, _relative_path(run.directory) if run.trains else config.model.path)


@dataclass(frozen=True, slots=True)
class _SettingsSource:
    """Where settings stand, for those that cannot work."""

    base: Path | None  # the file that all share
    path: Path  # of the comparison
    table: str  # in it


def _load_layered_config(
    source: _SettingsSource, layers: Sequence[Mapping[str, Any]], *, trains: bool = False
) -> Config:
    """The settings that all share, and over them `layers`; the last word on a key counts."""
    try:
        config = load_config(source.base, [word for settings in layers for word in _format_overrides(settings)])
        if trains:
            config.validate_training()
    except ConfigError as error:
        said = str(error).replace("command line", f"{source.path}", 1)
        raise ConfigError(said if str(source.base) in said else f"{said} ({source.table})") from None
    return config


def _relative_path(path: Path) -> str:
    """The same directory has the same settings however --out was written."""
    return os.path.relpath(path)


def _make_budget_settings(budget: Budget, algorithm: str) -> dict[str, Any]:
    """The budget as settings of one method."""
    if not resolve_method(algorithm).trains:
        return {"eval.trials": budget.trials} if budget.trials else {}
    named = {"train.max_env_steps": budget.env_steps, "train.max_tokens": budget.tokens}
    return {name: value for name, value in named.items() if value}


def _validate_shared_settings(plan: ComparisonSpec, path: Path) -> None:
    """What the comparison sets must not be set for all; and equal budgets need one."""
    for name in flatten_settings(plan.settings):
        if name in _RESERVED_KEYS:
            raise ConfigError(f"{path}: settings sets {name}, which is the comparison's to set: leave it out")
    trained = [name for name in plan.methods if resolve_method(plan.get_algorithm(name)).trains]
    if trained and not (plan.budget.env_steps or plan.budget.tokens):
        raise ConfigError(f"{path}: {', '.join(trained)} train without a budget: set budget.env_steps or budget.tokens")


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables as dotted keys: ``{"loss": {"kl": 0.1}}`` -> ``{"loss.kl": 0.1}``; a key that is a table stays one."""
    leaves: dict[str, Any] = {}
    for word, value in settings.items():
        name = prefix + word
        leaves |= flatten_settings(value, f"{name}.") if _is_section(name, value) else {name: value}
    return leaves


def _is_section(name: str, value: Any) -> bool:
    return isinstance(value, Mapping) and name not in collect_fields()


def _format_overrides(settings: Mapping[str, Any]) -> list[str]:
    """The settings as words of a command line; tables key by key, since JSON's are not TOML."""
    words: list[str] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            words += _format_overrides({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            words.append(f"--{name}={json.dumps(value)}")
    return words

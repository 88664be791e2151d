"""Expand a comparison into its runs, each with its settings, and validate them before any is started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trailnotes.config.builtin import find_config
from trailnotes.config.methods import TIPS_ONLY_METHOD, resolve_method
from trailnotes.config.schema import Config
from trailnotes.config.toml import collect_fields, format_toml_value, load_config
from trailnotes.envs import tasks
from trailnotes.errors import ConfigError
from trailnotes.runs.rehearsal import validate_rehearsal
from trailnotes.storage import checkpoint
from trailnotes_lab.compare.spec import ComparisonSpec, panel_directory, run_directory, slugify

_RESERVED_KEYS = ("run.name", "run.seed", "algorithm.name")  # the comparison itself sets them in each run
_RESERVED_PANEL_KEYS = (*_RESERVED_KEYS, "eval.trials", "eval.metric", "model.path")
_TRAINING_DEFAULTS = {"train.keep_optimizer": False}  # unless settings say so: a comparison never trains a run further


@dataclass(frozen=True, slots=True)
class PlannedPanel:
    """A panel as the model of one run plays it: an adaptation in a directory of its own, inside that of the run."""

    name: str
    directory: Path
    config: Config
    subject: str  # the model that plays, as `trailnotes adapt` takes it


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One method with one seed, in an ordinary run directory."""

    method: str
    seed: int
    directory: Path
    config: Config
    after: str = ""  # name of the run that must have been trained before
    panels: tuple[PlannedPanel, ...] = ()  # played by its model

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def trains(self) -> bool:
        return resolve_method(self.config.algorithm.name).trains

    @property
    def prior_key(self) -> str:
        """Get the key that names the run that went before, or its checkpoint; "" where none did."""
        return (resolve_method(self.config.algorithm.name).data or "model.path") if self.after else ""

    @property
    def uses_prior_model(self) -> bool:
        """Say whether it plays the last model of the run that went before."""
        return self.prior_key == "model.path"


def expand_runs(spec: ComparisonSpec, path: Path, out: Path) -> list[PlannedRun]:
    """Expand all runs, seed by seed, so that an unfinished comparison has every method of its first seeds.

    The shared settings lie beside `path`, the file of the comparison, or are a config of the package.
    """
    beside = path.parent / spec.compare.config
    try:
        base = (beside if beside.exists() else find_config(spec.compare.config)) if spec.compare.config else None
    except ConfigError as error:
        raise ConfigError(f"{path}: compare.config: beside this file there is no {error}") from None
    trained = [name for name in spec.methods if resolve_method(spec.get_algorithm(name)).trains]
    if trained and not (spec.budget.env_steps or spec.budget.tokens):
        raise ConfigError(f"{path}: {', '.join(trained)} train without a budget: set budget.env_steps or budget.tokens")
    runs = [_expand_run(spec, name, seed, base, path, out) for seed in spec.compare.seeds for name in spec.methods]
    first = {run.method: run for run in runs if run.seed == spec.compare.seeds[0]}
    games = {method: [task.id for task in tasks.load_panel(run.config)] for method, run in first.items()}
    panels = {method: (first[method].config.eval.metric, own) for method, own in games.items()}
    if others := [method for method, own in panels.items() if own != panels[runs[0].method]]:
        raise ConfigError(f"{path}: methods.{others[0]} has other games or another metric than {runs[0].method}: all "
                          "methods play one panel, so set env and eval in [settings]")  # fmt: skip
    _validate_training_data(first, spec, path)
    _validate_panels(first, path)
    return runs


def _validate_training_data(runs: Mapping[str, PlannedRun], spec: ComparisonSpec, path: Path) -> None:
    """Refuse methods that would learn from the panel; `runs` has one run of each."""
    for name, run in runs.items():
        after = spec.methods[name].after
        try:
            if after and not run.uses_prior_model:  # its data is not there yet, but which games it will be of is known
                before, trains = runs[after].config, runs[after].trains  # a run that trains never plays its panel
                played = tasks.load_tasks(before, before.train.split) if trains else tasks.load_panel(before)
                tasks.validate_learning_tasks(played, f"the episodes of {after}", run.config)
            else:
                tasks.validate_splits(run.config)
            if run.trains:
                validate_rehearsal(run.config)
        except ConfigError as error:
            raise ConfigError(f"{path}: methods.{name}: {error}") from None


def _validate_panels(runs: Mapping[str, PlannedRun], path: Path) -> None:
    """Refuse panels of games that a method learns from, or that differ between methods; a run of each method."""
    games: dict[str, list[str]] = {}
    for run in runs.values():
        for panel in run.panels:
            try:
                own = [task.id for task in tasks.load_panel(panel.config)]
                if run.trains:
                    rehearsal = run.config.rehearsal
                    key = "path" if rehearsal.path else "split"
                    source = f"rehearsal.{key} = {getattr(rehearsal, key)!r}"
                    for used, learned in tasks.load_used_tasks(run.config).items():
                        tasks.validate_learning_tasks(learned, used, panel.config)
                    tasks.validate_learning_tasks(tasks.load_rehearsal_tasks(run.config), source, panel.config)
            except ConfigError as error:
                raise ConfigError(f"{path}: panels.{panel.name}: {error}") from None
            if games.setdefault(panel.name, own) != own:
                raise ConfigError(f"{path}: panels.{panel.name} has other games in methods.{run.method} than in those "
                                  "before it: all play one panel, so set in it what the method sets")  # fmt: skip


def _expand_run(spec: ComparisonSpec, name: str, seed: int, base: Path | None, path: Path, out: Path) -> PlannedRun:
    method, algorithm = spec.methods[name], spec.get_algorithm(name)
    after = f"{slugify(method.after)}-{seed}" if method.after else ""
    shared, own = flatten_settings(spec.settings), flatten_settings(method.settings)
    trains = resolve_method(algorithm).trains
    limits = {"train.max_env_steps": spec.budget.env_steps, "train.max_tokens": spec.budget.tokens}
    budget = {key: value for key, value in (limits if trains else {"eval.trials": spec.budget.trials}).items() if value}
    for table, keys, limited in (("settings", shared, budget), (f"methods.{name}", own, budget if trains else ())):
        if taken := [key for key in keys if key in (*_RESERVED_KEYS, *limited)]:
            raise ConfigError(f"{path}: {table} sets {taken[0]}, which is the comparison's to set: leave it out")
    directory = run_directory(out, name, seed)
    ours = {"run.name": directory.name, "run.seed": seed, "algorithm.name": algorithm}
    if after and resolve_method(algorithm).data:
        ours[resolve_method(algorithm).data] = [os.path.relpath(out / "runs" / after)]
    layers = [_TRAINING_DEFAULTS if trains else {}, shared, budget, own, ours]
    config = _load_layered_config(base, (path, f"methods.{name}"), layers, trains=trains)
    if not config.model.path:
        raise ConfigError(f"{path}: model.path is empty: name the model that all methods start from")
    model = Path(config.model.path)
    if (model / "checkpoints").is_dir() or checkpoint.is_checkpoint(model):
        raise ConfigError(f"{path}: model.path = {str(model)!r} is a run or a checkpoint, whose own seed would be that "
                          "of every evaluation: name its model, .../checkpoints/step-NUMBER/model, or a method of the "
                          "comparison by `after`")  # fmt: skip
    run = PlannedRun(name, seed, directory, config, after)
    own_panels = [panel for panel in spec.panels if name in spec.list_panel_methods(panel)]
    return replace(run, panels=tuple(_expand_panel(spec, panel, run, base, path) for panel in own_panels))


def _expand_panel(spec: ComparisonSpec, name: str, run: PlannedRun, base: Path | None, path: Path) -> PlannedPanel:
    panel = spec.panels[name]
    own = flatten_settings(panel.settings)
    if taken := [k for k in own if k in _RESERVED_PANEL_KEYS]:
        raise ConfigError(f"{path}: panels.{name} sets {taken[0]}, which is the comparison's to set: leave it out")
    directory = panel_directory(run.directory, name)
    ours = {"run.name": directory.name, "run.seed": run.seed, "algorithm.name": TIPS_ONLY_METHOD,
            "eval.trials": panel.trials}  # fmt: skip
    shared, method = flatten_settings(spec.settings), flatten_settings(spec.methods[run.method].settings)
    config = _load_layered_config(base, (path, f"panels.{name}"), [shared, method, own, ours])
    # A relative path, so that the same directory has the same settings however --out was written.
    return PlannedPanel(name, directory, config, os.path.relpath(run.directory) if run.trains else config.model.path)


def _load_layered_config(
    base: Path | None, source: tuple[Path, str], layers: Sequence[Mapping[str, Any]], *, trains: bool = False
) -> Config:
    """Load the shared file `base`, and over it `layers`; errors name `source`, a comparison and a table in it."""
    try:
        config = load_config(base, [word for settings in layers for word in _format_overrides(settings)])
        if trains:
            config.validate_training()
        else:
            config.validate_method()
    except ConfigError as error:
        message = str(error).replace("command line", f"{source[0]}", 1)
        raise ConfigError(message if str(base) in message else f"{message} ({source[1]})") from None
    return config


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Write tables as dotted keys, ``{"loss": {"kl": 0.1}}`` -> ``{"loss.kl": 0.1}``; a key that is a table stays."""
    leaves: dict[str, Any] = {}
    for word, value in settings.items():
        name = prefix + word
        is_section = isinstance(value, Mapping) and name not in collect_fields()
        leaves |= flatten_settings(value, f"{name}.") if is_section else {name: value}
    return leaves


def _format_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Write settings as words of a command line; tables key by key."""
    words: list[str] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            if odd := [inner for inner in value if "." in inner or "=" in inner]:
                raise ConfigError(f"command line: {name} has the key {odd[0]!r}, which only the file of compare.config "
                                  "can set: move it there")  # fmt: skip
            words += _format_overrides({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            words.append(f"--{name}={format_toml_value(value)}")
    return words

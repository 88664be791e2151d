"""The runs that a comparison asks for, each with its settings, and what of them is refused before any is started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trailnotes.config.methods import TIPS_ONLY, method_of
from trailnotes.config.schema import Config
from trailnotes.config.toml import config_fields, flatten, load_config
from trailnotes.envs.tasks import (
    panel_of,
    refuse_examined,
    refuse_learning,
    refuse_panel,
    rehearsed_of,
    tasks_of,
    used_of,
)
from trailnotes.errors import ConfigError
from trailnotes.training.rehearsal import refuse_rehearsal
from trailnotes.types import Task
from trailnotes_lab.compare.spec import Budget, Plan, panel_directory, run_directory, slug

_OURS = ("run.name", "run.seed", "algorithm.name")  # what the comparison itself sets in each run
_OURS_IN_PANELS = (*_OURS, "eval.trials", "eval.metric", "model.path")
_OF_TRAINING = {"train.keep_optimizer": False}  # unless settings say so: a comparison never trains a run further
_PANEL = ("env.name", "eval.split", "eval.num_tasks", "eval.metric")  # must be the same in all of them


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
        return method_of(self.config.algorithm.name).trains

    @property
    def follows(self) -> bool:
        """Whether it plays the last model of the run that went before."""
        return bool(self.after) and not method_of(self.config.algorithm.name).data

    @property
    def start(self) -> str:
        """What it starts from, as `trailnotes adapt` takes it: a model, or the directory of the run before."""
        return _relative(self.directory.parent / self.after) if self.follows else self.config.model.path


def runs_of(plan: Plan, path: Path, out: Path) -> list[PlannedRun]:
    """All runs, seed by seed, so that an unfinished comparison has every method of its first seeds.

    Args:
        plan: the comparison.
        path: its file, beside which the shared settings lie.
        out: the directory of the comparison.

    Raises:
        ConfigError: settings that cannot work; names the method.
    """
    base = path.parent / plan.compare.config if plan.compare.config else None
    _refuse_shared(plan, path)
    runs = [_run(plan, name, seed, base, path, out) for seed in plan.compare.seeds for name in plan.methods]
    panels = {run.method: {name: flatten(run.config)[name] for name in _PANEL} for run in runs}
    for method, own in panels.items():
        for name, value in panels[runs[0].method].items():
            if own[name] != value:
                raise ConfigError(f"{path}: methods.{method} has another {name} than {runs[0].method}: all methods "
                                  "play one panel, so set it in [settings]")  # fmt: skip
    first = {run.method: run for run in runs if run.seed == plan.compare.seeds[0]}
    _refuse_examined(first, plan, path)
    _refuse_panels(first, path)
    return runs


def _refuse_examined(runs: Mapping[str, PlannedRun], plan: Plan, path: Path) -> None:
    """Refuse methods that would learn from the panel; `runs` has one run of each."""
    for name, run in runs.items():
        after = plan.methods[name].after
        try:
            if after and not run.follows:  # its data is not there yet, but which games it will be of is known
                refuse_learning(_played(runs[after].config), f"the episodes of {after}", run.config)
            else:
                refuse_examined(run.config)
            if run.trains:
                refuse_rehearsal(run.config)
        except ConfigError as error:
            raise ConfigError(f"{path}: methods.{name}: {error}") from None


def _refuse_panels(runs: Mapping[str, PlannedRun], path: Path) -> None:
    """Refuse panels of games that somebody learns from, and such as are not the same for all; a run of each method."""
    games: dict[str, list[str]] = {}
    for run in runs.values():
        for panel in run.panels:
            try:
                own = [task.id for task in panel_of(panel.config)]
                if run.trains:
                    _refuse_learned(run.config, panel.config)
            except ConfigError as error:
                raise ConfigError(f"{path}: panels.{panel.name}: {error}") from None
            if games.setdefault(panel.name, own) != own:
                raise ConfigError(f"{path}: panels.{panel.name} has other games in methods.{run.method} than in those "
                                  "before it: all play one panel, so set in it what the method sets")  # fmt: skip


def _refuse_learned(trained: Config, examined: Config) -> None:
    """As `refuse_examined`, where what is examined has settings of its own."""
    for source, games in used_of(trained).items():
        refuse_panel(games, source, examined)
    key = "path" if trained.rehearsal.path else "split"
    source = f"rehearsal.{key} = {getattr(trained.rehearsal, key)!r}"
    refuse_panel(rehearsed_of(trained), source, examined)


def _played(config: Config) -> list[Task]:
    """The games whose episodes a run will leave: one that trains never plays its panel, any other does."""
    return tasks_of(config, config.train.split) if method_of(config.algorithm.name).trains else panel_of(config)


def _run(plan: Plan, name: str, seed: int, base: Path | None, path: Path, out: Path) -> PlannedRun:
    method = plan.methods[name]
    after = f"{slug(method.after)}-{seed}" if method.after else ""
    algorithm = plan.algorithm_of(name)
    own = dotted(method.settings)
    trains, budget = method_of(algorithm).trains, _budget(plan.budget, algorithm)
    taken = [k for k in own if k in (*_OURS, *(budget if trains else ()))]
    if taken:
        raise ConfigError(f"{path}: methods.{name} sets {taken[0]}, which is the comparison's to set: leave it out")
    directory = run_directory(out, name, seed)
    ours = {"run.name": directory.name, "run.seed": seed, "algorithm.name": algorithm}
    if after and method_of(algorithm).data:
        ours[method_of(algorithm).data] = [_relative(out / "runs" / after)]
    source = _Source(base, path, f"methods.{name}")
    config = _config(source, [_OF_TRAINING if trains else {}, dotted(plan.settings), budget, own, ours], trains=trains)
    if not config.model.path:
        raise ConfigError(f"{path}: model.path is empty: name the model that all methods start from")
    run = PlannedRun(name, seed, directory, config, after)
    panels = [_panel(plan, panel, run, base, path) for panel in plan.panels if name in plan.players(panel)]
    return replace(run, panels=tuple(panels))


def _panel(plan: Plan, name: str, run: PlannedRun, base: Path | None, path: Path) -> PlannedPanel:
    """The settings are those of the run, and over them the panel's own."""
    panel = plan.panels[name]
    own = dotted(panel.settings)
    if taken := [k for k in own if k in _OURS_IN_PANELS]:
        raise ConfigError(f"{path}: panels.{name} sets {taken[0]}, which is the comparison's to set: leave it out")
    directory = panel_directory(run.directory, name)
    ours = {"run.name": directory.name, "run.seed": run.seed, "algorithm.name": TIPS_ONLY, "eval.trials": panel.trials,
            "archive.share": 0.0}  # fmt: skip
    shared, method = dotted(plan.settings), dotted(plan.methods[run.method].settings)
    config = _config(_Source(base, path, f"panels.{name}"), [shared, method, own, ours])
    return PlannedPanel(name, directory, config, _relative(run.directory) if run.trains else config.model.path)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where settings stand, for those that cannot work."""

    base: Path | None  # the file that all share
    path: Path  # of the comparison
    table: str  # in it


def _config(source: _Source, layers: Sequence[Mapping[str, Any]], *, trains: bool = False) -> Config:
    """The settings that all share, and over them `layers`; the last word on a key counts."""
    try:
        config = load_config(source.base, [word for settings in layers for word in _words(settings)])
        if trains:
            config.refuse_training()
    except ConfigError as error:
        said = str(error).replace("command line", f"{source.path}", 1)
        raise ConfigError(said if str(source.base) in said else f"{said} ({source.table})") from None
    return config


def _relative(path: Path) -> str:
    """The same directory has the same settings however --out was written."""
    return os.path.relpath(path)


def _budget(budget: Budget, algorithm: str) -> dict[str, Any]:
    """The budget as settings of one method."""
    if not method_of(algorithm).trains:
        return {"eval.trials": budget.trials} if budget.trials else {}
    named = {"train.max_env_steps": budget.env_steps, "train.max_tokens": budget.tokens}
    return {name: value for name, value in named.items() if value}


def _refuse_shared(plan: Plan, path: Path) -> None:
    """What the comparison sets must not be set for all; and equal budgets need one."""
    for name in dotted(plan.settings):
        if name in _OURS:
            raise ConfigError(f"{path}: settings sets {name}, which is the comparison's to set: leave it out")
    trained = [name for name in plan.methods if method_of(plan.algorithm_of(name)).trains]
    if trained and not (plan.budget.env_steps or plan.budget.tokens):
        raise ConfigError(f"{path}: {', '.join(trained)} train without a budget: set budget.env_steps or budget.tokens")


def dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables as dotted keys: ``{"loss": {"kl": 0.1}}`` -> ``{"loss.kl": 0.1}``; a key that is a table stays one."""
    leaves: dict[str, Any] = {}
    for word, value in settings.items():
        name = prefix + word
        leaves |= dotted(value, f"{name}.") if _is_section(name, value) else {name: value}
    return leaves


def _is_section(name: str, value: Any) -> bool:
    return isinstance(value, Mapping) and name not in config_fields()


def _words(settings: Mapping[str, Any]) -> list[str]:
    """The settings as words of a command line; tables key by key, since JSON's are not TOML."""
    words: list[str] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            words += _words({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            words.append(f"--{name}={json.dumps(value)}")
    return words

"""A comparison as one TOML file: panel, methods, budget, seeds; and the runs that it asks for.

::

    [compare]
    name = "textworld"
    config = "textworld-base.toml"      # settings that all runs share, beside this file; [settings] goes over it
    seeds = [0, 1, 2]
    baseline = "grpo"                   # differences are taken to it
    threshold = 0.5                     # sample efficiency: environment steps until the curve is here

    [budget]                            # named, and the same for all methods
    env_steps = 38400

    [methods.grpo]                      # the name is algorithm.name, unless algorithm = "..." says another
    [methods.retrospex]
    after = "grpo"                      # its data is the run of that method with the same seed
    [methods."grpo with tips"]
    algorithm = "empo2-tips"
    after = "grpo"                      # it plays the last model of that run
    [methods."q = 1"]
    algorithm = "empo2"
    "algorithm.q_off_policy" = 1.0      # any setting
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, model_validator

from trailnotes.config.methods import method_of
from trailnotes.config.schema import Config
from trailnotes.config.section import Section, key
from trailnotes.config.toml import config_fields, flatten, load_config
from trailnotes.envs.tasks import panel_of, refuse_examined, refuse_learning, tasks_of
from trailnotes.errors import ConfigError
from trailnotes.types import Task

_OURS = ("run.name", "run.seed", "algorithm.name")  # what the comparison itself sets in each run
_PANEL = ("env.name", "eval.split", "eval.num_tasks", "eval.metric")  # must be the same in all of them


class CompareSection(Section):
    """What is compared, and how it is judged."""

    name: str = key("comparison", "name of the comparison; also of its directory by default", min_length=1)
    title: str = key("", "over the table and the picture; by default made of panel and metric")
    remark: str = key("", "why its table ranks no method, such as 'Too short to rank'; stands before the title")
    config: str = key("", "settings that all runs share: a TOML file, beside this one")
    seeds: tuple[int, ...] = key((0, 1, 2), "one run of each method for each", min_length=1)
    jobs: int = key(2, "runs side by side", ge=1)
    threshold: float = key(0.5, "sample efficiency counts environment steps until the curve reaches this")
    baseline: str = key("", "differences are taken to this method; '' = to none")


class Budget(Section):
    """What every method may spend. Only what is named here is held equal."""

    env_steps: int = key(0, "environment steps of each training run; 0 = not what is counted", ge=0)
    tokens: int = key(0, "generated tokens of each training run", ge=0)
    trials: int = key(0, "trials of each method that changes no weights; a method may name its own", ge=0)


class Entry(Section):
    """One line of the table."""

    algorithm: str = key("", "algorithm.name; by default the method's own name")
    label: str = key("", "as table and picture call it")
    after: str = key("", "the method whose run with the same seed it starts from: its episodes are the data of "
                         "retrospex, its last model plays by any other method")  # fmt: skip
    settings: dict[str, Any] = key(dict, "what else differs: any setting")

    @model_validator(mode="before")
    @classmethod
    def gather(cls, values: Any) -> Any:
        """All keys but our own are settings; a table [methods.NAME.algorithm] is settings, too."""
        if not isinstance(values, Mapping):
            return values
        own = {k: v for k, v in values.items() if k in cls.model_fields and not isinstance(v, Mapping)}
        return own | {"settings": {k: v for k, v in values.items() if k not in own}}


class Plan(Section):
    """The whole file."""

    compare: CompareSection = key(CompareSection, "what is compared")
    settings: dict[str, Any] = key(dict, "settings that all runs share")
    budget: Budget = key(Budget, "what every method may spend")
    methods: dict[str, Entry] = key(dict, "the lines of the table", min_length=1)

    @model_validator(mode="after")
    def refuse_impossible(self) -> Self:
        """Names that mean nothing, or would meet in one directory."""
        if self.compare.baseline and self.compare.baseline not in self.methods:
            raise ValueError(f"compare.baseline = {self.compare.baseline!r} names no method of the comparison")
        if len(set(self.compare.seeds)) < len(self.compare.seeds):
            raise ValueError("compare.seeds names a seed twice")
        slugs: dict[str, str] = {}
        for name, method in self.methods.items():
            if slug(name) in slugs:
                raise ValueError(f"methods {slugs[slug(name)]!r} and {name!r} would share the directory {slug(name)!r}")
            slugs[slug(name)] = name
            method_of(self.algorithm_of(name))
            if method.after:
                self._refuse_after(name, method)
        labels = list(self.labels().values())
        if repeated := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"two methods are called {repeated[0]!r}: give one another label")
        return self

    def _refuse_after(self, name: str, method: Entry) -> None:
        if method.after not in self.methods:
            raise ValueError(f"methods.{name}: after = {method.after!r} names no method of the comparison")
        if method_of(self.algorithm_of(name)).trains:
            raise ValueError(f"methods.{name} trains the model of the settings, not that of another run: drop after")
        if not method_of(self.algorithm_of(name)).data and not method_of(self.algorithm_of(method.after)).trains:
            raise ValueError(f"methods.{name}: after = {method.after!r} trains no model to start from")

    def algorithm_of(self, name: str) -> str:
        """`algorithm.name` of a method."""
        return self.methods[name].algorithm or name

    def labels(self) -> dict[str, str]:
        """Method -> what table and picture call it."""
        return {
            name: method.label or (method_of(name).label if method.algorithm in {"", name} else name)
            for name, method in self.methods.items()
        }


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One method with one seed: an ordinary run directory."""

    method: str
    seed: int
    directory: Path
    config: Config
    after: str = ""  # name of the run that must have been trained before

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


def load_plan(path: Path) -> Plan:
    """Read a comparison.

    Raises:
        ConfigError: one line that names the key and the fix.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: give the path of a comparison's TOML file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    try:
        return Plan.model_validate_json(json.dumps(values, allow_nan=False), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"{path}: {where} is not a key of a comparison") from None
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1)
        raise ConfigError(f"{path}: {f'{where}: ' if where else ''}{message}") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{path}: holds a date or a number that is not finite: quote it") from None


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
    _refuse_examined({run.method: run for run in reversed(runs)}, plan, path)
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
        except ConfigError as error:
            raise ConfigError(f"{path}: methods.{name}: {error}") from None


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
    directory = out / "runs" / f"{slug(name)}-{seed}"
    ours = {"run.name": directory.name, "run.seed": seed, "algorithm.name": algorithm}
    if after and method_of(algorithm).data:
        ours[method_of(algorithm).data] = [_relative(out / "runs" / after)]
    words = [word for settings in (dotted(plan.settings), budget, own, ours) for word in _words(settings)]
    try:
        config = load_config(base, words)  # the last word on a key counts
        if trains:
            config.refuse_training()
    except ConfigError as error:
        said = str(error).replace("command line", f"{path}", 1)
        raise ConfigError(said if str(base) in said else f"{said} (methods.{name})") from None
    if not config.model.path:
        raise ConfigError(f"{path}: model.path is empty: name the model that all methods start from")
    return PlannedRun(name, seed, directory, config, after)


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


def slug(name: str) -> str:
    """A name as part of a directory's: ``q = 1`` -> ``q-1``."""
    return re.sub(r"[^\w.²+]+", "-", name).strip("-") or "method"

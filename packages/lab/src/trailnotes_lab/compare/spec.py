"""Read a comparison from its TOML file (docs/comparing.md): panels, methods, budget, seeds."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, ValidationInfo, model_validator

from trailnotes.config.methods import find_method, resolve_method, validate_method_name
from trailnotes.config.section import Section, key
from trailnotes.envs.base import suggest_nearest
from trailnotes.errors import ConfigError

INITIAL_MODEL_METHOD = "naive"  # the method that evaluates the start model as it is
PANELS_DIR = "panels"  # inside a run directory


@dataclass(frozen=True, slots=True)
class RunLocation:
    """Directories of one run of a comparison, and of its model on each further panel."""

    method: str
    seed: int
    directory: Path
    panels: Mapping[str, Path]  # name of the panel -> directory

    @property
    def name(self) -> str:
        return self.directory.name


class CompareSection(Section):
    """The table [compare]: name, seeds, baseline and threshold."""

    name: str = key("comparison", "name of the comparison; also of its directory by default", min_length=1)
    title: str = key("", "over the table and the picture; by default made of panel and metric")
    remark: str = key("", "why its table ranks no method, such as 'Too short to rank'; stands before the title")
    config: str = key("", "settings that all runs share: a TOML file beside this one, or a name of `config list`")
    seeds: tuple[int, ...] = key((0, 1, 2), "one run of each method for each", min_length=1)
    jobs: int = key(2, "runs side by side", ge=1)
    threshold: float = key(0.5, "sample efficiency counts environment steps until the curve reaches this")
    baseline: str = key("", "differences are taken to this method; '' = to none")


class Budget(Section):
    """The table [budget], the same for all methods: other limits may differ."""

    env_steps: int = key(0, "environment steps of each training run; 0 = not what is counted", ge=0)
    tokens: int = key(0, "generated tokens of each training run", ge=0)
    trials: int = key(0, "trials of each method that changes no weights; a method may name its own", ge=0)


class _SettingsSection(Section):
    settings: dict[str, Any] = key(dict, "what else differs: any setting")

    @model_validator(mode="before")
    @classmethod
    def gather_settings(cls, values: Any) -> Any:
        """Gather all keys that are no fields as settings; a table [methods.NAME.algorithm] is settings, too."""
        if not isinstance(values, Mapping):
            return values
        own = {k: v for k, v in values.items() if k in cls.model_fields and not isinstance(v, Mapping)}
        return own | {"settings": {k: v for k, v in values.items() if k not in own}}


class MethodSpec(_SettingsSection):
    """A table [methods.NAME]: one line of the result."""

    algorithm: str = key("", "algorithm.name; by default the method's own name")
    label: str = key("", "as table and picture call it")
    after: str = key("", "the method whose run with the same seed it starts from: its episodes are the data of "
                         "retrospex, its last model plays by any other method")  # fmt: skip


class PanelSpec(_SettingsSection):
    """A table [panels.NAME]: another panel, played trial after trial, each with the tips of those before it."""

    label: str = key("", "as table and picture call it; by default its name")
    trials: int = key(0, "trials with tips, after trial 0 without; at least one", ge=0)
    methods: list[str] = key(list, "who plays it: methods that train, and naive, which is the start model; "
                                   "[] = all of these")  # fmt: skip


class ComparisonSpec(Section):
    """All tables of the file."""

    compare: CompareSection = key(CompareSection, "what is compared")
    settings: dict[str, Any] = key(dict, "settings that all runs share")
    budget: Budget = key(Budget, "what every method may spend")
    methods: dict[str, MethodSpec] = key(dict, "the lines of the table", min_length=1)
    panels: dict[str, PanelSpec] = key(dict, "what else is evaluated, beside the panel of the settings")

    @model_validator(mode="after")
    def validate_spec(self, info: ValidationInfo) -> Self:
        """Refuse unknown names, and names that would share a directory or a label."""
        if len(set(self.compare.seeds)) < len(self.compare.seeds):
            raise ValueError("compare.seeds names a seed twice")
        for kind, names in (("methods", self.methods), ("panels", self.panels)):
            _require_unique(kind, "the directory", {name: slugify(name) for name in names})
        resolve = validate_method_name if info.context and not info.context["imports"] else resolve_method
        for name, method in self.methods.items():
            resolve(self.get_algorithm(name))
            if method.after:
                self._validate_after(name, method)
        if self.compare.baseline and self.compare.baseline not in self.methods:
            hint = suggest_nearest(self.compare.baseline, self.methods)
            raise ValueError(f"compare.baseline = {self.compare.baseline!r} names no method of the comparison{hint}")
        for name, panel in self.panels.items():
            self._validate_panel(name, panel)
        for kind, labels in (("methods", self.labels()), ("panels", self.panel_labels())):
            _require_unique(kind, "the label", labels)
        return self

    def _validate_after(self, name: str, method: MethodSpec) -> None:
        if method.after not in self.methods:
            raise ValueError(f"methods.{name}: after = {method.after!r} names no method of the comparison")
        if find_method(self.get_algorithm(name)).trains:
            raise ValueError(f"methods.{name} trains the model of the settings, not that of another run: drop after")
        if not find_method(self.get_algorithm(name)).data and not find_method(self.get_algorithm(method.after)).trains:
            raise ValueError(f"methods.{name}: after = {method.after!r} trains no model to start from")

    def _validate_panel(self, name: str, panel: PanelSpec) -> None:
        if not panel.trials:
            raise ValueError(f"panels.{name} has no trials: name how many with tips, such as trials = 3")
        if unknown := [method for method in panel.methods if method not in self.methods]:
            raise ValueError(f"panels.{name}: methods names {unknown[0]!r}, which is no method of the comparison")
        evaluable = set(self.list_evaluable_methods())
        if others := [method for method in panel.methods if method not in evaluable]:
            raise ValueError(f"panels.{name}: {others[0]} neither trains nor is naive, the start model as it is: "
                             "leave it out of methods")  # fmt: skip
        if not self.list_panel_methods(name):
            raise ValueError(f"panels.{name}: no method of the comparison trains or is naive, so nobody plays it")

    def list_evaluable_methods(self) -> list[str]:
        """List the methods that leave a model to evaluate: the start model, or one that was trained."""
        algorithms = {name: self.get_algorithm(name) for name in self.methods}
        start = [name for name in self.methods if algorithms[name] == INITIAL_MODEL_METHOD]
        start = [name for name in start if not self.methods[name].after]
        return [name for name in self.methods if name in start or find_method(algorithms[name]).trains]

    def list_panel_methods(self, panel: str) -> list[str]:
        chosen = self.panels[panel].methods
        return [name for name in self.list_evaluable_methods() if not chosen or name in chosen]

    def get_initial_method(self, panel: str) -> str:
        """Get the first of them that plays the start model; "" where none does."""
        names = self.list_panel_methods(panel)
        return next((name for name in names if self.get_algorithm(name) == INITIAL_MODEL_METHOD), "")

    def panel_labels(self) -> dict[str, str]:
        return {name: panel.label or name for name, panel in self.panels.items()}

    def list_run_locations(self, out: Path) -> list[RunLocation]:
        places = []
        players = {panel: set(self.list_panel_methods(panel)) for panel in self.panels}
        for seed in self.compare.seeds:
            for name in self.methods:
                directory = run_directory(out, name, seed)
                panels = {panel: panel_directory(directory, panel) for panel in players if name in players[panel]}
                places.append(RunLocation(name, seed, directory, panels))
        return places

    def get_algorithm(self, name: str) -> str:
        return self.methods[name].algorithm or name

    def labels(self) -> dict[str, str]:
        return {
            name: method.label or (find_method(name).label if method.algorithm in {"", name} else name)
            for name, method in self.methods.items()
        }


def load_spec(path: Path, *, imports: bool = True) -> ComparisonSpec:
    """Read a comparison from its file; `imports` as for `parse_spec`."""
    try:
        return parse_spec(path.read_bytes().decode("utf-8-sig"), path, imports=imports)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: give the path of a comparison's TOML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def parse_spec(text: str, path: Path, *, imports: bool = True) -> ComparisonSpec:
    """Parse a comparison from TOML; errors name `path`.

    Running a comparison imports its methods of the form module:NAME; to look at one of a stranger must run no code.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    if not values.get("methods"):
        raise ConfigError(f"{path}: names no methods to compare: add a table [methods.NAME] for each, or give the "
                          "settings of one run to trailnotes train")  # fmt: skip
    try:
        record = json.dumps(values, allow_nan=False)
        return ComparisonSpec.model_validate_json(record, strict=True, context={"imports": imports})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = [name for kind in (CompareSection, Budget, MethodSpec, PanelSpec) for name in kind.model_fields]
            hint = suggest_nearest(str(first["loc"][-1]), [*ComparisonSpec.model_fields, *known])
            raise ConfigError(f"{path}: {where} is not a key of a comparison{hint}") from None
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1)
        raise ConfigError(f"{path}: {f'{where}: ' if where else ''}{message}") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{path}: holds a date or a number that is not finite: quote it") from None


def _require_unique(kind: str, what: str, values: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for name, value in values.items():
        if (other := owners.setdefault(value, name)) != name:
            raise ValueError(f"{kind} {other!r} and {name!r} would share {what} {value!r}: rename one")


def run_directory(out: Path, method: str, seed: int) -> Path:
    return out / "runs" / f"{slugify(method)}-{seed}"


def panel_directory(run: Path, panel: str) -> Path:
    return run / PANELS_DIR / slugify(panel)


def slugify(name: str) -> str:
    """Turn a name into a part of a directory's name: ``q = 1`` -> ``q-1``."""
    return re.sub(r"[^\w.²+]+", "-", name).strip("-") or "method"

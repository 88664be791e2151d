"""List the stages of a comparison: which commands each run takes, and which of them are left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.config.toml import RUNTIME_KEYS, diff_configs, is_within
from trailnotes.envs.waymarks.env import collect_games, compile_all
from trailnotes.errors import RunError
from trailnotes.reporting.terminal import ProgressBar
from trailnotes.runs.directory import has_begun, is_trained, load_run_config
from trailnotes_lab.compare.cost import EVAL_STAGE
from trailnotes_lab.compare.expand import PlannedPanel, PlannedRun


@dataclass(frozen=True, slots=True)
class RunStage:
    """One process of a run, as a person would start it."""

    run: PlannedRun
    name: str  # train | eval | adapt; "eval NAME" of a panel
    command: tuple[str, ...]  # the words after `trailnotes`
    needs: tuple[str, ...] = ()  # keys of stages that must have ended well before; those not in the list have
    panel: PlannedPanel | None = None

    @property
    def key(self) -> str:
        return f"{self.run.name} {self.name}"

    @property
    def directory(self) -> Path:
        return (self.panel or self.run).directory

    @property
    def result_name(self) -> str:
        return panel_result_name(self.run.name, self.panel.name) if self.panel else self.run.name

    @property
    def settings(self) -> tuple[Path, Config]:
        return _settings_file(self.run, self.panel), (self.panel or self.run).config

    @property
    def is_done(self) -> bool:
        """Say whether the stage has come to its end."""
        if self.name == "train":
            return _is_record(self.run) or is_trained(self.run.directory, self.run.config)
        tables = [self.directory / EVAL_STAGE / "table.json"]  # written last
        tables += [] if self.name == EVAL_STAGE else [self.directory / "table.json"]
        return all(table.is_file() for table in tables)


def _is_record(run: PlannedRun) -> bool:
    """Say whether a directory has the results of these settings without checkpoints, as published records do."""
    weights = (run.directory / "checkpoints").glob("step-*/*")
    is_whole = (run.directory / EVAL_STAGE / "table.json").is_file() and not any(weights)
    return is_whole and not _list_changed_settings(run)


def panel_result_name(run: str, panel: str) -> str:
    return f"{run} {panel}"


def _settings_file(run: PlannedRun, panel: PlannedPanel | None = None) -> Path:
    folder = run.directory.parents[1] / "settings"
    return folder / run.name / f"{panel.directory.name}.toml" if panel else folder / f"{run.name}.toml"


def list_stages(run: PlannedRun) -> list[RunStage]:
    settings, directory, panels = _settings_file(run), run.directory, []
    for panel in run.panels:  # each begins with an empty memory: that of the training is not shown
        words = _make_adapt_command(panel.subject, panel.config, panel.directory, _settings_file(run, panel))
        needs = (f"{run.name} train",) if run.trains else ()
        panels.append(RunStage(run, f"{EVAL_STAGE} {panel.name}", words, needs, panel))
    if not run.trains:
        words = _make_adapt_command(run.initial_model, run.config, directory, settings)
        needs = (f"{run.after} train",) if run.after else ()
        return [RunStage(run, "adapt", words, needs), *panels]
    allowed = [word for name in _list_changed_settings(run) for word in ("--allow-change", name)]
    train = ("train", str(settings), "--run-dir", str(directory), *allowed)
    evaluate = ("eval", str(directory), "--out", str(directory / EVAL_STAGE))
    return [RunStage(run, "train", train), RunStage(run, EVAL_STAGE, evaluate, (f"{run.name} train",)), *panels]


def _make_adapt_command(subject: str, config: Config, directory: Path, settings: Path) -> tuple[str, ...]:
    return ("adapt", subject, "--method", config.algorithm.name, "--out", str(directory), "--config", str(settings))


def list_unfinished_stages(runs: Sequence[PlannedRun]) -> list[RunStage]:
    """List the stages that are left; a damaged one is among them, and reports its damage."""

    def is_left(stage: RunStage) -> bool:
        try:
            return not stage.is_done
        except RunError:
            return True

    return [stage for run in runs for stage in list_stages(run) if is_left(stage)]


def validate_unchanged_settings(runs: Sequence[PlannedRun]) -> None:
    """Refuse to mix results of different settings in one table."""
    changed: dict[str, list[str]] = {}
    for run in runs:
        own = [name for name in _list_changed_settings(run) if not is_within(name, RUNTIME_KEYS)]
        changed |= {run.name: own} if own else {}
        for panel in run.panels:
            expected = (*RUNTIME_KEYS, *own, "model.path")  # of the run itself, or of the checkpoint that it names
            changes = _diff_settings(panel.directory, panel.config)
            if more := [name for name in changes if not is_within(name, expected)]:
                changed[f"{run.name} on panel {panel.name}"] = more
    if changed:
        named = "; ".join(f"{name}: {', '.join(names)}" for name, names in changed.items())
        raise RunError(f"{runs[0].directory.parents[1]} holds runs with other settings ({named}): remove their "
                       "directories to run them again, or choose another --out")  # fmt: skip


def _list_changed_settings(run: PlannedRun) -> list[str]:
    changed = _diff_settings(run.directory, run.config)  # its own model.path names the checkpoint
    return [name for name in changed if not (name == "model.path" and run.uses_prior_model)]


def _diff_settings(directory: Path, config: Config) -> list[str]:
    if not (directory / "config.toml").is_file() or not has_begun(directory):
        return []
    return diff_configs(load_run_config(directory), config)


def compile_games(runs: Iterable[PlannedRun]) -> None:
    """Compile all games before any run has to wait for one; games in the cache cost nothing."""
    configs = [config for run in runs for config in (run.config, *(panel.config for panel in run.panels))]
    for folder, games in collect_games(configs).items():
        with ProgressBar(len(games), "compiling games") as bar:
            compile_all(games, progress=lambda done, _, bar=bar: bar.update(done), folder=folder)  # type: ignore[misc]

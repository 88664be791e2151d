"""The runs of a comparison as processes: what is left of each, in which order, and what became of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trailnotes.compare.cost import EXAMINING, note_process
from trailnotes.compare.plan import PlannedRun
from trailnotes.compare.processes import Ended, Job, failure, run_jobs
from trailnotes.config.toml import SURROUNDINGS, diff, to_toml
from trailnotes.envs.waymarks.env import compile_all, games_of
from trailnotes.errors import RunError
from trailnotes.runs.console import Bar
from trailnotes.runs.directory import has_begun, is_trained, run_config
from trailnotes.storage.files import write_text_atomic


@dataclass(frozen=True, slots=True)
class Stage:
    """One process of a run, as a person would start it."""

    run: PlannedRun
    name: str  # train | eval | adapt
    job: Job

    @property
    def done(self) -> bool:
        """Whether it has been gone through to its end.

        Raises:
            RunError: what it left is damaged.
        """
        if self.name == "train":
            return is_trained(self.run.directory, self.run.config)
        tables = [self.run.directory / EXAMINING / "table.json"]  # written last
        tables += [self.run.directory / "table.json"] if self.name == "adapt" else []
        return all(table.is_file() for table in tables)


def settings_file(run: PlannedRun) -> Path:
    """Where the settings of a run are written before it starts."""
    return run.directory.parents[1] / "settings" / f"{run.name}.toml"


def stages_of(run: PlannedRun) -> list[Stage]:
    """The processes of a run, in their order."""
    settings, directory = str(settings_file(run)), str(run.directory)
    if not run.trains:
        words = ["adapt", run.start, "--method", run.config.algorithm.name, "--out", directory, "--config", settings]
        return [_stage(run, "adapt", words, [f"{run.after} train"] if run.after else [])]
    allowed = [word for name in _changed(run) for word in ("--allow-change", name)]
    return [
        _stage(run, "train", ["train", settings, "--run-dir", directory, *allowed]),
        _stage(run, EXAMINING, ["eval", directory, "--out", f"{directory}/{EXAMINING}"], [f"{run.name} train"]),
    ]


def _stage(run: PlannedRun, name: str, words: Sequence[str], needs: Sequence[str] = ()) -> Stage:
    command = (sys.executable, "-m", "trailnotes", *words)
    return Stage(run, name, Job(f"{run.name} {name}", run.directory, command, tuple(needs)))


def left_of(runs: Sequence[PlannedRun]) -> list[Stage]:
    """The stages that have not been gone through; a damaged one is among them, and will say what is wrong."""

    def is_left(stage: Stage) -> bool:
        try:
            return not stage.done
        except RunError:
            return True

    return [stage for run in runs for stage in stages_of(run) if is_left(stage)]


def refuse_changed(runs: Sequence[PlannedRun]) -> None:
    """Results of two kinds of settings must not meet in one table.

    Raises:
        RunError: some runs were made with other settings; names them and the keys.
    """
    changed = {}
    for run in runs:
        if names := [name for name in _changed(run) if not _is_free(name)]:
            changed[run.name] = names
    if changed:
        named = "; ".join(f"{name}: {', '.join(names)}" for name, names in changed.items())
        raise RunError(f"{runs[0].directory.parents[1]} holds runs with other settings ({named}): remove their "
                       "directories to run them again, or choose another --out")  # fmt: skip


def _changed(run: PlannedRun) -> list[str]:
    if not (run.directory / "config.toml").is_file() or not has_begun(run.directory):
        return []
    changed = diff(run_config(run.directory), run.config)
    return [name for name in changed if not (name == "model.path" and run.follows)]  # its own names the checkpoint


def _is_free(name: str) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in SURROUNDINGS)


def compile_games(runs: Iterable[PlannedRun]) -> None:
    """Compile what the runs will play before any of them has to wait for it; games in the cache cost nothing."""
    for folder, games in games_of(run.config for run in runs).items():
        with Bar(len(games), "compiling games") as bar:
            compile_all(games, progress=lambda done, _, bar=bar: bar.update(done), folder=folder)  # type: ignore[misc]


def go_through(stages: Sequence[Stage], at_once: int, watch: Callable[[Sequence[Stage]], None]) -> dict[str, str]:
    """Run the stages that are left, `at_once` side by side.

    Returns:
        Name of the run -> why it has no result. The others ran.
    """
    by_name = {stage.job.name: stage for stage in stages}
    for stage in stages:
        write_text_atomic(settings_file(stage.run), to_toml(stage.run.config))

    def on_end(job: Job, ended: Ended) -> str:
        stage = by_name[job.name]
        note_process(stage.run.directory, stage.name, ended)
        if why := failure(job, ended):
            return why
        try:
            return "" if stage.done else "stopped before its end; the same command resumes from there"
        except RunError as error:
            return str(error)

    failures = run_jobs(
        [stage.job for stage in stages],
        at_once,
        watch=lambda running: watch([by_name[job.name] for job in running]),
        on_end=on_end,
    )
    missing: dict[str, str] = {}
    for name, why in failures.items():
        missing.setdefault(by_name[name].run.name, why)
    return missing

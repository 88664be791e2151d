"""Run the stages of a comparison: a loop over `trailnotes train`, `eval` and `adapt`, some of them side by side."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trailnotes.config.schema import Config
from trailnotes.config.toml import RUNTIME_KEYS, diff_configs, flatten_config, is_within, load_config, to_toml
from trailnotes.errors import ConfigError, RunError
from trailnotes.reporting.terminal import format_duration, ignore_write_errors
from trailnotes.runs.directory import has_begun, is_trained, load_run_config
from trailnotes.runs.panels import decides_episodes
from trailnotes.storage.checkpoint import MANIFEST, read_json
from trailnotes.storage.child import start_child
from trailnotes.storage.files import write_text_atomic
from trailnotes_lab.compare.cost import EVAL_STAGE, ProcessResult, record_process
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
        if self.name == "train":
            return _is_record(self.run) or is_trained(self.run.directory, self.run.config)
        tables = [self.directory / EVAL_STAGE / "table.json"]  # written last
        tables += [] if self.name == EVAL_STAGE else [self.directory / "table.json"]
        if not all(table.is_file() for table in tables) or _is_outdated(self.run, self.directory):
            return False
        return self.name != EVAL_STAGE or not _has_other_settings(self.run)


def _is_outdated(run: PlannedRun, directory: Path) -> bool:
    """Say whether the evaluation in `directory` is of an earlier checkpoint than the last; records have none."""
    panel = directory / EVAL_STAGE / "panel.json"
    last = max((run.directory / "checkpoints").glob(f"step-*/{MANIFEST}"), default=None)
    return last is not None and panel.is_file() and last.parent.name not in Path(read_json(panel)["model"]).parts


def _has_other_settings(run: PlannedRun) -> bool:
    """Say whether the evaluation of a trained run was made by hand, with tips or other settings than the run's."""
    place = run.directory / EVAL_STAGE
    try:
        with_tips = any(row["memory"] for row in read_json(place / "table.json")["rows"])
        changed = diff_configs(load_config(place / "eval.toml", trusted=False), run.config)
    except (ConfigError, KeyError, TypeError):
        return True  # it is not whole, and is played again
    return with_tips or any(name == "eval.metric" or decides_episodes(name) for name in changed)


def _is_record(run: PlannedRun) -> bool:
    """Say whether a directory has the results of these settings without checkpoints, as published records do."""
    weights = (run.directory / "checkpoints").glob("step-*/*")
    is_whole = (run.directory / EVAL_STAGE / "table.json").is_file() and not any(weights)
    return is_whole and all(is_within(name, RUNTIME_KEYS) for name in _list_changed_settings(run))


def panel_result_name(run: str, panel: str) -> str:
    return f"{run} {panel}"


def _settings_file(run: PlannedRun, panel: PlannedPanel | None = None) -> Path:
    folder = run.directory.parents[1] / "settings"
    return folder / run.name / f"{panel.directory.name}.toml" if panel else folder / f"{run.name}.toml"


def list_stages(run: PlannedRun) -> list[RunStage]:
    settings, directory, panels = _settings_file(run), run.directory, []
    for panel in run.panels:  # each begins with an empty memory: that of the training is not used
        words = _make_adapt_command(panel.subject, panel.config, panel.directory, _settings_file(run, panel))
        needs = (f"{run.name} train",) if run.trains else ()
        panels.append(RunStage(run, f"{EVAL_STAGE} {panel.name}", words, needs, panel))
    if not run.trains:
        subject = os.path.relpath(directory.parent / run.after) if run.uses_prior_model else run.config.model.path
        words = _make_adapt_command(subject, run.config, directory, settings)
        needs = (f"{run.after} train",) if run.after else ()
        return [RunStage(run, "adapt", words, needs), *panels]
    allowed = [word for name in _list_changed_settings(run) for word in ("--allow-change", name)]
    train = ("train", str(settings), "--run-dir", str(directory), *allowed)
    evaluate = ("eval", str(directory), "--out", str(directory / EVAL_STAGE), "--config", str(settings))
    return [RunStage(run, "train", train), RunStage(run, EVAL_STAGE, evaluate, (f"{run.name} train",)), *panels]


def _make_adapt_command(subject: str, config: Config, directory: Path, settings: Path) -> tuple[str, ...]:
    return ("adapt", subject, "--method", config.algorithm.name, "--out", str(directory), "--config", str(settings))


def list_unfinished_stages(runs: Sequence[PlannedRun]) -> list[RunStage]:
    """List the stages that are left, and those that need them; a damaged one is among them, and reports its damage."""

    def is_left(stage: RunStage) -> bool:
        try:
            return not stage.is_done
        except RunError:
            return True

    stages = [stage for run in runs for stage in list_stages(run)]
    left = {stage.key for stage in stages if is_left(stage)}
    return [stage for stage in stages if stage.key in left or left.intersection(stage.needs)]


def validate_unchanged_settings(runs: Sequence[PlannedRun]) -> None:
    """Refuse to mix results of different settings in one table."""
    changed: dict[str, list[str]] = {}
    for run in runs:
        own = [name for name in _list_changed_settings(run) if not is_within(name, RUNTIME_KEYS)]
        changed |= {run.name: own} if own else {}
        goes_on = run.trains and run.panels and _is_unfinished(run)
        for panel in run.panels:
            expected = (*RUNTIME_KEYS, *own, "model.path")  # of the run itself, or of the checkpoint that it names
            changes = _diff_settings(panel.directory, panel.config)
            if more := [name for name in changes if not is_within(name, expected)]:
                changed[f"{run.name} on panel {panel.name}"] = more
            elif _is_outdated(run, panel.directory) or (goes_on and has_begun(panel.directory)):
                changed[f"{run.name} on panel {panel.name}"] = ["an earlier checkpoint"]
    by_name = {run.name: run for run in runs}
    for run in runs:
        has_results = run.after and has_begun(run.directory)  # of what the run before it had left by then
        if has_results and (run.after in changed or _is_unfinished(by_name[run.after])):
            why = f"after {run.after}, which {'has changed' if run.after in changed else 'is unfinished'}"
            changed[run.name] = [*changed.get(run.name, ()), why]
    if changed:
        named = "; ".join(f"{name}: {', '.join(names)}" for name, names in changed.items())
        raise RunError(f"{runs[0].directory.parents[1]} holds runs with other settings ({named}): remove their "
                       "directories to run them again, or choose another --out")  # fmt: skip


def _is_unfinished(run: PlannedRun) -> bool:
    try:
        return not list_stages(run)[0].is_done
    except RunError:
        return False  # it is damaged, and reports that itself


def _list_changed_settings(run: PlannedRun) -> list[str]:
    changed = _diff_settings(run.directory, run.config)
    if run.prior_key in changed:  # a path from where the run was started: the same run may lie elsewhere now
        named = flatten_config(load_run_config(run.directory)).get(run.prior_key, ())
        if any(run.after in Path(path).parts for path in ([named] if isinstance(named, str) else named)):
            changed.remove(run.prior_key)
    return changed


def _diff_settings(directory: Path, config: Config) -> list[str]:
    if not (directory / "config.toml").is_file() or not has_begun(directory):
        return []
    return diff_configs(load_run_config(directory), config)


LOG_FILE = "console.log"  # in the directory of each stage
POLL_SECONDS = 0.5  # between two looks at the running processes
STOP_TIMEOUT = 3600.0  # seconds that a process asked to stop may take for its iteration, which may be a long one


def run_stages(stages: Sequence[RunStage], at_once: int) -> dict[str, str]:
    """Run `stages` in their order, `at_once` side by side. However this ends, it leaves no process.

    Returns:
        `RunStage.key` -> why there is no result, of the stages that failed, or that needed one that failed.
    """
    for stage in stages:
        path, config = stage.settings
        write_text_atomic(path, to_toml(config))
    waiting, failures = list(stages), dict[str, str]()
    running: list[StageProcess] = []
    try:
        while waiting or running:
            pending = {stage.key for stage in (*waiting, *(process.stage for process in running))}
            for stage in list(waiting):
                if lost := [name for name in stage.needs if name in failures]:
                    waiting.remove(stage)
                    failures[stage.key] = f"needs {lost[0]}, which failed"
                elif len(running) < at_once and not pending.intersection(stage.needs):
                    waiting.remove(stage)
                    try:
                        running.append(StageProcess(stage))
                    except OSError as error:
                        failures[stage.key] = f"cannot be started: {error}"
            for process in [process for process in running if process.poll()]:
                running.remove(process)
                if why := process.find_failure():
                    failures[process.stage.key] = why
            time.sleep(POLL_SECONDS if running else 0)
    finally:
        stop_processes(running)
    return failures


class StageProcess:
    """A stage under way, in a process group of its own: Ctrl-C reaches the parent alone, which asks it to stop."""

    def __init__(self, stage: RunStage) -> None:
        stage.directory.mkdir(parents=True, exist_ok=True)
        self.stage, self.ended = stage, False
        self._started = time.monotonic()
        command = [sys.executable, "-m", "trailnotes", *stage.command]
        with (stage.directory / LOG_FILE).open("ab") as log:
            self._process = start_child(command, death_signal=None, stdout=log, stderr=log)
        _print_progress(f"{stage.run.name}  {stage.name}")

    def poll(self, *, block: bool = False) -> bool:
        """Say whether the process has ended; what it took is recorded then."""
        if not self.ended:
            pid, status, usage = os.wait4(self._process.pid, 0 if block else os.WNOHANG)
            if pid:
                self.ended = True
                self._process.returncode = os.waitstatus_to_exitcode(status)  # Popen need not wait again
                seconds, cpu = time.monotonic() - self._started, usage.ru_utime + usage.ru_stime
                memory = usage.ru_maxrss * 1024  # Linux: kB, at least that of this process at its start
                result = ProcessResult(self._process.returncode, seconds, cpu, memory)
                try:
                    record_process(self.stage.run.directory, self.stage.name, result)
                except (OSError, RunError) as error:  # a full disk, a damaged run: the other runs go on
                    _print_progress(f"{self.stage.run.name}  {self.stage.name}  its costs were not recorded: {error}")
        return self.ended

    def find_failure(self) -> str:
        """Say why the ended stage left no result; "" if it did."""
        why, status = "", self._process.returncode
        if status:
            lines = (self.stage.directory / LOG_FILE).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            how = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
            why = f"{how}: {lines[-1].strip() if lines else 'no output'}"
        else:
            try:
                log = self.stage.directory / LOG_FILE
                why = "" if self.stage.is_done else f"stopped before its end, and {log} says why"
            except RunError as error:
                why = str(error)
        taken = format_duration(time.monotonic() - self._started)
        _print_progress(
            f"{self.stage.run.name}  {self.stage.name}  " + (f"failed: {why}" if why else f"done ({taken})")
        )
        return why

    def send(self, number: signal.Signals) -> None:
        if not self.poll():
            os.kill(self._process.pid, number)


def stop_processes(processes: Sequence[StageProcess]) -> None:
    """Ask processes to stop, which finishes the iteration and saves; a second interrupt or the timeout kills."""
    if not processes:
        return
    _print_progress("stopping after the iterations under way; interrupt again to stop at once")
    try:
        for process in processes:
            process.send(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT
        while time.monotonic() < deadline and not all(process.poll() for process in processes):
            time.sleep(0.02)
    finally:
        for process in processes:
            process.send(signal.SIGKILL)
            process.poll(block=True)
    _print_progress("stopped; the same command resumes from here")


def _print_progress(text: str) -> None:
    print(text, file=ignore_write_errors(sys.stderr), flush=True)  # the terminal may have been closed

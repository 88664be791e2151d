"""Run the stages of a comparison: a loop over `trailnotes train`, `eval` and `adapt`, some of them side by side."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

from trailnotes.config.toml import to_toml
from trailnotes.errors import RunError
from trailnotes.reporting.terminal import format_duration, ignore_write_errors
from trailnotes.storage.child import start_child
from trailnotes.storage.files import write_text_atomic
from trailnotes_lab.compare.cost import ProcessResult, record_process
from trailnotes_lab.compare.stages import RunStage

LOG_FILE = "console.log"  # in the directory of each stage
POLL_SECONDS = 0.5  # between two looks at the running processes
STOP_TIMEOUT = 120.0  # seconds that a process asked to stop may take for its iteration


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
                    running.append(StageProcess(stage))
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
                record_process(self.stage.run.directory, self.stage.name, result)
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
                why = "" if self.stage.is_done else "stopped before its end; the same command resumes from there"
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

"""Run commands side by side, and leave no process behind.

Each is a process in a group of its own, writes to the console.log of its directory, and is asked once to stop before
it is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trailnotes.storage.child import start_child

LOG_FILE = "console.log"
POLL_SECONDS = 0.5  # seconds between two looks at the running processes
STOP_TIMEOUT = 120.0  # seconds that a process asked to stop may take for its iteration
_TAIL_BYTES = 4096  # bytes at the end of a log in which its last line is looked for


@dataclass(frozen=True, slots=True)
class Job:
    """One command with its directory and the jobs that it needs."""

    name: str  # unique among those run together
    directory: Path  # where its console.log goes
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()  # names of jobs that must have ended well before; those not in the list have


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """Exit status, time and memory of a process."""

    status: int  # 0 = well; negative: the signal that ended it
    seconds: float  # wall clock
    cpu_seconds: float  # of all its threads, and of its own processes that it waited for
    peak_memory: int  # bytes resident, of its largest process; never less than the starter's own at the start


class JobProcess:
    """A running command in its own process group: Ctrl-C reaches the parent alone, which then asks it to stop."""

    def __init__(self, job: Job) -> None:
        job.directory.mkdir(parents=True, exist_ok=True)
        self._started = time.monotonic()
        with (job.directory / LOG_FILE).open("ab") as log:
            self._process = start_child(job.command, death_signal=None, stdout=log, stderr=log)
        self.pid = self._process.pid
        self.ended: ProcessResult | None = None

    def poll(self, *, block: bool = False) -> ProcessResult | None:
        """Get the result of the process once it has ended, else None."""
        if self.ended is None:
            pid, status, usage = os.wait4(self.pid, 0 if block else os.WNOHANG)
            if pid:
                code = self._process.returncode = os.waitstatus_to_exitcode(status)  # Popen need not wait again
                seconds, cpu = time.monotonic() - self._started, usage.ru_utime + usage.ru_stime
                memory = usage.ru_maxrss * 1024  # Linux: kB, at least that of this process at its start
                self.ended = ProcessResult(code, seconds, cpu, memory)
        return self.ended

    def terminate(self) -> None:
        """Ask the process to stop."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.poll(block=True)


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    *,
    watch: Callable[[Sequence[Job]], None],
    on_end: Callable[[Job, ProcessResult], str],
) -> dict[str, str]:
    """Run `jobs` in their order, `at_once` side by side. However this ends, it leaves no process.

    Args:
        jobs: commands; each waits for those that it needs.
        at_once: processes at a time.
        watch: called at each poll with the jobs that run.
        on_end: called when a process has ended; returns why this counts as a failure, "" if it does not.

    Returns:
        Name -> why, of the jobs that failed or, since what they need did, never began. The others ran.
    """
    waiting, failures = list(jobs), dict[str, str]()
    running: dict[Job, JobProcess] = {}
    try:
        while waiting or running:
            pending = {job.name for job in (*waiting, *running)}
            ready = [job for job in waiting if not pending.intersection(job.needs)]
            for job in ready[: at_once - len(running)]:
                waiting.remove(job)
                running[job] = JobProcess(job)
            for job, process in list(running.items()):
                if ended := process.poll():
                    del running[job]
                    if why := on_end(job, ended):
                        failures[job.name] = why
                        _skip_dependents(waiting, failures)
            watch(list(running))
            time.sleep(POLL_SECONDS if running else 0)
    finally:
        try:
            stop_processes(list(running.values()))
        finally:
            for job, process in running.items():
                if process.ended:  # the costs of interrupted processes are recorded, too
                    on_end(job, process.ended)
    return failures


def _skip_dependents(waiting: list[Job], failures: dict[str, str]) -> None:
    for job in list(waiting):
        if lost := [name for name in job.needs if name in failures]:
            failures[job.name] = f"needs {lost[0]}, which failed"
            waiting.remove(job)
            _skip_dependents(waiting, failures)
            return


def describe_failure(job: Job, ended: ProcessResult) -> str:
    """Describe a failure, "" for status 0: ``ended with status 2: ``, and the last line of the log."""
    if not ended.status:
        return ""
    how = f"ended with status {ended.status}" if ended.status >= 0 else f"was ended by signal {-ended.status}"
    return f"{how}: {read_last_line(job.directory / LOG_FILE) or 'no output'}"


def read_last_line(log: Path) -> str:
    """Read the last line of a log that is not empty."""
    lines = read_tail(log, _TAIL_BYTES).decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def read_tail(path: Path, size: int) -> bytes:
    """Read the last `size` bytes of a file; all of a shorter one, none where there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read()
    except FileNotFoundError:
        return b""


def stop_processes(processes: Sequence[JobProcess]) -> None:
    """Ask processes to stop, which finishes the iteration and saves; a second interrupt or the timeout kills."""
    alive = [process for process in processes if process.poll() is None]
    if alive:
        _print_message("stopping after the iterations under way; interrupt again to stop at once")
    try:
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT
        while time.monotonic() < deadline and any(process.poll() is None for process in alive):
            time.sleep(0.02)
    finally:
        for process in alive:
            process.kill()
    if alive:
        _print_message("stopped; the same command resumes from here")


def _print_message(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may have been closed
        print(text, flush=True)

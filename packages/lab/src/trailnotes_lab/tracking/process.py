"""The run's side of its trackers: it starts a process for each, tells it that there is more, and never waits.

The pipe carries one byte an iteration, and drops what does not fit: the process reads the run's own files, so that
nothing is lost, and nothing piles up here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from trailnotes.storage.child import start_child
from trailnotes_lab.tracking.main import CALL_TIMEOUT, END_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

logger = logging.getLogger(__name__)
CLOSE_TIMEOUT = 90.0  # seconds that a run waits for its trackers when it ends
_MAX_ERROR_BYTES = 4096  # bytes of the last message of a process
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trailnotes_lab.tracking.main import main; main(sys.argv[2], sys.argv[3], float(sys.argv[4]))"
)


class Trackers:
    """All trackers of the run in `directory`; an error of a tracker raises nothing here, and only `close` waits.

    Each is a name of ``run.trackers``, and has `limit` seconds for one call.
    """

    def __init__(self, names: Iterable[str], directory: Path, limit: float = CALL_TIMEOUT) -> None:
        self._running = [_TrackerProcess(name, directory, limit) for name in names]

    def notify(self) -> None:
        """Tell all trackers that an iteration has ended; warn once of each that has failed meanwhile."""
        for process in self._running:
            process.send(b"\n")

    def close(self, *, finished: bool, limit: float = CLOSE_TIMEOUT) -> None:
        """Let all show the rest, for `limit` seconds together, and end the others.

        `finished`: the run ended by itself, and was not stopped.
        """
        try:
            for process in self._running:
                process.send(END_MESSAGE if finished else b"", last=True)
            deadline = time.monotonic() + limit
            for process in self._running:
                process.wait(max(0.0, deadline - time.monotonic()), limit)
        finally:
            for process in self._running:
                process.kill()
            self._running = []


class _TrackerProcess:
    """The process of one tracker, in a group of its own, so that Ctrl-C in the terminal does not reach it."""

    def __init__(self, name: str, directory: Path, limit: float) -> None:
        self._name, self._limit = name, limit
        words = [json.dumps([str(path) for path in sys.path]), name, str(directory), str(limit)]
        self._process: subprocess.Popen[bytes] | None = None
        try:
            command = [sys.executable, "-c", _BOOTSTRAP, *words]
            self._process = start_child(command, death_signal=None, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            self._warn(f"its process cannot be started ({error.strerror}): free memory or processes")
            return
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    def send(self, line: bytes, *, last: bool = False) -> None:
        if self._process is None:
            return
        if self._process.poll() is not None:
            self._report_exit(self._process)
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # full: it is told enough; broken: the next call sees why
            self._process.stdin.write(line)
        if last:
            self._process.stdin.close()

    def wait(self, seconds: float, limit: float) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._warn(f"it was not done {limit:g} s after the run had ended: the same command on this directory "
                       "shows what is missing")  # fmt: skip
        else:
            self._report_exit(self._process)

    def kill(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # what a tracker started may outlive it
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None

    def _report_exit(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        words = (process.stdout.read(_MAX_ERROR_BYTES) or b"").decode(errors="replace").strip().rstrip(".")
        if process.returncode == -signal.SIGALRM:
            self._warn(f"a call to it took longer than {self._limit:g} s: see whether its service answers")
        elif process.returncode:
            self._warn(words or f"its process died (status {process.returncode}): start again to show the rest")
        self.kill()

    def _warn(self, why: str) -> None:
        logger.warning(
            "tracker %s shows no more of this run: %s. The run goes on, and its own files have everything; "
            "docs/trackers.md", self._name, why
        )  # fmt: skip

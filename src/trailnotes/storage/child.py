"""Child processes: each starts in a group of its own, ends with its parent, and can be killed with its own children."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeAlias, cast

Process: TypeAlias = "subprocess.Popen[bytes]"
Request = tuple[list[str], dict[str, Any], "Future[Process]"]

STOP_TIMEOUT = 5.0  # seconds for a killed process to be gone

# The child itself must ask for the parent-death signal. Code between fork and exec (preexec_fn) may deadlock in a
# process with threads, and makes subprocess copy the page tables of one that holds a model; an interpreter that becomes
# the program costs 20 ms and neither.
_EXEC_STUB = """
import ctypes, os, sys
parent, number, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, int(number))
if os.getppid() != int(parent):
    sys.exit(1)
try:
    os.execv(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]}: {error.strerror}")
"""


def start_child(command: Sequence[str], *, death_signal: int | None = signal.SIGKILL, **options: Any) -> Process:
    """Start a process in a group of its own, which Ctrl-C in the terminal does not reach.

    `command` begins with the path of the program. Linux sends the child `death_signal` (None: nothing) when this
    process ends, however it ends; elsewhere the end of a pipe or socket must end the child. `options` are those of
    `subprocess.Popen`; streams are /dev/null and unbuffered unless named here.
    """
    command = list(command)
    if death_signal is not None and sys.platform == "linux" and sys.executable:
        stub = [sys.executable, "-I", "-S", "-c", _EXEC_STUB, str(os.getpid()), str(int(death_signal))]
        command = [*stub, *command]
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    return _SPAWNER.run(command, {**quiet, "bufsize": 0, "process_group": 0, **options})


def kill_group(process: subprocess.Popen[Any], limit: float = STOP_TIMEOUT) -> None:
    """Kill a child with all its children, and wait at most `limit` seconds until it is gone."""
    if process.returncode is None:  # not reaped yet, so the number is surely its own
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit)


def wait_for_group(process: subprocess.Popen[Any]) -> int:
    """Wait until a child has ended by itself, kill the children that it leaves behind, and return its code."""
    if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # not reaped: the number stays that of its group
        kill_group(process)
    return process.wait()


def describe_exit(code: int | None) -> str:
    """Say how a process with this return code ended; None: it is unknown."""
    if code is None or code >= 0:
        return "died" if code is None else f"exited with status {code}"
    with suppress(ValueError):
        return f"died of {signal.Signals(-code).name}"
    return f"died of signal {-code}"


def last_line(output: bytes) -> str:
    """Find the last line of a process's output that is not blank; at most 500 characters, "" for none."""
    lines = output.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:500]


class _Spawner:
    """The one thread that starts all children: the death signal comes when the *thread* that started a child ends."""

    _thread: threading.Thread | None

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def run(self, command: list[str], options: dict[str, Any]) -> Process:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, args=(self._requests,), name="spawner", daemon=True)
                self._thread.start()
        answer: Future[Process] = Future()
        self._requests.put((command, options, answer))
        try:
            return answer.result()
        except BaseException:  # interrupted: nothing else knows of this child
            answer.add_done_callback(lambda done: None if done.exception() else done.result().kill())
            raise

    def _forget(self) -> None:
        """Begin anew in a forked copy of this process, which has no such thread."""
        self._starting = threading.Lock()
        self._thread = None
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()

    @staticmethod
    def _serve(requests: queue.SimpleQueue[Request]) -> None:
        while True:
            command, options, answer = requests.get()
            try:
                answer.set_result(cast("Process", subprocess.Popen(command, **options)))  # noqa: S603 - callers choose it
            except BaseException as error:  # noqa: BLE001 - raised again in the caller
                answer.set_exception(error)
            del answer  # or this thread would keep the process until the next request


_SPAWNER = _Spawner()

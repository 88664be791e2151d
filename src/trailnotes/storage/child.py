"""Child processes: each starts in a group of its own, ends with its parent, and can be killed with its own children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias

Process: TypeAlias = "subprocess.Popen[bytes]"

STOP_TIMEOUT = 5.0  # seconds for a killed process to be gone
# The one thread that starts all children: the death signal comes when the *thread* that started a child ends.
_spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")

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
    options = {**quiet, "bufsize": 0, "process_group": 0, **options}
    started: Future[Process] = _spawner.submit(lambda: subprocess.Popen(command, **options))  # noqa: S603
    try:
        return started.result()
    except BaseException:  # interrupted: nothing else knows of this child
        started.add_done_callback(lambda done: None if done.exception() else done.result().kill())
        raise


def _renew_spawner() -> None:
    """Begin anew in a forked copy of this process, which has no such thread."""
    global _spawner  # noqa: PLW0603
    _spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")


os.register_at_fork(after_in_child=_renew_spawner)


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

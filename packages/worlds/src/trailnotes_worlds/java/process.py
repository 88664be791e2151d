"""Child process that ends with this process, however this one ends, and that never blocks on its output."""

from __future__ import annotations

import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from trailnotes.errors import EnvError

STDERR_TAIL_BYTES = 4096  # kept bytes of the child's stderr
CHUNK = 1 << 16
STOP_TIMEOUT_S = 5.0  # seconds for a killed process to be gone

# The parent-death signal must be set in the child itself. Code between fork and exec (preexec_fn) may deadlock in a
# process with threads, and makes subprocess copy the page tables of one that holds a model; an interpreter that
# becomes the program costs 20 ms and neither.
_EXEC_STUB = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


class ChildProcess:
    """Process in a group of its own, out of reach of the terminal's Ctrl-C, with pipes to all three streams.

    On Linux the parent-death signal kills it with its parent; elsewhere the end of its stdin must end it. Methods have
    no effect on it in a forked copy of this process.
    """

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        """Start `command`, whose first word is an absolute path, in `folder`. Raises `EnvError` on failure."""
        self._owner = os.getpid()
        if sys.platform == "linux" and sys.executable:
            command = [sys.executable, "-I", "-S", "-c", _EXEC_STUB, str(self._owner), *command]
        try:
            self._process = _SPAWNER.run(command, folder, environment)
        except OSError as error:
            raise EnvError(f"no process could be started: {error}") from error
        self._words: deque[bytes] = deque()
        assert self._process.stderr is not None
        self._listener = threading.Thread(
            target=_drain_tail, args=(self._process.stderr.fileno(), self._words), name="last words", daemon=True
        )
        self._listener.start()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def is_inherited(self) -> bool:
        """Whether this object is a forked copy, whose process belongs to the parent."""
        return os.getpid() != self._owner

    def read_lines(self, num: int, limit: float) -> list[str]:
        """Read the first lines of its stdout, and close it.

        Raises:
            EnvError: it ended, or wrote less within `limit` seconds.
        """
        assert self._process.stdout is not None
        deadline, data = time.monotonic() + limit, b""
        with self._process.stdout as stdout, selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while data.count(b"\n") < num:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise EnvError(f"it said nothing within {limit:g} s")
                more = os.read(stdout.fileno(), CHUNK)
                if not more:
                    raise EnvError(self.describe_exit() or "it closed its output")
                data += more
        return data.decode(errors="replace").split("\n")[:num]

    def describe_exit(self, patience: float = 1.0) -> str:
        """Describe its exit, with the last line of its stderr; "" if it still runs after `patience` seconds."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return ""
        self._listener.join(patience)
        lines = b"".join(self._words).decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        how = f"it exited with status {code}" if code >= 0 else f"it died of signal {-code}"
        with suppress(ValueError):
            how = f"it died of {signal.Signals(-code).name}" if code < 0 else how
        return f"{how}; its last words: {last[:500]}" if last else how

    def kill(self) -> None:
        """Kill the process and close its streams. A second call is harmless."""
        process = self._process
        if self.is_inherited:
            process.returncode = 0  # else the copy would warn that it still runs
        elif process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            self._listener.join(STOP_TIMEOUT_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _drain_tail(descriptor: int, words: deque[bytes]) -> None:
    with suppress(OSError):
        while data := os.read(descriptor, CHUNK):
            words.append(data)
            while len(words) > 1 and sum(map(len, words)) - len(words[0]) >= STDERR_TAIL_BYTES:
                words.popleft()


Request = tuple[list[str], Path, dict[str, str], "Future[subprocess.Popen[bytes]]"]


class _Spawner:
    """Single thread that starts all children of this process.

    The death of the *thread* that started a child triggers the parent-death signal: this one lives as long as the
    process.
    """

    def __init__(self) -> None:  # again in a forked child, which has no threads
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()

    def run(self, command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, args=(self._requests,), name="spawner", daemon=True)
                self._thread.start()
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((command, folder, environment, answer))
        try:
            return answer.result()
        except BaseException:  # interrupted: no other code knows of this child
            answer.add_done_callback(lambda done: None if done.exception() else done.result().kill())
            raise

    @staticmethod
    def _serve(requests: queue.SimpleQueue[Request]) -> None:
        while True:
            command, folder, environment, answer = requests.get()
            try:
                pipe = subprocess.PIPE
                process = subprocess.Popen(  # noqa: S603 - a Java that the user chose, with fixed arguments
                    command, 0, None, pipe, pipe, pipe, cwd=folder, env=environment, process_group=0
                )
            except BaseException as error:  # noqa: BLE001 - raised again in the caller
                answer.set_exception(error)
            else:
                answer.set_result(process)


_SPAWNER = _Spawner()
os.register_at_fork(after_in_child=lambda: _Spawner.__init__(_SPAWNER))

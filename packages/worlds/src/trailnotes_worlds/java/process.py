"""A child process that ends with us, however we end, and whose output never blocks it."""

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

STDERR_TAIL_BYTES = 4096  # bytes of the child's stderr that are kept
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
    """A process in its own group, so that Ctrl-C in the terminal does not reach it, with pipes to all three streams.

    It is killed with its parent by the parent-death signal on Linux; elsewhere the end of its stdin must end it.
    In a forked copy of this process the child belongs to no one: nothing that is done to it there has an effect.
    """

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        """Start `command`, whose first word is an absolute path, in `folder`. Raises `EnvError` if it cannot."""
        self._owner = os.getpid()
        try:
            self._process = _SPAWNER.run(_wrap_with_death_signal(self._owner, command), folder, environment)
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
        """Number of the process."""
        return self._process.pid

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked copy: the process belongs to the parent."""
        return os.getpid() != self._owner

    def read_lines(self, num: int, limit: float) -> list[str]:
        """The first lines of its stdout, which is closed then.

        Raises:
            EnvError: it ended, or said less within `limit` seconds.
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
        """How it ended by itself, with the last line of its stderr; '' if it still runs after `patience` seconds."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return ""
        self._listener.join(patience)
        lines = b"".join(self._words).decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        how = f"it exited with status {code}" if code >= 0 else f"it died of {_get_signal_name(-code)}"
        return f"{how}; its last words: {last[:500]}" if last else how

    def kill(self) -> None:
        """End it and close what we hold of it. Twice is fine."""
        process = self._process
        if self.is_inherited:
            process.returncode = 0  # or the copy would warn that it still runs
        elif process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            self._listener.join(STOP_TIMEOUT_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _wrap_with_death_signal(parent: int, command: list[str]) -> list[str]:
    if sys.platform != "linux" or not sys.executable:
        return command
    return [sys.executable, "-I", "-S", "-c", _EXEC_STUB, str(parent), *command]


def _drain_tail(descriptor: int, words: deque[bytes]) -> None:
    """Read until the end; keep the end."""
    with suppress(OSError):
        while data := os.read(descriptor, CHUNK):
            words.append(data)
            while len(words) > 1 and sum(map(len, words)) - len(words[0]) >= STDERR_TAIL_BYTES:
                words.popleft()


def _get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


Request = tuple[list[str], Path, dict[str, str], "Future[subprocess.Popen[bytes]]"]


class _Spawner:
    """The one thread that starts all children of this process.

    The parent-death signal comes when the *thread* dies that started the child: this one lives as long as the
    process, whichever event loop, executor or test asked.
    """

    _starting: threading.Lock
    _thread: threading.Thread | None
    _requests: queue.SimpleQueue[Request]

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def run(self, command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a child. Raises `OSError` if the system refuses."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, args=(self._requests,), name="spawner", daemon=True)
                self._thread.start()
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((command, folder, environment, answer))
        try:
            return answer.result()
        except BaseException:  # interrupted: nobody else will ever know of this child
            answer.add_done_callback(_kill_unwanted)
            raise

    def _forget(self) -> None:
        """A forked child has none of our threads."""
        self._starting = threading.Lock()
        self._thread = None
        self._requests = queue.SimpleQueue()

    @staticmethod
    def _serve(requests: queue.SimpleQueue[Request]) -> None:
        while True:
            command, folder, environment, answer = requests.get()
            try:
                process = subprocess.Popen(  # noqa: S603 - a Java that the user chose, with arguments of ours
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    process_group=0,
                )
            except BaseException as error:  # noqa: BLE001 - raised again in the caller
                answer.set_exception(error)
            else:
                answer.set_result(process)


def _kill_unwanted(answer: Future[subprocess.Popen[bytes]]) -> None:
    if not answer.exception():
        answer.result().kill()


_SPAWNER = _Spawner()

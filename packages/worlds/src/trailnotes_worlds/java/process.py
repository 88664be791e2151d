"""Child process that ends with this process, however this one ends, and that never blocks on its output."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from trailnotes.errors import EnvError
from trailnotes.storage.child import STOP_TIMEOUT, describe_exit, kill_group, last_line, start_child

STDERR_TAIL_BYTES = 4096  # kept bytes of the child's stderr
CHUNK = 1 << 16


class ChildProcess:
    """Process in a group of its own, out of reach of the terminal's Ctrl-C, with pipes to all three streams.

    On Linux the parent-death signal kills it with its parent; elsewhere the end of its stdin must end it. Methods have
    no effect on it in a forked copy of this process.
    """

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        """Start `command`, whose first word is an absolute path, in `folder`. Raises `EnvError` on failure."""
        self._owner = os.getpid()
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            self._process = start_child(command, cwd=folder, env=environment, **pipes)
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
        return self._process.pid

    @property
    def is_inherited(self) -> bool:
        """Whether this object is a forked copy, whose process belongs to the parent."""
        return os.getpid() != self._owner

    def read_lines(self, num: int, limit: float) -> list[str]:
        """Read the first lines of its stdout, and close it."""
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
        last = last_line(b"".join(self._words))
        return f"it {describe_exit(code)}" + (f"; its last words: {last}" if last else "")

    def kill(self) -> None:
        """Kill the process and close its streams. A second call is harmless."""
        process = self._process
        if self.is_inherited:
            process.returncode = 0  # else the copy would warn that it still runs
        elif process.returncode is None:
            kill_group(process)
            self._listener.join(STOP_TIMEOUT)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _drain_tail(descriptor: int, words: deque[bytes]) -> None:
    with suppress(OSError):
        while data := os.read(descriptor, CHUNK):
            words.append(data)
            while len(words) > 1 and sum(map(len, words)) - len(words[0]) >= STDERR_TAIL_BYTES:
                words.popleft()

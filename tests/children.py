"""Processes as a test sees them from outside."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[int]:
    """Those of all its threads."""
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def signal_at_write(below: Path, events: Sequence[str], fatal: int, number: int = signal.SIGKILL) -> None:
    """Have this process send itself a signal at the `fatal`-th of these audit events that writes below a path.

    `fatal` 0 never comes.
    """
    left = fatal

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        reading = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in events and not reading and str(arguments[0]).startswith(str(below)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    sys.addaudithook(watch)

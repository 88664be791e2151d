"""The processes that rank 0 starts beside itself, what became of them, and their end.

Each has a pipe from rank 0, on which nothing is ever written: it ends when rank 0 does, however that comes, and the
process with it. What a follower has to say before it fails stands in a file of the private directory they meet in.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

GRACE = 5.0  # seconds that a follower has to say why it fails, and to end when it is told to
STUCK = 60.0  # seconds after a follower's death in which rank 0 should have noticed by itself


class Followers:
    """Ranks 1 to `world` - 1 as processes of this machine.

    Args:
        world: ranks, this process among them.
        device_type: cpu or cuda.
        seconds: that one may wait for another.
    """

    def __init__(self, world: int, device_type: str, seconds: float) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="trailnotes-learner-"))  # nobody else may read it
        self.seconds = seconds
        self._busy = self._ended = False
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(1, world):
            command = [sys.executable, "-m", "trailnotes.learner.rank", str(rank), str(world), str(self.directory)]
            with self._said(rank, "log").open("wb") as log:
                self.processes[rank] = subprocess.Popen(  # noqa: S603 - this very interpreter and package
                    [*command, device_type, str(seconds)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # a Ctrl-C is for rank 0, which lets the iteration end
                )
        threading.Thread(target=self._watch, name="learner-watch", daemon=True).start()

    @property
    def store(self) -> str:
        """The file that all meet over."""
        return str(self.directory / "store")

    def alive(self) -> bool:
        """Whether none has ended."""
        return all(process.poll() is None for process in self.processes.values())

    def what_failed(self, error: BaseException) -> str:
        """One line that says which rank stopped the others, and why. Waits until those that can have said it.

        Args:
            error: as rank 0 met it: its own, or that of a connection that somebody else's end closed.
        """
        reason = " ".join(str(error).split()) or type(error).__name__
        if not of_others(reason):
            return f"rank 0 of the learner failed: {type(error).__name__}: {reason}"
        until = time.monotonic() + GRACE
        while time.monotonic() < until and self._silent():
            time.sleep(0.05)
        causes = {rank: cause for rank in self.processes if (cause := self._cause(rank)) and not of_others(cause)}
        for rank, cause in causes.items():
            return f"rank {rank} of the learner {cause}"
        if silent := self._silent():
            ranks = ", ".join(map(str, silent))
            return (
                f"rank {ranks} of the learner hangs: nothing from it for learner.timeout = {self.seconds:g} s "
                f"({_short(reason)})"
            )
        return f"the processes of the learner lost each other: {_short(reason)}"

    def busy(self, busy: bool) -> None:
        """Say whether rank 0 is waiting for the others."""
        self._busy = busy

    def end(self, *, at_once: bool = False) -> None:
        """Wait for all to end, or, where they do not or need not, kill them."""
        if self._ended:
            return
        self._ended = True
        until = time.monotonic() + (0.0 if at_once else GRACE)
        for process in self.processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
            if process.stdin is not None:
                process.stdin.close()
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _said(self, rank: int, kind: str) -> Path:
        return self.directory / f"rank-{rank}.{kind}"

    def _silent(self) -> list[int]:
        """The ranks that live and have said nothing."""
        living = (rank for rank, process in self.processes.items() if process.poll() is None)
        return [rank for rank in living if not self._said(rank, "failed").exists()]

    def _cause(self, rank: int) -> str:
        """What a rank said, or how it ended; '' for one that lives in silence."""
        if self._said(rank, "failed").exists():
            return f"failed: {self._said(rank, 'failed').read_text(encoding='utf-8').strip()}"
        code = self.processes[rank].poll()
        if code is None:
            return ""
        if code < 0:
            hint = " (the system kills so when memory is out)" if -code == signal.SIGKILL else ""
            return f"was killed by {signal.Signals(-code).name}{hint}"
        last = _last_line(self._said(rank, "log"))
        return f"ended with exit status {code}" + (f": {last}" if last else "")

    def _watch(self) -> None:
        """End this process where it waits on a device for one that died: nccl alone would not tell it for long."""
        died: float | None = None
        while not self._ended:
            time.sleep(0.5)
            died = (died or time.monotonic()) if self._busy and not self.alive() else None
            if died and time.monotonic() - died > STUCK and not self._ended:
                causes = [
                    f"rank {rank} of the learner {cause}" for rank in self.processes if (cause := self._cause(rank))
                ]
                sys.stderr.write("trailnotes: " + "; ".join(causes) + "; resume from the last checkpoint\n")
                sys.stderr.flush()
                os._exit(1)


def say_failed(directory: Path, rank: int, error: BaseException) -> None:
    """A follower's last word: written aside and renamed, so that it is whole."""
    reason = " ".join(str(error).split())
    aside = directory / f"rank-{rank}.failing"
    aside.write_text(f"{type(error).__name__}: {_short(reason)}\n", encoding="utf-8")
    aside.rename(directory / f"rank-{rank}.failed")


SIGNS: Sequence[str] = (
    "connection closed", "connection reset", "connection refused", "timed out", "timeout", "broken pipe", "gloo",
    "nccl error", "socket",
)  # fmt: skip


def of_others(reason: str) -> bool:
    """Whether an error's text tells of a connection, and so of somebody else's trouble."""
    return any(sign in reason.casefold() for sign in SIGNS)


def _short(text: str, most: int = 300) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return _short(lines[-1]) if lines else ""

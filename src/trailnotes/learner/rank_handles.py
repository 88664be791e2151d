"""The other ranks as rank 0 knows them: whether they live, why they failed, and their end.

Ranks of this machine are child processes. The pipe from rank 0, on which nothing is ever written, ends when rank 0
does, and the process with it; before a rank fails, it writes the reason to a file in the private directory in which all
meet. Ranks on a cluster are actors.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trailnotes.errors import TrailnotesError
from trailnotes.storage.child import describe_exit, last_line, start_child

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from trailnotes.config.schema import Config


GRACE = 5.0  # seconds that a handle has to say why it fails, and to end when it is told to
STUCK_SECONDS = 60.0  # seconds after a handle's death in which rank 0 should have noticed by itself
STORE_FILE = "store"  # the file in the private directory that all meet over
MAX_TEXT_CHARS = 300  # characters that are told of what a rank said
SHARED_ERRORS = (TrailnotesError, ValueError, OSError)
"""What every rank raises for the same reasons, or rank 0 alone when the others are done: the next call may come."""
LOOPBACK = "lo"  # the interface that nobody beyond this machine can reach


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why a rank is of no more use."""

    text: str  # one line
    of_others: bool = False  # it lost a connection, or waited in vain: somebody else's trouble


class RankHandle(Protocol):
    """Handle of one rank above 0."""

    @property
    def where(self) -> str:
        """Place to name after its number in messages, such as " on node 10.0.0.7"; "" for this machine."""

    def failure(self) -> Failure | None:
        """Return why it failed, or how it ended; None while it lives in silence."""

    def end(self, seconds: float) -> None:
        """Wait so long for it to end by itself; kill it if it does not."""


class RankMonitor:
    """Monitor of ranks 1 and up, which have been started.

    `seconds` is how long one may wait for another. `store` makes rank 0's view of the store that all meet over. They
    talk over `interface`, and `tidy` is called once all have ended.
    """

    def __init__(
        self,
        ranks: Mapping[int, RankHandle], seconds: float, store: Callable[[], Store], *,
        interface: str = LOOPBACK, tidy: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.ranks, self.seconds, self.store, self.interface = dict(ranks), seconds, store, interface
        self._tidy = tidy
        self._busy = self._ended = False
        threading.Thread(target=self._watch, name="learner-watch", daemon=True).start()

    def describe_failure(self, error: BaseException) -> str:
        """Say in one line which rank stopped the others, and why; wait until those that can have reported it.

        `error` is rank 0's own, or that of a connection that another rank's end closed.
        """
        own = make_failure(error)
        if not own.of_others:
            return describe_rank_0_failure(error)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and self._list_silent_ranks():
            time.sleep(0.05)
        for rank, handle in self.ranks.items():
            if (failure := handle.failure()) and not failure.of_others:
                return self._format_ranks([rank], failure.text)
        if silent := self._list_silent_ranks():
            hangs = f"hangs: nothing from it for learner.timeout = {self.seconds:g} s ({own.text})"
            return self._format_ranks(silent, hangs)
        return describe_rank_0_failure(error)

    def set_busy(self, busy: bool) -> None:
        """Set whether rank 0 is waiting for the others."""
        self._busy = busy

    def end(self, *, at_once: bool = False) -> None:
        """Wait for all to end, and kill those that do not; `at_once` kills all."""
        if self._ended:
            return
        self._ended = True
        until = time.monotonic() + (0.0 if at_once else GRACE)
        for handle in self.ranks.values():
            handle.end(max(0.0, until - time.monotonic()))
        self._tidy()

    def _list_silent_ranks(self) -> list[int]:
        return [rank for rank, handle in self.ranks.items() if handle.failure() is None]

    def _format_ranks(self, ranks: list[int], what: str) -> str:
        names = ", ".join(f"{rank}{self.ranks[rank].where}" for rank in ranks)
        return f"rank {names} of the learner {what}"

    def _watch(self) -> None:
        """End this process where it waits on a device for one that died: nccl alone would not tell it for long."""
        died: float | None = None
        while not self._ended:
            time.sleep(0.5)
            lost = {rank: failure for rank, one in self.ranks.items() if self._busy and (failure := one.failure())}
            died = (died or time.monotonic()) if lost else None
            if died and time.monotonic() - died > STUCK_SECONDS and not self._ended:
                causes = [self._format_ranks([rank], failure.text) for rank, failure in lost.items()]
                sys.stderr.write("trailnotes: " + "; ".join(causes) + "; resume from the last checkpoint\n")
                sys.stderr.flush()
                os._exit(1)


def describe_rank_0_failure(error: BaseException) -> str:
    """Describe an error of rank 0 in one line, where nothing is known of the others."""
    own = make_failure(error)
    if own.of_others:
        return f"the processes of the learner lost each other: {own.text}"
    return f"rank 0 of the learner failed: {own.text}"


def make_failure(error: BaseException) -> Failure:
    """Make the failure that a rank reports of an error that ends it."""
    text, kind = " ".join(str(error).split()), type(error).__name__
    text = text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 3] + "..."
    return Failure(f"{kind}: {text}" if text else kind, is_communication_error(error))


def is_communication_error(error: BaseException) -> bool:
    """Return whether an error only says that another rank is gone or late."""
    import torch

    if isinstance(error, torch.distributed.DistError):
        return True
    if type(error) is not RuntimeError:  # torch's own, such as for memory that is out, are kinds of it
        return False
    home = Path(torch.__file__).parent
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    innermost = [*takewhile(lambda file: file.is_relative_to(home), reversed(files))]
    return any(file.is_relative_to(home / "distributed") for file in innermost)


class RankProcess:
    """A rank of this machine as a child process, with files in a private directory; see `RankHandle`."""

    where = ""

    def __init__(self, rank: int, arguments: list[str], directory: Path) -> None:
        self._said, self._log = directory / f"rank-{rank}.failed", directory / f"rank-{rank}.log"
        command = [sys.executable, "-m", "trailnotes.learner.rank", str(rank), *arguments]
        with self._log.open("wb") as log:
            # SIGCONT wakes a stopped process; the end of its stdin then ends it
            streams = {"stdin": subprocess.PIPE, "stdout": log, "stderr": log}
            self.process = start_child(command, death_signal=signal.SIGCONT, **streams)

    def failure(self) -> Failure | None:
        """Return why it failed, or how it ended; None while it lives in silence."""
        code = self.process.poll()  # first: what has ended says nothing more
        if self._said.exists():
            said = Failure(**json.loads(self._said.read_text(encoding="utf-8")))
            return replace(said, text=f"failed: {said.text}")
        if code is None:
            return None
        if code < 0:
            hint = " (the system kills so when memory is out)" if -code == signal.SIGKILL else ""
            return Failure(describe_exit(code) + hint)
        last = last_line(self._log.read_bytes())[:MAX_TEXT_CHARS] if self._log.exists() else ""
        return Failure(describe_exit(code) + (f": {last}" if last else ""))

    def end(self, seconds: float) -> None:
        """Wait so long for it to end by itself; kill it if it does not."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


def start_processes(config: Config) -> RankMonitor:
    """Start ranks 1 to `learner.world_size` - 1 on this machine.

    Raises:
        ConfigError: there are more of them than devices.
    """
    from trailnotes.learner.process_group import resolve_device_type, validate_world_size

    validate_world_size(config)
    world, seconds = config.learner.world_size, config.learner.timeout
    directory = Path(tempfile.mkdtemp(prefix="trailnotes-learner-"))  # nobody else may read it

    def store() -> Store:
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        return FileStore(str(directory / STORE_FILE), world)

    arguments = [str(world), str(directory), resolve_device_type(config), str(seconds)]
    ranks = {rank: RankProcess(rank, arguments, directory) for rank in range(1, world)}
    return RankMonitor(ranks, seconds, store, tidy=lambda: shutil.rmtree(directory, ignore_errors=True))


def write_failure(directory: Path, rank: int, failure: Failure) -> None:
    """Write a rank's reason to fail aside and rename it, so that it is whole."""
    aside = directory / f"rank-{rank}.failing"
    aside.write_text(json.dumps(asdict(failure)), encoding="utf-8")
    aside.rename(directory / f"rank-{rank}.failed")

"""Ranks as processes of this machine, which rank 0 starts beside itself.

Each has a pipe from rank 0, on which nothing is ever written: it ends when rank 0 does, however that comes, and the
process with it. What a rank has to say before it fails stands in a file of the private directory that all meet in.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trailnotes.learner.rank_handles import Failure, RankMonitor, from_json, to_json, truncate_text

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from trailnotes.config.schema import Config

STORE_FILE = "store"  # the file in that directory that all meet over


class RankProcess:
    """A rank of this machine; see `RankHandle`.

    Args:
        rank: its number.
        arguments: of `trailnotes.learner.rank` after it.
        directory: private to the ranks of one run.
    """

    where = ""

    def __init__(self, rank: int, arguments: list[str], directory: Path) -> None:
        self._said, self._log = directory / f"rank-{rank}.failed", directory / f"rank-{rank}.log"
        command = [sys.executable, "-m", "trailnotes.learner.rank", str(rank), *arguments]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - this very interpreter and package
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for rank 0, which lets the iteration end
            )

    def failure(self) -> Failure | None:
        """See `RankHandle`."""
        code = self.process.poll()  # first: what has ended says nothing more
        if self._said.exists():
            said = from_json(self._said.read_text(encoding="utf-8"))
            return Failure(f"failed: {said.text}", said.of_others)
        if code is None:
            return None
        if code < 0:
            hint = " (the system kills so when memory is out)" if -code == signal.SIGKILL else ""
            return Failure(f"was killed by {signal.Signals(-code).name}{hint}")
        last = _read_last_line(self._log)
        return Failure(f"ended with exit status {code}" + (f": {last}" if last else ""))

    def end(self, seconds: float) -> None:
        """See `RankHandle`."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


def start_processes(config: Config) -> RankMonitor:
    """Ranks 1 to `learner.world_size` - 1, started on this machine.

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
    """A rank's last word: written aside and renamed, so that it is whole."""
    aside = directory / f"rank-{rank}.failing"
    aside.write_text(to_json(failure), encoding="utf-8")
    aside.rename(directory / f"rank-{rank}.failed")


def _read_last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return truncate_text(lines[-1]) if lines else ""

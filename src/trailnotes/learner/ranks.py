"""The ranks of a learner above 0: how they start, what they do, why they failed, and how they end.

A rank holds a part of the model, and repeats the calls of rank 0 until rank 0 ends it. The ranks of this machine are
child processes (`python -m trailnotes.learner.ranks`), which end when their pipe from rank 0 does; others are actors of
Ray or processes of torchrun. A rank that fails writes the reason to the store over which all have met before its
connections close: errors that follow from it in other ranks do not hide it.
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
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trailnotes.errors import LearnerError, TrailnotesError
from trailnotes.storage.child import Process, describe_exit, kill_group, last_line, start_child

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from trailnotes.config.schema import Config

GRACE = 5.0  # seconds for a rank to report why it failed, or to end by itself
STUCK_SECONDS = 60.0  # seconds after a rank's end in which rank 0 should have noticed by itself
STORE_FILE = "store"  # in the private directory
FAILURE_KEY = "failure/{}"  # of the store, by rank
MAX_TEXT_CHARS = 300  # of one rank's error in a message
LOOPBACK = "lo"  # the interface that no other machine can reach
SHARED_ERRORS = (TrailnotesError, ValueError, OSError)
"""What every rank raises for the same reasons, or rank 0 alone after the call: the next call may come."""


class RankHandle(Protocol):
    """One rank above 0, as rank 0 sees it."""

    where: str  # such as " on node 10.0.0.7" in messages; "" for this machine

    def exit_reason(self) -> str | None:
        """Return how it died; None while it lives, "" if it ended by itself or raised an error."""

    def end(self, seconds: float) -> None:
        """Kill it if it does not end by itself within so many seconds."""


@dataclass(frozen=True)
class RankMonitor:
    """Ranks that have been started, and how rank 0 joins them; torchrun watches its own."""

    ranks: Mapping[int, RankHandle]
    seconds: float  # that one may wait for another
    store: Store  # over which all meet
    interface: str = ""  # of the network, for gloo and nccl
    local_rank: int | None = None  # CUDA device of rank 0
    directory: Path | None = None  # a private one, which goes with them

    def find_cause(self) -> str:
        """Describe in one line which rank failed, and why; "" while none has."""
        for rank, handle in self.ranks.items():
            key, reason = FAILURE_KEY.format(rank), handle.exit_reason()
            if reason is not None and self.store.check([key]):  # what it wrote says more than how it ended
                reason = self.store.get(key).decode()
            if reason:
                return f"rank {rank}{handle.where} of the learner {reason}"
        return ""

    def explain(self, error: BaseException) -> str:
        """Explain an error of rank 0 in one line: by its cause in another rank, if there is one."""
        text = describe_error(error)
        if not is_communication_error(error):
            return f"rank 0 of the learner failed: {text}"
        deadline = time.monotonic() + GRACE
        while not (cause := self.find_cause()) and self.ranks and time.monotonic() < deadline:
            time.sleep(0.05)
        silent = [f"{rank}{handle.where}" for rank, handle in self.ranks.items() if handle.exit_reason() is None]
        if silent and not cause:
            hangs = f"hangs: nothing from it for learner.timeout = {self.seconds:g} s ({text})"
            return f"rank {', '.join(silent)} of the learner {hangs}"
        return cause or f"the processes of the learner lost each other: {text}"

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Exit if this process is stuck in the block long after another rank died: nccl alone would not notice."""
        done = threading.Event()
        thread = threading.Thread(target=self._exit_if_stuck, args=(done,), name="learner-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(GRACE)

    def _exit_if_stuck(self, done: threading.Event) -> None:
        while not done.wait(0.5):
            if (cause := self.find_cause()) and not done.wait(STUCK_SECONDS):
                print(f"trailnotes: {cause}; resume from the last checkpoint", file=sys.stderr, flush=True)
                os._exit(1)

    def end(self, *, at_once: bool = False) -> None:
        """Wait for all ranks to end, and kill those that do not; `at_once` kills all. Twice is fine."""
        deadline = time.monotonic() + (0.0 if at_once else GRACE)
        for handle in self.ranks.values():
            handle.end(max(0.0, deadline - time.monotonic()))
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)


@dataclass
class RankProcess:
    """A rank of this machine; see `RankHandle`."""

    process: Process
    log: Path
    where: str = ""

    def exit_reason(self) -> str | None:
        code = self.process.poll()
        if not code:
            return code if code is None else ""
        last = last_line(self.log.read_bytes())[:MAX_TEXT_CHARS] if code > 0 and self.log.exists() else ""
        hint = " (the system kills so when memory is out)" if -code == signal.SIGKILL else ""
        return describe_exit(code) + hint + (f": {last}" if last else "")

    def end(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        kill_group(self.process)
        assert self.process.stdin is not None
        self.process.stdin.close()


def start_ranks(config: Config) -> RankMonitor:
    """Start ranks 1 to `learner.world_size` - 1 on this machine, unless torchrun has started them."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from trailnotes.learner.process_group import get_torchrun_rank, join_torchrun, validate_world_size

    device_type = validate_world_size(config)
    world, seconds = config.learner.world_size, config.learner.timeout
    if get_torchrun_rank():
        store, local_rank = join_torchrun(seconds)
        return RankMonitor({}, seconds, store, local_rank=local_rank)
    directory = Path(tempfile.mkdtemp(prefix="trailnotes-learner-"))  # nobody else may read it
    arguments = [str(world), str(directory), device_type, str(seconds)]
    ranks = {rank: start_rank_process(rank, arguments, directory) for rank in range(1, world)}
    return RankMonitor(ranks, seconds, FileStore(str(directory / STORE_FILE), world), LOOPBACK, 0, directory)


def start_rank_process(rank: int, arguments: list[str], directory: Path) -> RankProcess:
    """Start `main` in a process with a log in the private directory."""
    command = [sys.executable, "-m", "trailnotes.learner.ranks", str(rank), *arguments]
    path = directory / f"rank-{rank}.log"
    with path.open("wb") as log:
        # SIGCONT wakes a stopped process; the end of its stdin then ends it
        streams = {"stdin": subprocess.PIPE, "stdout": log, "stderr": log}
        return RankProcess(start_child(command, death_signal=signal.SIGCONT, **streams), path)


def main(rank: int, world: int, directory: Path, device_type: str, seconds: float) -> None:
    """Be a rank of this machine."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def exit_with_rank_0() -> None:
        while os.read(0, 1):  # until the pipe from rank 0 ends
            pass
        shutil.rmtree(directory, ignore_errors=True)  # rank 0 may not have had the time
        os._exit(1)

    watch = threading.Thread(target=exit_with_rank_0, daemon=True)
    watch.start()  # before torch, whose import takes seconds
    try:
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        store = FileStore(str(directory / STORE_FILE), world)
        follow_rank_0(rank, world, device_type, seconds, store, interface=LOOPBACK, local_rank=rank)
    except BaseException as error:  # noqa: BLE001 - the boundary: rank 0 reads the store and the log
        traceback.print_exc()
        watch.join(1.0)  # if rank 0 is gone, the watch removes the directory
        os._exit(0 if is_communication_error(error) else 1)
    os._exit(0)  # without the second that the interpreter takes to free torch


def follow_rank_0(rank: int, world: int, device_type: str, seconds: float, store: Store, **where: Any) -> None:
    """Join the process group, and repeat the calls of rank 0 until it ends this rank.

    Arguments are those of `init_process_group`. A failure of this rank's own is in the store when this raises it.
    """
    import torch

    from trailnotes.learner.building import build_rank
    from trailnotes.learner.process_group import init_process_group

    learner = None
    try:
        group = init_process_group(rank, world, device_type, seconds, store, **where)
        while call := group.broadcast_call():
            name, arguments, keywords = call
            try:
                if learner is None:
                    config: Config = arguments[0]
                    torch.set_num_threads(config.run.threads or max(1, torch.get_num_threads() // world))
                    learner = build_rank(group, *arguments)
                else:
                    getattr(learner, name)(*arguments, **keywords)
            except SHARED_ERRORS:
                if learner is None:
                    raise
        torch.distributed.destroy_process_group()
    except BaseException as error:
        if not is_communication_error(error):
            store.set(FAILURE_KEY.format(rank), f"failed: {describe_error(error)}")
        raise


def is_torchrun_worker() -> bool:
    """Return whether torchrun started this process as one that does not hold the run."""
    return "MASTER_ADDR" in os.environ and os.environ.get("RANK", "0") not in ("", "0")


def run_torchrun_rank(config: Config) -> None:
    """Run a rank that torchrun started. Raises `LearnerError` where it failed, or another is gone."""
    from trailnotes.learner.process_group import join_torchrun, validate_world_size

    device_type, rank, seconds = validate_world_size(config), int(os.environ["RANK"]), config.learner.timeout
    try:
        store, local_rank = join_torchrun(seconds)
        follow_rank_0(rank, config.learner.world_size, device_type, seconds, store, local_rank=local_rank)
    except RuntimeError as error:
        raise LearnerError(f"rank {rank} of the learner failed: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """Describe an error in one line, with the name of its class."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_TEXT_CHARS].removesuffix(": ")


def is_communication_error(error: BaseException) -> bool:
    """Return whether an error only says that another rank is gone or late."""
    import torch

    if isinstance(error, torch.distributed.DistError):
        return True
    if type(error) is not RuntimeError:  # torch's own, such as for memory that is out, are kinds of it
        return False
    home = Path(torch.__file__).parent
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    innermost = takewhile(lambda file: file.is_relative_to(home), reversed(files))
    return any(file.is_relative_to(home / "distributed") for file in innermost)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], float(sys.argv[5]))

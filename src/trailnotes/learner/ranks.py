"""The ranks of a learner, as rank 0 sees them: how they start, meet and end, and why one failed.

Those of this machine are child processes, which end when their pipe from rank 0 does; others are actors of Ray or
processes of torchrun. All meet over a store: a file in a private directory on one machine, an address between machines,
or torchrun's own. A rank that fails writes the reason there before its connections close, so that errors that follow
from it in other ranks do not hide it.

On one machine gloo and nccl keep to the loopback interface. Between machines torch knows no password: any program that
reaches its ports may join, and messages are pickled. Use a network that you trust.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from trailnotes.config.schema import Config
from trailnotes.errors import ConfigError, LearnerError, TrailnotesError, format_error
from trailnotes.policies.hf.policy import resolve_device
from trailnotes.storage.child import Process, describe_exit, kill_group, last_line, start_child

Call = tuple[str, tuple[Any, ...], dict[str, Any]]  # name of a method, its arguments, its keyword arguments
CALL_TIMEOUT = timedelta(days=365)  # a rollout lies between two calls, however long
GRACE = 5.0  # seconds for a rank to report why it failed, or to end by itself
STORE_FILE = "store"  # in the private directory
FAILURE_KEY = "failure/{}"  # of the store, by rank
READY_KEY = "ready/{}"
BUILD_KEY = "build"  # arguments of `build_rank`, as JSON; null where rank 0 needs no learner
MAX_TEXT_CHARS = 300  # of one rank's error in a message
LOOPBACK = "lo"  # the interface that no other machine can reach
SHARED_ERRORS = (TrailnotesError, ValueError, OSError)
"""What every rank raises for the same reasons, or rank 0 alone after the call: the next call may come."""


@dataclass(frozen=True, slots=True)
class LearnerGroup:
    """Connected ranks of one learner."""

    mesh: DeviceMesh
    object_group: dist.ProcessGroup  # gloo, with the time limit of the learner
    calls: dist.ProcessGroup  # gloo, for the calls that rank 0 announces

    def broadcast_call(self, call: Call | None = None) -> Call | None:
        """Return the call of rank 0, which all others repeat on their learner; None ends them."""
        box = [call]
        dist.broadcast_object_list(box, src=0, group=self.calls)
        return box[0]


def init_process_group(
    rank: int, config: Config, store: Store, *, interface: str = "", local_rank: int | None = None
) -> LearnerGroup:
    """Join the other ranks at `store`; return when all are there. Raises `RuntimeError` where one is missing.

    They keep to the network `interface` ("" for any), and exchange tensors by gloo on a cpu, by nccl on cuda;
    `local_rank` is the index of this process's device, None for the current one.
    """
    device_type, world = resolve_device_type(config), config.learner.world_size
    if device_type == "cuda" and local_rank is not None:
        torch.cuda.set_device(local_rank)
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    limit = timedelta(seconds=config.learner.timeout)
    if not dist.is_initialized():  # torch names a group by a counter that also counts groups that failed to form
        dist.distributed_c10d._world.group_count = 0  # noqa: SLF001
    with bind_interface(interface):
        dist.init_process_group(backend, rank=rank, world_size=world, timeout=limit, store=store)
        mesh = init_device_mesh(device_type, (world,))
        dist.all_reduce(torch.zeros((), device=device_type))  # nccl connects at its first use: let it fail here
        object_group = dist.new_group(backend="gloo", timeout=limit)
        # Rank 0 must answer in time; the others wait for its next call however long it samples.
        return LearnerGroup(mesh, object_group, dist.new_group(backend="gloo", timeout=CALL_TIMEOUT if rank else limit))


@contextmanager
def bind_interface(interface: str) -> Iterator[None]:
    """Bind process groups of the block to a network interface, unless the environment names another; "" for any."""
    names = [name for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface and name not in os.environ]
    os.environ.update(dict.fromkeys(names, interface))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def resolve_device_type(config: Config) -> str:
    """Return the kind of device that all ranks compute on, cpu or cuda; `ConfigError` for any other."""
    device = resolve_device(config.model.device)
    if device.type not in ("cpu", "cuda") or (device.index is not None and config.learner.world_size > 1):
        raise ConfigError(f"model.device = {config.model.device!r} with learner.world_size: set it to 'cuda' or 'cpu'")
    return device.type


def get_torchrun_rank() -> tuple[int, int] | None:
    """Read rank and world size, where torchrun (or a program with the same variables) started this process."""
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdigit() and world.isdigit() and "MASTER_ADDR" in os.environ else None


def is_torchrun_worker() -> bool:
    """Return whether torchrun started this process as one that does not hold the run."""
    return (get_torchrun_rank() or (0, 0))[0] > 0


def validate_world_size(config: Config) -> None:
    """Raise `ConfigError` for too few devices, or another number of processes than torchrun started."""
    world, device_type, started = config.learner.world_size, resolve_device_type(config), get_torchrun_rank()
    if started and config.cluster.address:
        raise ConfigError("torchrun started the processes of the learner: leave cluster.address empty, or torchrun")
    if started and started[1] != world:
        raise ConfigError(f"torchrun started {started[1]} processes: set learner.world_size = {started[1]}")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world)) if started else world
    if device_type == "cuda" and here > (count := torch.cuda.device_count()):
        raise ConfigError(f"learner.world_size = {world} needs {here} GPUs here, and there are {count}")


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
    config: Config
    store: Store  # over which all meet
    interface: str = ""  # of the network, for gloo and nccl
    local_rank: int | None = None  # CUDA device of rank 0
    directory: Path | None = None  # a private one, which goes with them

    def wait_until_ready(self) -> None:
        """Wait until all ranks are about to meet. Raises `LearnerError` where one has ended before."""
        keys, deadline = [READY_KEY.format(rank) for rank in self.ranks], time.monotonic() + self.config.learner.timeout
        while keys and not self.store.check(keys) and time.monotonic() < deadline:
            if cause := self.find_cause():
                raise LearnerError(cause)
            time.sleep(0.05)

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
        text = format_error(error)
        if not is_communication_error(error):
            return f"rank 0 of the learner failed: {text}"
        deadline = time.monotonic() + GRACE
        while not (cause := self.find_cause()) and self.ranks and time.monotonic() < deadline:
            time.sleep(0.05)
        silent = [f"{rank}{handle.where}" for rank, handle in self.ranks.items() if handle.exit_reason() is None]
        if silent and not cause:
            hangs = f"hangs: nothing from it for learner.timeout = {self.config.learner.timeout:g} s ({text})"
            return f"rank {', '.join(silent)} of the learner {hangs}"
        return cause or f"the processes of the learner lost each other: {text}"

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
        if code is None or code == 0:
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
    validate_world_size(config)
    if get_torchrun_rank():
        store, local_rank = join_torchrun(config)
        return RankMonitor({}, config, store, local_rank=local_rank)
    directory = Path(tempfile.mkdtemp(prefix="trailnotes-learner-"))  # nobody else may read it
    ranks: dict[int, RankProcess] = {}
    for rank in range(1, config.learner.world_size):
        command = [sys.executable, "-m", "trailnotes.learner.sharded", str(rank), str(directory)]
        path = directory / f"rank-{rank}.log"
        with path.open("wb") as log:
            # SIGCONT wakes a stopped process; the end of its stdin then ends it
            streams = {"stdin": subprocess.PIPE, "stdout": log, "stderr": log}
            ranks[rank] = RankProcess(start_child(command, death_signal=signal.SIGCONT, **streams), path)
    return RankMonitor(ranks, config, FileStore(str(directory / STORE_FILE)), LOOPBACK, 0, directory)


def join_torchrun(config: Config) -> tuple[Store, int]:
    """Connect to the store of torchrun's environment; return it and the local rank of this process.

    Ranks above 0 wait there however long rank 0 prepares the run: it may record a rehearsal, and start engines.
    """
    limit = CALL_TIMEOUT if is_torchrun_worker() else timedelta(seconds=config.learner.timeout)
    store, rank, _ = next(rendezvous("env://", timeout=limit))
    return store, int(os.environ.get("LOCAL_RANK", rank))


def release_torchrun(config: Config) -> None:
    """End the ranks above 0 that torchrun started, if any: rank 0 needs no learner."""
    if config.learner.world_size > 1 and get_torchrun_rank():
        join_torchrun(config)[0].set(BUILD_KEY, "null")


def is_communication_error(error: BaseException) -> bool:
    """Return whether an error only says that another rank is gone or late."""
    if type(error) is not RuntimeError:  # torch's own, such as for memory that is out, are kinds of it
        return isinstance(error, dist.DistError)
    home = Path(torch.__file__).parent
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    innermost = takewhile(lambda file: file.is_relative_to(home), reversed(files))
    return any(file.is_relative_to(home / "distributed") for file in innermost)

"""Process groups of the learner, which meet over a file on one machine, at an address, or by torchrun's environment.

On one machine nothing listens beyond it: the file is in a private directory, and gloo and nccl keep to the loopback
interface. Between machines torch knows no password: any program that reaches its ports may join. Messages are pickled;
the processes are one program, started by one user, on a network that they trust.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from trailnotes.config.schema import Config

Call = tuple[str, tuple[Any, ...], dict[str, Any]]  # a method's name, arguments, and those that have names
CALL_TIMEOUT = timedelta(days=365)  # between two calls lies a rollout, however long
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SIOCGIFADDR = 0x8915  # asks Linux for the address of an interface, see netdevice(7)


@dataclass(frozen=True, slots=True)
class LearnerGroup:
    """Processes of one update, connected."""

    mesh: DeviceMesh
    talk: dist.ProcessGroup  # gloo, with the time limit of the learner
    calls: dist.ProcessGroup  # gloo: what rank 0 has the others do

    def broadcast_call(self, call: Call | None) -> None:
        """Have all other ranks call this method of their learner with these arguments; None ends them."""
        dist.broadcast_object_list([call], src=0, group=self.calls)

    def receive_call(self) -> Call | None:
        """Wait for the next call of rank 0."""
        box: list[Any] = [None]
        dist.broadcast_object_list(box, src=0, group=self.calls)
        call: Call | None = box[0]
        return call

    def destroy(self) -> None:
        """Leave the group. Every rank must."""
        dist.destroy_process_group()


def init_process_group(
    rank: int, world: int, device_type: str, seconds: float, store: Store | None = None
) -> LearnerGroup:
    """Join the other ranks; return when all are there.

    Args:
        rank: of this process among `world`.
        world: number of processes.
        device_type: cpu: they exchange tensors by gloo; cuda: by nccl, each on the device of its place on its machine,
            or, if they meet at an address, on the one that it has been given.
        seconds: that one may wait for another.
        store: where they meet; None: the address in torchrun's environment.

    Raises:
        RuntimeError: a rank is missing.
    """
    if device_type == "cuda" and not isinstance(store, TCPStore):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))  # its place among those of its machine
    where: dict[str, Any] = {"init_method": "env://"} if store is None else {"store": store}
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    limit = timedelta(seconds=seconds)
    if not dist.is_initialized():  # torch names a group by how many it made, and counts one that nobody else came to
        dist.distributed_c10d._world.group_count = 0  # noqa: SLF001
    dist.init_process_group(backend, rank=rank, world_size=world, timeout=limit, **where)
    mesh = init_device_mesh(device_type, (world,))
    dist.all_reduce(torch.zeros((), device=device_type))  # nccl connects at its first word: what fails, fails now
    talk = dist.new_group(backend="gloo", timeout=limit)
    # Rank 0 must be heard in time; the others wait however long it plays.
    return LearnerGroup(mesh, talk, dist.new_group(backend="gloo", timeout=CALL_TIMEOUT if rank else limit))


@contextmanager
def bind_interface(interface: str = "lo") -> Iterator[None]:
    """Bind process groups of the block to a network interface, unless the environment names another."""
    before = {name: os.environ.get(name) for name in INTERFACE_VARIABLES}
    os.environ.update({name: interface for name in INTERFACE_VARIABLES if interface and before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def find_interface(address: str) -> str:
    """Find the interface that has this address (IPv4); "" for none: then gloo and nccl choose for themselves."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            try:
                answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has none
                continue
        if socket.inet_ntoa(answer[20:24]) == address:
            return name
    return ""


def create_store(host: str, world: int, seconds: float) -> TCPStore:
    """Create a store of rank 0 at this address of its machine and no other; torch chooses the port.

    Raises:
        OSError: this machine has no such address.
    """
    with socket.create_server((host, 0)) as door:  # by itself the store would listen at all addresses
        port = door.getsockname()[1]
        return TCPStore(
            host, port, world, is_master=True, timeout=timedelta(seconds=seconds), wait_for_workers=False,
            master_listen_fd=door.detach(),
        )  # fmt: skip


def get_torchrun_rank() -> tuple[int, int] | None:
    """Read rank and world size, where torchrun (or a program with the same variables) started this process."""
    said = os.environ
    if not all(said.get(name, "").isdigit() for name in ("RANK", "WORLD_SIZE")) or "MASTER_ADDR" not in said:
        return None
    return int(said["RANK"]), int(said["WORLD_SIZE"])


def resolve_device_type(config: Config) -> str:
    """Resolve the kind of device that all ranks compute on, cpu or cuda.

    Raises:
        ConfigError: `model.device` cannot be that of several processes.
    """
    from trailnotes.policies.hf.policy import resolve_device

    device = resolve_device(config.model.device)
    if device.index is not None and config.learner.world_size > 1:
        raise ConfigError(
            f"model.device = {config.model.device!r} is one device, and learner.world_size = "
            f"{config.learner.world_size} takes one for each process: set model.device = {device.type!r}"
        )
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"learner.world_size above 1 computes on cpu or cuda, not on {config.model.device!r}")
    return device.type


def validate_world_size(config: Config) -> None:
    """Raise `ConfigError` for more processes than devices, or another number than torchrun started."""
    world, device_type = config.learner.world_size, resolve_device_type(config)
    given = get_torchrun_rank()
    if given is not None and given[1] != world:
        raise ConfigError(f"torchrun started {given[1]} processes: set learner.world_size = {given[1]}, not {world}")
    here = world if given is None else int(os.environ.get("LOCAL_WORLD_SIZE", given[1]))
    if device_type == "cuda" and here > torch.cuda.device_count():
        raise ConfigError(
            f"learner.world_size = {world} needs {here} GPUs here, and there are {torch.cuda.device_count()}: set "
            f"learner.world_size = {torch.cuda.device_count()}, or start one process a GPU on more machines by torchrun"
        )

"""The process group of the learner, and the settings that decide its size and its devices.

The ranks meet over a store: a file in a private directory on one machine, an address between machines, or torchrun's
own. On one machine gloo and nccl keep to the loopback interface. Between machines torch knows no password: any program
that reaches its ports may join, and messages are pickled. Use a network that you trust.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from trailnotes.config.schema import Config

Call = tuple[str, tuple[Any, ...], dict[str, Any]]  # name of a method, its arguments, its keyword arguments
CALL_TIMEOUT = timedelta(days=365)  # a rollout lies between two calls, however long


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
    rank: int, world: int, device_type: str, seconds: float, store: Store, *, interface: str = "",
    local_rank: int | None = None,
) -> LearnerGroup:  # fmt: skip
    """Join the other ranks at `store`; return when all are there. Raises `RuntimeError` where one is missing.

    One may wait for another for `seconds`. They keep to the network `interface` ("" for any), and exchange tensors by
    gloo on a cpu, by nccl on cuda; `local_rank` is the index of this process's device, None for the current one.
    """
    if device_type == "cuda" and local_rank is not None:
        torch.cuda.set_device(local_rank)
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    limit = timedelta(seconds=seconds)
    if not dist.is_initialized():  # torch names a group by a counter that also counts groups that failed to form
        dist.distributed_c10d._world.group_count = 0  # noqa: SLF001
    with bind_interface(interface):
        dist.init_process_group(backend, rank=rank, world_size=world, timeout=limit, store=store)
        mesh = init_device_mesh(device_type, (world,))
        dist.all_reduce(torch.zeros((), device=device_type))  # nccl connects at its first use: let it fail here
        object_group = dist.new_group(backend="gloo", timeout=limit)
        # Rank 0 must be heard in time; the others wait for its next call however long it samples.
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


def get_torchrun_rank() -> tuple[int, int] | None:
    """Read rank and world size, where torchrun (or a program with the same variables) started this process."""
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdigit() and world.isdigit() and "MASTER_ADDR" in os.environ else None


def join_torchrun(seconds: float) -> tuple[Store, int]:
    """Connect to the store of torchrun's environment; return it and the local rank of this process."""
    store, rank, _ = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
    return store, int(os.environ.get("LOCAL_RANK", rank))


def resolve_device_type(config: Config) -> str:
    """Resolve the kind of device that all ranks compute on, cpu or cuda.

    Raises:
        ConfigError: `model.device` cannot be that of several processes.
    """
    from trailnotes.policies.hf.policy import resolve_device

    device = resolve_device(config.model.device)
    if device.type not in ("cpu", "cuda") or (device.index is not None and config.learner.world_size > 1):
        raise ConfigError(
            f"model.device = {config.model.device!r}, and learner.world_size = {config.learner.world_size} takes a "
            "device for each process: set model.device = 'cuda' or 'cpu'"
        )
    return device.type


def validate_world_size(config: Config) -> str:
    """Return the kind of device. Raises `ConfigError` for too few devices, or another number than torchrun started."""
    world, device_type, started = config.learner.world_size, resolve_device_type(config), get_torchrun_rank()
    if started and started[1] != world:
        raise ConfigError(f"torchrun started {started[1]} processes: set learner.world_size = {started[1]}")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world)) if started else world
    if device_type == "cuda" and here > (count := torch.cuda.device_count()):
        raise ConfigError(
            f"learner.world_size = {world} needs {here} GPUs here, and there are {count}: set it to {count}, or start "
            "one process a GPU on more machines by torchrun"
        )
    return device_type

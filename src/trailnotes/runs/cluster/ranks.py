"""Learner ranks as actors, wherever Ray has placed them; rank 0 stays in the process of the run.

The others meet it at the loopback address if all are on one machine, else at the one by which Ray knows its node.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import ray
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trailnotes.config.schema import Config
from trailnotes.errors import format_error
from trailnotes.learner.ranks import RankMonitor, resolve_device_type
from trailnotes.learner.sharded import follow_rank_0
from trailnotes.runs.cluster.waiting import Bundle, extract_cause, get_result
from trailnotes.web.loopback import LOOPBACK


class RankActor:
    """Actor that is a rank; it works in `directory`, where the run was started, if its machine has it."""

    def __init__(self, directory: str) -> None:
        with contextlib.suppress(OSError):
            os.chdir(directory)

    def follow(self, rank: int, config: Config, at: tuple[str, int]) -> None:
        """Repeat the calls of rank 0 until it ends this rank. `at` is the host and port of the store."""
        store = TCPStore(*at, config.learner.world_size, timeout=timedelta(seconds=config.learner.timeout))
        own = LOOPBACK if at[0] == LOOPBACK else ray.util.get_node_ip_address()
        follow_rank_0(rank, store, interface=find_interface(own))


class RankActorHandle:
    """An actor as `RankHandle`."""

    def __init__(self, actor: Any, done: Any, where: str) -> None:
        self.actor, self.done, self.where = actor, done, where

    def exit_reason(self) -> str | None:
        if not ray.is_initialized():  # to ask Ray anything would start a cluster
            return "ended with the connection to the cluster"
        if not ray.wait([self.done], timeout=0)[0]:
            return None
        try:
            ray.get(self.done)
        except ray.exceptions.RayTaskError as error:  # torch's own are in the store, or of another rank
            return "" if isinstance(error.cause, RuntimeError) else f"failed: {format_error(error.cause)}"
        except ray.exceptions.RayError as error:
            return f"was lost: {extract_cause(error)}"
        return ""

    def end(self, seconds: float) -> None:
        if ray.is_initialized():  # else all actors of this process have ended
            ray.wait([self.done], timeout=seconds)
            ray.kill(self.actor)


def start_ranks(config: Config, bundles: Sequence[Bundle]) -> RankMonitor:
    """Start ranks 1 and up as actors, each on one of the bundles. Raises `ClusterError` if one is late."""
    here = ray.util.get_node_ip_address()
    kind = ray.remote(num_cpus=1, num_gpus=int(resolve_device_type(config) == "cuda"), max_restarts=0)(RankActor)
    actors = [kind.options(scheduling_strategy=one.strategy).remote(str(Path.cwd())) for one in bundles]
    for rank, (actor, bundle) in enumerate(zip(actors, bundles, strict=True), start=1):
        who = f"rank {rank} of the learner on {bundle.node}"
        get_result(actor.__ray_ready__.remote(), who, config.cluster.timeout, "cluster.timeout")
    store = create_store(LOOPBACK if all(one.address == here for one in bundles) else here, config)
    ranks = {}
    for rank, (actor, bundle) in enumerate(zip(actors, bundles, strict=True), start=1):
        done = actor.follow.remote(rank, config, (store.host, store.port))
        ranks[rank] = RankActorHandle(actor, done, f" on {bundle.node}")
    return RankMonitor(ranks, config, store, find_interface(store.host))


def create_store(host: str, config: Config) -> TCPStore:
    """Create a store of rank 0 at this address of its machine and no other; torch chooses the port."""
    with socket.create_server((host, 0)) as listener:  # by itself the store would listen at all addresses
        return TCPStore(
            host, listener.getsockname()[1], config.learner.world_size, is_master=True, wait_for_workers=False,
            timeout=timedelta(seconds=config.learner.timeout), master_listen_fd=listener.detach(),
        )  # fmt: skip


def find_interface(address: str) -> str:
    """Find the network interface that has this address, for gloo and nccl; "" for none."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(one.address == address for one in addresses)), "")

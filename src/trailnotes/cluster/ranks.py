"""Learner ranks as actors: each does, wherever Ray has placed it, what a process of this machine does as a rank.

Rank 0 stays in the process of the run. The others meet it at an address of its node: the loopback one if all are on
one machine, else that by which Ray knows the node, and gloo and nccl keep to the interface that has it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trailnotes.cluster.waiting import Deadline, extract_cause, get_result
from trailnotes.learner.rank_handles import LOOPBACK, Failure, RankMonitor, make_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from trailnotes.config.schema import Config

LOCALHOST = "127.0.0.1"
NODE_LOSS_TIMEOUT = 60.0  # seconds in which Ray finds out whether what it cannot reach is dead


class RankActor:
    """The actor.

    Args:
        directory: where the run was started. What is named relative to it is found here, too, if all machines see it.
    """

    def __init__(self, directory: str) -> None:
        with contextlib.suppress(OSError):
            os.chdir(directory)

    def place(self) -> tuple[str, str, int]:
        """Id and address of its node, and the number of its process there."""
        import ray

        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), os.getpid()

    def follow(self, numbers: tuple[int, int], at: tuple[str, int], device_type: str, seconds: float) -> Failure | None:
        """Do what rank 0 does until it sends this one home; why not, if it fails before.

        Args:
            numbers: of this rank, and of how many.
            at: host and port of the store that all meet over.
            device_type: cpu or cuda.
            seconds: that one may wait for another.
        """
        from datetime import timedelta

        import ray
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        from trailnotes.learner.process_group import bind_interface, find_interface, init_process_group
        from trailnotes.learner.rank import run_call_loop

        interface = LOOPBACK if at[0] == LOCALHOST else find_interface(ray.util.get_node_ip_address())
        try:
            store = TCPStore(*at, numbers[1], timeout=timedelta(seconds=seconds))
            with bind_interface(interface):
                circle = init_process_group(*numbers, device_type, seconds, store)
            run_call_loop(circle)
        except BaseException as error:  # noqa: BLE001 - the boundary: rank 0 must learn the reason, whatever it is
            return make_failure(error)
        return None


class ActorRankHandle:
    """A rank that is an actor; see `RankHandle`."""

    def __init__(self, actor: Any, node: str, pid: int, where: str) -> None:
        self.actor, self.node, self.pid, self.where = actor, node, pid, where
        self._done: Any = None
        self._failure: Failure | None = None

    def follow(self, *arguments: Any) -> None:
        """Have it do what rank 0 does, from now on."""
        self._done = self.actor.follow.remote(*arguments)

    def failure(self) -> Failure | None:
        """See `RankHandle`."""
        import ray

        if not ray.is_initialized():  # to ask Ray anything would start a cluster
            return Failure("ended with the connection to the cluster")
        if self._failure is None and self._done is not None and ray.wait([self._done], timeout=0)[0]:
            try:
                said: Failure | None = ray.get(self._done)
            except ray.exceptions.RayError as error:
                self._failure = self._how(error)
            else:
                self._failure = Failure(f"failed: {said.text}", said.of_others) if said else Failure("ended")
        return self._failure

    def end(self, seconds: float) -> None:
        """See `RankHandle`."""
        import ray

        if not ray.is_initialized():  # which ended all actors of this process
            return
        if self._done is not None:
            ray.wait([self._done], timeout=seconds)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self.actor)

    def _how(self, error: Exception) -> Failure:
        """How it died. Ray may know of a broken connection alone at first, and see only later that a node is gone.

        Asking again is how to learn it: a dead actor's call fails for good.
        """
        import ray

        until = time.monotonic() + NODE_LOSS_TIMEOUT
        while not isinstance(error, ray.exceptions.ActorDiedError) and time.monotonic() < until:
            try:
                ray.get(self.actor.place.remote(), timeout=1.0)
            except ray.exceptions.RayError as later:
                error = later
                time.sleep(0.2)
            else:
                break
        if not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == self.node):
            return Failure("was lost with its node")
        return Failure(f"died: {extract_cause(error)}")


def get_rank_resources(config: Config) -> dict[str, float]:
    """What Ray sets aside for each rank but rank 0, which is in the process of the run."""
    from trailnotes.learner.process_group import resolve_device_type

    return {"CPU": 1.0, "GPU": float(resolve_device_type(config) == "cuda")}


def start_ranks(config: Config, name_of: Callable[[str], str]) -> RankMonitor:
    """Ranks 1 to `learner.world_size` - 1 as actors of their own, spread over the nodes.

    Args:
        config: of the run.
        name_of: gives what messages call the node of an id.

    Raises:
        ClusterError: one does not start, or finds no room in time.
    """
    import ray

    from trailnotes.learner.process_group import create_store, find_interface, resolve_device_type

    world, seconds, limit = config.learner.world_size, config.learner.timeout, config.cluster.timeout
    each = get_rank_resources(config)
    kind = ray.remote(RankActor).options(
        num_cpus=each["CPU"], num_gpus=each["GPU"], max_restarts=0, scheduling_strategy="SPREAD"
    )
    actors = {rank: kind.remote(str(Path.cwd())) for rank in range(1, world)}
    try:
        asked = {rank: actor.place.remote() for rank, actor in actors.items()}
        placed = {rank: _await_placement(rank, answer, limit) for rank, answer in asked.items()}
        here = ray.util.get_node_ip_address()
        alone = all(address == here for _, address, _ in placed.values())
        store = create_store(LOCALHOST if alone else here, world, seconds)
        ranks = {
            rank: ActorRankHandle(actors[rank], node, pid, f" on {name_of(node)}")
            for rank, (node, _, pid) in placed.items()
        }
        for rank, follower in ranks.items():
            follower.follow((rank, world), (store.host, store.port), resolve_device_type(config), seconds)
    except BaseException:
        for actor in actors.values():
            ray.kill(actor)
        raise
    return RankMonitor(ranks, seconds, lambda: store, interface=LOOPBACK if alone else find_interface(here))


def _await_placement(rank: int, answer: Any, limit: float) -> tuple[str, str, int]:
    who = f"rank {rank} of the learner (if the cluster has no room for it, lower learner.world_size or add nodes)"
    found: tuple[str, str, int] = get_result(answer, Deadline(lambda: who, limit, "cluster.timeout"))
    return found

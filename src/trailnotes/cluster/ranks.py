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

from trailnotes.cluster.cluster import name_of
from trailnotes.errors import ClusterError
from trailnotes.learner.followers import GRACE, LOOPBACK, Failure, Followers, failure_of, shortened

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from trailnotes.cluster.cluster import Cluster

LOCALHOST = "127.0.0.1"


class Rank:
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

        from trailnotes.learner.circle import interface_of, kept_to, meet
        from trailnotes.learner.rank import serve

        os.environ["LOCAL_RANK"] = "0"  # Ray shows an actor the GPU that it has set aside for it, and no other
        interface = LOOPBACK if at[0] == LOCALHOST else interface_of(ray.util.get_node_ip_address())
        try:
            store = TCPStore(*at, numbers[1], timeout=timedelta(seconds=seconds))
            with kept_to(interface):
                circle = meet(*numbers, device_type, seconds, store)
            serve(circle)
        except BaseException as error:  # noqa: BLE001 - the boundary: rank 0 must learn the reason, whatever it is
            return failure_of(error)
        return None


class ActorOfRank:
    """A rank that is an actor; see `Follower`."""

    def __init__(self, actor: Any, where: tuple[str, str, int]) -> None:
        self.actor = actor
        self.node, address, self.pid = where
        self.where = f" on {name_of(self.node, address)}"
        self._done: Any = None
        self._failure: Failure | None = None

    def follow(self, *arguments: Any) -> None:
        """Have it do what rank 0 does, from now on."""
        self._done = self.actor.follow.remote(*arguments)

    def failure(self) -> Failure | None:
        """See `Follower`."""
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
        """See `Follower`."""
        import ray

        if not ray.is_initialized():  # which ended all actors of this process
            return
        if self._done is not None:
            ray.wait([self._done], timeout=seconds)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self.actor)

    def _how(self, error: Exception) -> Failure:
        """How it died. Ray may need a moment to see that a node is gone with all that was on it."""
        import ray

        until = time.monotonic() + GRACE
        while True:
            if not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == self.node):
                return Failure("was lost with its node")
            if isinstance(error, ray.exceptions.ActorDiedError) or time.monotonic() > until:
                return Failure(f"died: {shortened(_told(str(error)))}")
            time.sleep(0.2)


def start_ranks(cluster: Cluster, world: int, device_type: str, seconds: float) -> Followers:
    """Ranks 1 to `world` - 1 as actors of their own, spread over the nodes.

    Args:
        cluster: places them.
        world: ranks, this process among them.
        device_type: cpu or cuda.
        seconds: that one may wait for another.

    Raises:
        ClusterError: a node does not start one, or has no room for it now.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    from trailnotes.learner.circle import interface_of, store_at

    gpus = int(device_type == "cuda")
    kind = ray.remote(Rank).options(num_cpus=1, num_gpus=gpus, max_restarts=0, scheduling_strategy="SPREAD")
    actors = [kind.remote(str(Path.cwd())) for _ in range(1, world)]
    limit = cluster.config.cluster.timeout
    try:
        placed = ray.get([actor.place.remote() for actor in actors], timeout=limit)
        ranks = {rank: ActorOfRank(*one) for rank, one in enumerate(zip(actors, placed, strict=True), start=1)}
        here = ray.util.get_node_ip_address()
        alone = all(address == here for _, address, _ in placed)
        store = store_at(LOCALHOST if alone else here, world, seconds)
        for rank, follower in ranks.items():
            follower.follow((rank, world), (store.host, store.port), device_type, seconds)
    except BaseException as error:
        for actor in actors:
            ray.kill(actor)
        if isinstance(error, GetTimeoutError):
            raise ClusterError(
                f"{world - 1} ranks of the learner, each with 1 CPU{' and 1 GPU' if gpus else ''}, found no room in "
                f"the cluster within cluster.timeout = {limit:g} s: lower learner.world_size, or add nodes"
            ) from error
        if isinstance(error, RayError):
            raise ClusterError(f"a rank of the learner did not start: {shortened(_told(str(error)))}") from error
        raise

    def met_over() -> Store:
        return store

    return Followers(ranks, seconds, met_over, interface=LOOPBACK if alone else interface_of(here))


def _told(text: str) -> str:
    """The sentence of Ray's message on a dead actor that says why, on one line."""
    line = " ".join(text.split())
    return line.rpartition("The actor is dead because ")[2].partition(" Some common causes")[0]

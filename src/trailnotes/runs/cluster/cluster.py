"""`Cluster`: what a run asks of Ray."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import ray
import torch
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from trailnotes.errors import ClusterError, ConfigError
from trailnotes.runs.cluster.engines import has_cluster_engines, place_engines
from trailnotes.runs.cluster.envs import ActorHost
from trailnotes.runs.cluster.memory import ServedMemory
from trailnotes.runs.cluster.ranks import get_rank_resources, start_ranks
from trailnotes.runs.cluster.waiting import Bundle, get_result

if TYPE_CHECKING:
    from trailnotes.config.schema import Config
    from trailnotes.envs.workers.hosts import Host
    from trailnotes.learner.ranks import RankMonitor
    from trailnotes.policies.vllm.replica import Connect
    from trailnotes.types import StrPath


class Cluster:
    """A Ray cluster that this process is connected to; `connect_cluster` makes one for the config of a run."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.home: str = ray.get_runtime_context().get_node_id()  # the node of this process
        self._nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        self._group: Any = None  # placement group: first a bundle for each environment worker, then for each rank
        self._gpu: Any = None  # actor; as long as it is referred to, the GPU of this process is set aside
        self._engines: list[Any] = []  # actors

    @property
    def nodes(self) -> list[str]:
        """Ids of the nodes that lived when this process connected."""
        return list(self._nodes)

    @property
    def num_machines(self) -> int:
        """Number of different addresses; tests have several nodes on one machine."""
        return len({node["NodeManagerAddress"] for node in self._nodes.values()})

    @property
    def num_ranks(self) -> int:
        """Number of ranks besides this process."""
        return self.config.learner.world_size - 1

    def get_node_name(self, node: str) -> str:
        """Return the name of a node in messages."""
        address = self._nodes.get(node, {}).get("NodeManagerAddress", "that has joined since")
        return f"node {address} ({node[:6]})"

    def reserve(self) -> None:
        """Set aside what this process, its environment workers and its ranks need, spread over the nodes.

        Raises:
            ConfigError: the ranks could not reach this process.
            ClusterError: there is no room for all of them within `cluster.timeout`.
        """
        workers, ranks, limit = self.config.env.num_workers, self.num_ranks, self.config.cluster.timeout
        if ranks and self._is_outside:
            raise ConfigError(
                "learner.world_size above 1 needs this process on a machine of the cluster: start it there, with "
                "cluster.address = auto or HOST:PORT instead of ray://"
            )
        if self._needs_gpu():
            self._gpu = reserve_gpu(self.config, self.pin_to_node(self.home))
        bundles = [{"CPU": self.config.cluster.env_cpus}] * workers
        bundles += [get_rank_resources(self.config) for _ in range(ranks)]
        if not bundles:
            return
        self._group = placement_group(bundles, strategy="SPREAD")
        if not self._group.wait(limit):
            raise ClusterError(
                f"the nodes of the cluster have no room for {workers} environment workers of "
                f"{self.config.cluster.env_cpus:g} CPU and {ranks} ranks within cluster.timeout = {limit:g} s: lower "
                "env.num_workers or learner.world_size, or add nodes"
            )

    def make_env_host(self, index: int) -> Host:
        """Make an environment worker somewhere in the cluster: `EnvPool`'s `make_host`."""
        return ActorHost(self.config, index, self._get_bundle(index))

    def make_memory(self, path: StrPath) -> ServedMemory:
        """Serve the memory file of the run from this machine. Raises as `ServedMemory`."""
        return ServedMemory(self.config, path, self.pin_to_node(self.home), self.get_node_name(self.home))

    def start_ranks(self) -> RankMonitor:
        """Start the ranks of the learner besides this process, for `make_learner`. Raises as `ranks.start_ranks`."""
        first = self.config.env.num_workers
        return start_ranks(self.config, [self._get_bundle(first + number) for number in range(self.num_ranks)])

    def start_engines(self) -> list[Connect]:
        """Start the engines of the run; return `connects` of `make_vllm_policy`, [] if it needs none."""
        if not has_cluster_engines(self.config):
            return []
        actors, connects = place_engines(self.config)
        self._engines += actors
        return connects

    def close(self) -> None:
        """End all actors of the run but the memory."""
        for actor in self._engines:  # Ray would start them anew wherever they end by themselves
            ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)
        self._engines, self._group, self._gpu = [], None, None

    @staticmethod
    def pin_to_node(node: str) -> Any:
        """Make the scheduling strategy that places an actor on this node and no other."""
        return NodeAffinitySchedulingStrategy(node, soft=False)

    def _get_bundle(self, index: int) -> Bundle:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        node = placement_group_table(self._group)["bundles_to_node_id"][index]
        return Bundle(strategy, self.get_node_name(node), self._nodes.get(node, {}).get("NodeManagerAddress", ""))

    @property
    def _is_outside(self) -> bool:
        """Whether this process is on no node, and reaches the cluster through Ray's client port."""
        return self.config.cluster.address.startswith("ray://")

    def _needs_gpu(self) -> bool:
        """Return whether this process computes on a GPU of its node that Ray may give to others."""
        from trailnotes.policies.hf.policy import resolve_device

        if self._is_outside or self._nodes[self.home]["Resources"].get("GPU", 0.0) < 1:
            return False
        device = resolve_device(self.config.model.device)  # one with a number is used as it is: Ray does not know of it
        return device.type == "cuda" and device.index is None


class GpuReservation:
    """Actor that has a GPU set aside, and leaves it to the process of the run."""

    def get_gpu_id(self) -> str:
        """Return the name of its GPU on its machine."""
        (name,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return str(name)


def reserve_gpu(config: Config, here: Any) -> Any:
    """Set a GPU of this machine aside, and compute on it from here on.

    `here` is the scheduling strategy that places an actor on the node of this process. The actor that is returned keeps
    the GPU as long as it is referred to.

    Raises:
        ClusterError: other programs have all of them, or this process does not see the one that Ray gives.
    """
    actor = ray.remote(GpuReservation).options(num_cpus=0, num_gpus=1, scheduling_strategy=here).remote()
    who = "a GPU of this machine for the process of the run (if others have them all, start it elsewhere)"
    gpu = get_result(actor.get_gpu_id.remote(), who, config.cluster.timeout, "cluster.timeout")
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and gpu not in visible:
        raise ClusterError(
            f"Ray gives GPU {gpu} to the process of the run, whose CUDA_VISIBLE_DEVICES is {','.join(visible)}: unset "
            "it"
        )
    torch.cuda.set_device(visible.index(gpu) if visible else int(gpu))
    return actor

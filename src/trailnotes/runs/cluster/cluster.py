"""`Cluster`: what a run asks of Ray."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from trailnotes.config.schema import Config
from trailnotes.envs.workers.pool import Host
from trailnotes.errors import ClusterError, ConfigError
from trailnotes.learner.ranks import RankMonitor, resolve_device_type
from trailnotes.policies.hf.policy import resolve_device
from trailnotes.policies.vllm.engine import Connect
from trailnotes.runs.cluster.engines import place_engines
from trailnotes.runs.cluster.envs import ActorHost
from trailnotes.runs.cluster.ranks import start_ranks
from trailnotes.runs.cluster.waiting import Bundle, get_result


class Cluster:
    """A Ray cluster that this process is connected to; `connect_cluster` makes one for the config of a run."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.home: str = ray.get_runtime_context().get_node_id()  # the node of this process
        self.nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}  # when this process connected
        self._group: Any = None  # placement group: first a bundle for each environment worker, then for each rank
        self._is_outside = config.cluster.address.startswith("ray://")  # this process is on no node
        self._gpu: Any = None  # actor; as long as it is referred to, Ray gives the GPU of this process to no other
        self._engines: list[Any] = []  # actors

    def get_node_name(self, node: str) -> str:
        address = self.nodes.get(node, {}).get("NodeManagerAddress", "that has joined since")
        return f"node {address} ({node[:6]})"

    def reserve(self) -> None:
        """Reserve room for this process, its environment workers and its ranks, spread over the nodes."""
        workers, ranks = self.config.env.num_workers, self.config.learner.world_size - 1
        limit = self.config.cluster.timeout
        if ranks and self._is_outside:
            raise ConfigError(
                "learner.world_size above 1 needs this process on a machine of the cluster: start it there, with "
                "cluster.address = auto or HOST:PORT instead of ray://"
            )
        if self._needs_gpu():
            self._gpu = reserve_gpu(self.config, self.pin_to_node(self.home))
        bundles = [{"CPU": self.config.cluster.env_cpus}] * workers
        if ranks:
            bundles += [{"CPU": 1.0} | ({"GPU": 1.0} if resolve_device_type(self.config) == "cuda" else {})] * ranks
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
        return ActorHost(self.config, index, self._get_bundle(index))

    def start_ranks(self) -> RankMonitor:
        first, ranks = self.config.env.num_workers, self.config.learner.world_size - 1
        return start_ranks(self.config, [self._get_bundle(first + number) for number in range(ranks)])

    def start_engines(self) -> list[Connect]:
        """Start the engines of the run; return `connects` of `make_vllm_policy`, [] if it needs none."""
        if self.config.engine.name != "vllm" or self.config.engine.urls:
            return []
        actors, connects = place_engines(self.config)
        self._engines += actors
        return connects

    def close(self) -> None:
        for actor in self._engines:  # Ray would start them anew wherever they end by themselves
            ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)
        self._engines, self._group, self._gpu = [], None, None

    @staticmethod
    def pin_to_node(node: str) -> Any:
        return NodeAffinitySchedulingStrategy(node, soft=False)

    def _get_bundle(self, index: int) -> Bundle:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        node = placement_group_table(self._group)["bundles_to_node_id"][index]
        return Bundle(strategy, self.get_node_name(node), self.nodes.get(node, {}).get("NodeManagerAddress", ""))

    def _needs_gpu(self) -> bool:
        if self._is_outside or self.nodes[self.home]["Resources"].get("GPU", 0.0) < 1:
            return False
        device = resolve_device(self.config.model.device)  # one with a number is used as it is: Ray does not know of it
        return device.type == "cuda" and device.index is None


class GpuReservation:
    """Actor that has a GPU, and leaves it to the process of the run."""

    def get_gpu_id(self) -> str:
        (name,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return str(name)


def reserve_gpu(config: Config, here: Any) -> Any:
    """Reserve a GPU of this machine, and compute on it from here on; the actor returned keeps it while referred to."""
    actor = ray.remote(GpuReservation).options(num_cpus=0, num_gpus=1, scheduling_strategy=here).remote()
    who = "a GPU of this machine for the process of the run (if others have them all, start it elsewhere)"
    gpu = get_result(actor.get_gpu_id.remote(), who, config.cluster.timeout, "cluster.timeout")
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and gpu not in visible:
        raise ClusterError(
            f"Ray gives this process GPU {gpu}, and its CUDA_VISIBLE_DEVICES is {','.join(visible)}: unset it"
        )
    torch.cuda.set_device(visible.index(gpu) if visible else int(gpu))
    return actor

"""`Cluster`: what a run asks of Ray."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trailnotes.cluster.waiting import get_result
from trailnotes.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from trailnotes.cluster.memory import ServedMemory
    from trailnotes.config.schema import Config
    from trailnotes.envs.workers.hosts import Host
    from trailnotes.learner.ranks import RankMonitor
    from trailnotes.policies.vllm.replica import Connect
    from trailnotes.types import StrPath


class Cluster:
    """A Ray cluster that this process is connected to; `connect_cluster` makes one for the config of a run."""

    def __init__(self, config: Config) -> None:
        import ray

        self.config = config
        self.home: str = ray.get_runtime_context().get_node_id()  # the node of this process
        self._nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        self._group: Any = None  # placement group: first a bundle for each environment worker, then for each rank
        self._gpu: Any = None  # actor; as long as it is referred to, the GPU of this process is set aside
        self._engines: list[Any] = []  # actors

    @property
    def nodes(self) -> dict[str, str]:
        """Names in messages, by id, of the nodes that lived when this process connected."""
        return {node: f"node {found['NodeManagerAddress']} ({node[:6]})" for node, found in self._nodes.items()}

    @property
    def num_machines(self) -> int:
        """Number of different addresses; tests have several nodes on one machine."""
        return len({found["NodeManagerAddress"] for found in self._nodes.values()})

    def get_node_name(self, node: str) -> str:
        """Return the name of a node in messages, also of one that has come since."""
        return self.nodes.get(node, f"node {node[:6]}")

    def reserve(self) -> None:
        """Set aside what this process, its environment workers and its ranks need, spread over the nodes.

        Raises:
            ConfigError: the ranks could not reach this process.
            ClusterError: there is no room for all of them within `cluster.timeout`.
        """
        from ray.util import placement_group

        requests = self.get_resource_requests()
        self._require_resources(requests)
        if requests["this process"][0]:
            self._gpu = reserve_gpu(self.config, self.pin_to_node(self.home))
        (workers, of_worker), (ranks, of_rank) = requests["env.num_workers"], requests["learner.world_size"]
        bundles = [of_worker] * workers + [of_rank] * ranks
        if not bundles:
            return
        self._group = placement_group(bundles, strategy="SPREAD")
        if not self._group.wait(self.config.cluster.timeout):
            raise ClusterError(
                f"no room on the nodes of the cluster for {bundles} within cluster.timeout = "
                f"{self.config.cluster.timeout:g} s: lower env.num_workers, cluster.env_cpus or learner.world_size, or "
                "add nodes"
            )

    def get_resource_requests(self) -> dict[str, tuple[int, dict[str, float]]]:
        """List by setting how many processes it asks for, and the resources of each."""
        from trailnotes.cluster.engines import get_engine_resources, has_cluster_engines
        from trailnotes.cluster.ranks import get_rank_resources

        config = self.config
        ranks, engines = config.learner.world_size - 1, config.engine.replicas if has_cluster_engines(config) else 0
        if ranks and self._is_outside:
            raise ConfigError(
                "learner.world_size above 1 needs this process on a machine of the cluster: start it there, with "
                "cluster.address = auto or HOST:PORT instead of ray://"
            )
        return {
            "env.num_workers": (config.env.num_workers, {"CPU": config.cluster.env_cpus}),
            "learner.world_size": (ranks, get_rank_resources(config) if ranks else {}),
            "engine.replicas": (engines, get_engine_resources(config) if engines else {}),
            "this process": (int(self._needs_gpu()), {"GPU": 1.0}),
        }

    def make_env_host(self, index: int) -> Host:
        """Make an environment worker somewhere in the cluster: `EnvPool`'s `make_host`."""
        from trailnotes.cluster.envs import ActorHost

        return ActorHost(self.config, index, self._pin_to_bundle(index), self.get_node_name)

    def make_memory(self, path: StrPath) -> ServedMemory:
        """Serve the memory file of the run from this machine. Raises as `ServedMemory`."""
        from trailnotes.cluster.memory import ServedMemory

        return ServedMemory(self.config, path, self.pin_to_node(self.home), self.get_node_name(self.home))

    def start_ranks(self) -> RankMonitor:
        """Start the ranks of the learner besides this process, for `make_learner`. Raises as `ranks.start_ranks`."""
        from trailnotes.cluster.ranks import start_ranks

        workers, ranks = self.config.env.num_workers, self.config.learner.world_size - 1
        bundles = [self._pin_to_bundle(workers + number) for number in range(ranks)]
        return start_ranks(self.config, bundles, self.get_node_name)

    def start_engines(self) -> list[Connect]:
        """Start the engines of the run; return `connects` of `make_vllm_policy`, [] if it needs none."""
        from trailnotes.cluster.engines import has_cluster_engines, place_engines

        if not has_cluster_engines(self.config):
            return []
        actors, connects = place_engines(self.config)
        self._engines += actors
        return connects

    def close(self) -> None:
        """End all actors of the run but the memory."""
        import ray
        from ray.util import remove_placement_group

        for actor in self._engines:  # Ray would start them anew wherever they end by themselves
            ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)
        self._engines, self._group, self._gpu = [], None, None

    @staticmethod
    def pin_to_node(node: str) -> Any:
        """Make the scheduling strategy that places an actor on this node and no other."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def _pin_to_bundle(self, index: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)

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

    def _require_resources(self, requests: dict[str, tuple[int, dict[str, float]]]) -> None:
        """Refuse at once what exceeds the whole cluster; others may hold some of it."""
        for resource in ("CPU", "GPU"):
            have = sum(node["Resources"].get(resource, 0.0) for node in self._nodes.values())
            wanted = {name: number * each.get(resource, 0.0) for name, (number, each) in requests.items()}
            total = sum(wanted.values())
            if total > have:
                asking = " + ".join(f"{amount:g} for {name}" for name, amount in wanted.items() if amount)
                raise ClusterError(
                    f"the run wants {asking} = {total:g} {resource} of the cluster, which has {have:g}: lower these "
                    "settings, or add nodes"
                )


class GpuReservation:
    """Actor that has a GPU set aside, and leaves it to the process of the run."""

    def get_gpu_id(self) -> str:
        """Return the name of its GPU on its machine."""
        import ray

        (name,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return str(name)


def reserve_gpu(config: Config, here: Any) -> Any:
    """Set a GPU of this machine aside, and compute on it from here on.

    `here` is the scheduling strategy that places an actor on the node of this process. The actor that is returned keeps
    the GPU as long as it is referred to.

    Raises:
        ClusterError: other programs have all of them, or this process does not see the one that Ray gives.
    """
    import ray
    import torch

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

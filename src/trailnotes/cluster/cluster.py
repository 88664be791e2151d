"""`Cluster`: the requests of a run to Ray."""

from __future__ import annotations

import os
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from trailnotes.cluster.waiting import Deadline, get_result
from trailnotes.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from trailnotes.cluster.memory import ServedMemory
    from trailnotes.config.schema import Config
    from trailnotes.envs.workers.hosts import Host
    from trailnotes.learner.rank_handles import RankMonitor
    from trailnotes.policies.vllm.replica import Connect
    from trailnotes.types import StrPath


class Cluster:
    """A Ray cluster that this process is connected to; `connect_cluster` makes one for the config of a run."""

    def __init__(self, config: Config) -> None:
        import ray

        self.config = config
        self._seat: Any = None  # as long as it is referred to, the GPU of this process is set aside
        self.home: str = ray.get_runtime_context().get_node_id()  # the node of this process
        self._engines: list[Any] = []  # actors
        self._found = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}

    @property
    def _is_outside(self) -> bool:
        """Whether this process is on no node, and reaches the cluster through Ray's client port."""
        return self.config.cluster.address.startswith("ray://")

    @property
    def nodes(self) -> dict[str, str]:
        """Names in messages, by id, of all nodes that live."""
        return {node: f"node {found['NodeManagerAddress']} ({node[:6]})" for node, found in self._found.items()}

    @property
    def num_machines(self) -> int:
        """Number of different addresses; tests have several nodes on one machine."""
        return len({found["NodeManagerAddress"] for found in self._found.values()})

    def get_node_name(self, node: str) -> str:
        """Return the name of a node in messages, also of one that has come since."""
        return self.nodes.get(node, f"node {node[:6]}")

    def remove_node(self, node: str) -> None:
        """Remove a node that was lost."""
        del self._found[node]

    def make_env_host(self, index: int) -> Host:
        """Make an environment worker somewhere in the cluster: `EnvPool`'s `make_host`."""
        from trailnotes.cluster.envs import ActorHost

        return ActorHost(self.config, index, self.get_node_name)

    def make_memory(self, path: StrPath) -> ServedMemory:
        """Serve the memory file of the run from this machine. Raises as `ServedMemory`."""
        from trailnotes.cluster.memory import ServedMemory

        return ServedMemory(self.config, path, self.pin_to_node(self.home), self.get_node_name(self.home))

    def reserve_gpu(self) -> None:
        """Have Ray give the GPU of this process to no other. Raises as `reserve_gpu`."""
        if self._gpu_reservation:
            self._seat = reserve_gpu(self.config, self.pin_to_node(self.home))

    def start_ranks(self) -> RankMonitor:
        """Start the ranks of the learner beside this process, for `make_learner`. Raises as `ranks.start_ranks`."""
        from trailnotes.cluster.ranks import start_ranks

        return start_ranks(self.config, self.get_node_name)

    def start_engines(self) -> list[Connect]:
        """Start the engines of the run; return `connects` of `make_vllm_policy`, [] if it needs none."""
        from trailnotes.cluster.engines import has_cluster_engines, place_engines

        if not has_cluster_engines(self.config):
            return []
        actors, connects = place_engines(self.config)
        self._engines += actors
        return connects

    def close(self) -> None:
        """End the engines, which Ray would start anew wherever they end by themselves."""
        import ray

        for actor in self._engines:
            ray.kill(actor)
        self._engines.clear()

    @staticmethod
    def pin_to_node(node: str) -> Any:
        """Make the scheduling strategy that places an actor on this node and no other."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def get_resource_requests(self) -> dict[str, tuple[int, dict[str, float]]]:
        """List by setting how many actors it asks for, and the resources of each; without the GPU of this process."""
        config = self.config
        wanted = {"env.num_workers": (config.env.num_workers, {"CPU": config.cluster.env_cpus})}
        if config.learner.world_size > 1:
            from trailnotes.cluster.ranks import get_rank_resources

            if self._is_outside:
                raise ConfigError(
                    "learner.world_size above 1 needs this process on a machine of the cluster: start it there, with "
                    "cluster.address = auto or HOST:PORT instead of ray://"
                )
            wanted["learner.world_size"] = config.learner.world_size - 1, get_rank_resources(config)
        from trailnotes.cluster.engines import get_engine_resources, has_cluster_engines

        if has_cluster_engines(config):
            wanted["engine.replicas"] = config.engine.replicas, get_engine_resources(config)
        return wanted

    @property
    def _gpu_reservation(self) -> dict[str, float]:
        """What Ray sets aside for the process of the run, on its own node; {} if nothing."""
        from trailnotes.policies.hf.policy import resolve_device

        if self._is_outside or self._found[self.home]["Resources"].get("GPU", 0.0) < 1:
            return {}
        device = resolve_device(self.config.model.device)  # one with a number is used as it is: Ray does not know of it
        return {"GPU": 1.0} if device.type == "cuda" and device.index is None else {}

    def require_resources(self) -> None:
        """Check that all nodes together have what the run asks for, and single nodes what each actor needs.

        Others may hold some of it. Raises `ClusterError`, which names the settings.
        """
        wanted = {setting: (number, each) for setting, (number, each) in self.get_resource_requests().items() if number}
        seat, have = self._gpu_reservation, Counter[str]()
        left = {node: Counter[str](self._found[node]["Resources"]) for node in self._found}
        for resources in left.values():
            have.update(resources)
        if seat:
            left[self.home].subtract(seat)
        total = Counter[str](seat)
        for number, each in wanted.values():
            total.update({resource: number * amount for resource, amount in each.items()})
        for resource, amount in total.items():
            asking = [f"{name} = {attrgetter(name)(self.config)}" for name in wanted if wanted[name][1].get(resource)]
            if asking and amount > have[resource]:
                own = " and the process of the run" if resource in seat else ""
                raise ClusterError(
                    f"{' and '.join(asking)}{own} want {amount:g} {resource} of the cluster, which has "
                    f"{have[resource]:g}: lower them, or add nodes"
                )
        for setting, (_, each) in wanted.items():
            if not any(all(node.get(name, 0.0) >= amount for name, amount in each.items()) for node in left.values()):
                needs = " and ".join(f"{amount:g} {name}" for name, amount in each.items())
                besides = " besides that of the process of the run" if seat.keys() & each.keys() else ""
                raise ClusterError(
                    f"no node of the cluster has {needs}{besides}, which each of {setting} wants: lower it"
                )


class GpuReservation:
    """Actor that has a GPU set aside, and leaves it to the process of the run."""

    def get_gpu_id(self) -> str:
        """Return the name of its GPU on its machine."""
        import ray

        (found,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return str(found)


def reserve_gpu(config: Config, here: Any) -> Any:
    """Set a GPU of this machine aside, and compute on it from here on.

    `here` is the scheduling strategy that places an actor on the node of this process. The actor that is returned keeps
    the GPU as long as it is referred to.

    Raises:
        ClusterError: other programs have all of them, or this process does not see the one that Ray gives.
    """
    import ray
    import torch

    seat = ray.remote(GpuReservation).options(num_cpus=0, num_gpus=1, scheduling_strategy=here).remote()
    who = "a GPU of this machine for the process of the run (if others have them all, start it elsewhere)"
    gpu = get_result(seat.get_gpu_id.remote(), Deadline(lambda: who, config.cluster.timeout, "cluster.timeout"))
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and gpu not in visible:
        named = ",".join(visible)
        raise ClusterError(
            f"Ray gives GPU {gpu} to the process of the run, whose CUDA_VISIBLE_DEVICES is {named}: unset it"
        )
    torch.cuda.set_device(visible.index(gpu) if visible else int(gpu))
    return seat

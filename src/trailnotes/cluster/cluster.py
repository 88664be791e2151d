"""`Cluster`: what a run asks of Ray, in the words of a run."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from trailnotes.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trailnotes.cluster.memory import ServedMemory
    from trailnotes.config.schema import Config
    from trailnotes.envs.workers.hosts import Host
    from trailnotes.learner.rank_handles import RankMonitor
    from trailnotes.policies.vllm.replica import Connect
    from trailnotes.types import StrPath


class Cluster:
    """A Ray cluster that this process is connected to. `joined` makes one.

    Args:
        config: of the run.
    """

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
        """Id -> what messages call it, of all nodes that live."""
        return {node: _format_node(node, found["NodeManagerAddress"]) for node, found in self._found.items()}

    @property
    def num_machines(self) -> int:
        """By their addresses: tests have several nodes on one machine."""
        return len({found["NodeManagerAddress"] for found in self._found.values()})

    def get_node_name(self, node: str) -> str:
        """What messages call a node, also one that has come since."""
        return self.nodes.get(node, f"node {node[:6]}")

    def remove_node(self, node: str) -> None:
        """Do without a node that was lost."""
        del self._found[node]

    def make_env_host(self, index: int) -> Host:
        """An environment worker somewhere in the cluster: `EnvPool`'s `make_host`."""
        from trailnotes.cluster.envs import ActorHost

        return ActorHost(self.config, index, self.get_node_name)

    def make_memory(self, path: StrPath) -> ServedMemory:
        """The memory file of the run as a service on this machine. Raises as `ServedMemory`."""
        from trailnotes.cluster.memory import ServedMemory

        return ServedMemory(self.config, path, self.pin_to_node(self.home), self.get_node_name(self.home))

    def reserve_gpu(self) -> None:
        """Have Ray give the GPU of this process to nobody else. Raises as `seat.reserve_gpu`."""
        from trailnotes.cluster.seat import reserve_gpu

        if self._gpu_reservation:
            self._seat = reserve_gpu(self.config, self.pin_to_node(self.home))

    def start_ranks(self) -> RankMonitor:
        """The ranks of the learner beside this process: `make_learner`'s `start`. Raises as `ranks.start_ranks`."""
        from trailnotes.cluster.ranks import start_ranks

        return start_ranks(self.config, self.get_node_name)

    def start_engines(self) -> list[Connect]:
        """How to reach the engines of the run, which start now: `connects` of `vllm_policy`; [] if it needs none."""
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
        """The scheduling strategy that places an actor on this node and no other."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def get_resource_requests(self) -> dict[str, tuple[int, dict[str, float]]]:
        """Setting -> how many actors it asks for, and what Ray sets aside for each of them; without the seat."""
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
        from trailnotes.cluster.seat import needs_gpu_reservation

        return (
            {"GPU": 1.0}
            if not self._is_outside and needs_gpu_reservation(self.config, self._get_resources(self.home))
            else {}
        )

    def _get_resources(self, node: str) -> dict[str, float]:
        """Of a node in all, also what others hold."""
        found: dict[str, float] = self._found[node]["Resources"]
        return found

    def require_resources(self) -> None:
        """Refuse what all nodes together do not have, or no single one has for one actor. Others may hold some of it.

        Raises:
            ClusterError: it names the settings.
        """
        wanted = {setting: (number, each) for setting, (number, each) in self.get_resource_requests().items() if number}
        seat, have = self._gpu_reservation, Counter[str]()
        left = {node: Counter(self._get_resources(node)) for node in self._found}
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
            if not any(_has_resources(resources, each) for resources in left.values()):
                besides = " besides that of the process of the run" if seat.keys() & each.keys() else ""
                raise ClusterError(
                    f"no node of the cluster has {_format_resources(each)}{besides}, which each of {setting} wants: lower it"
                )


def _has_resources(resources: Mapping[str, float], each: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in each.items())


def _format_resources(each: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in each.items())


def _format_node(node: str, address: str) -> str:
    """What messages call a node: several may share an address."""
    return f"node {address} ({node[:6]})"

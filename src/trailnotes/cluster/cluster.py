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
    from trailnotes.learner.rank_handles import Followers
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
        return {node: _name(node, found["NodeManagerAddress"]) for node, found in self._found.items()}

    @property
    def num_machines(self) -> int:
        """By their addresses: tests have several nodes on one machine."""
        return len({found["NodeManagerAddress"] for found in self._found.values()})

    def name_of(self, node: str) -> str:
        """What messages call a node, also one that has come since."""
        return self.nodes.get(node, f"node {node[:6]}")

    def forget(self, node: str) -> None:
        """Do without a node that was lost."""
        del self._found[node]

    def env_host(self, index: int) -> Host:
        """An environment worker somewhere in the cluster: `EnvPool`'s `make_host`."""
        from trailnotes.cluster.envs import ActorHost

        return ActorHost(self.config, index, self.name_of)

    def memory(self, path: StrPath) -> ServedMemory:
        """The memory file of the run as a service on this machine. Raises as `ServedMemory`."""
        from trailnotes.cluster.memory import ServedMemory

        return ServedMemory(self.config, path, self.on(self.home), self.name_of(self.home))

    def take_gpu(self) -> None:
        """Have Ray give the GPU of this process to nobody else. Raises as `seat.take_gpu`."""
        from trailnotes.cluster.seat import take_gpu

        if self._of_seat:
            self._seat = take_gpu(self.config, self.on(self.home))

    def start_ranks(self) -> Followers:
        """The ranks of the learner beside this process: `make_learner`'s `start`. Raises as `ranks.start_ranks`."""
        from trailnotes.cluster.ranks import start_ranks

        return start_ranks(self.config, self.name_of)

    def engines(self) -> list[Connect]:
        """How to reach the engines of the run, which start now: `connects` of `vllm_policy`; [] if it needs none."""
        from trailnotes.cluster.engines import place_engines, places_engines

        if not places_engines(self.config):
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
    def on(node: str) -> Any:
        """The scheduling strategy that places an actor on this node and no other."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def wanted(self) -> dict[str, tuple[int, dict[str, float]]]:
        """Setting -> how many actors it asks for, and what Ray sets aside for each of them; without the seat."""
        config = self.config
        wanted = {"env.num_workers": (config.env.num_workers, {"CPU": config.cluster.env_cpus})}
        if config.learner.world_size > 1:
            from trailnotes.cluster.ranks import resources_of_rank

            if self._is_outside:
                raise ConfigError(
                    "learner.world_size above 1 needs this process on a machine of the cluster: start it there, with "
                    "cluster.address = auto or HOST:PORT instead of ray://"
                )
            wanted["learner.world_size"] = config.learner.world_size - 1, resources_of_rank(config)
        from trailnotes.cluster.engines import places_engines, resources_of_engine

        if places_engines(config):
            wanted["engine.replicas"] = config.engine.replicas, resources_of_engine(config)
        return wanted

    @property
    def _of_seat(self) -> dict[str, float]:
        """What Ray sets aside for the process of the run, on its own node; {} if nothing."""
        from trailnotes.cluster.seat import needs_seat

        return {"GPU": 1.0} if not self._is_outside and needs_seat(self.config, self._resources(self.home)) else {}

    def _resources(self, node: str) -> dict[str, float]:
        """Of a node in all, also what others hold."""
        found: dict[str, float] = self._found[node]["Resources"]
        return found

    def refuse_lacking(self) -> None:
        """Refuse what all nodes together do not have, or no single one has for one actor. Others may hold some of it.

        Raises:
            ClusterError: it names the settings.
        """
        wanted = {setting: (number, each) for setting, (number, each) in self.wanted().items() if number}
        seat, have = self._of_seat, Counter[str]()
        left = {node: Counter(self._resources(node)) for node in self._found}
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
            if not any(_holds(resources, each) for resources in left.values()):
                besides = " besides that of the process of the run" if seat.keys() & each.keys() else ""
                raise ClusterError(
                    f"no node of the cluster has {_said(each)}{besides}, which each of {setting} wants: lower it"
                )


def _holds(resources: Mapping[str, float], each: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in each.items())


def _said(each: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in each.items())


def _name(node: str, address: str) -> str:
    """What messages call a node: several may share an address."""
    return f"node {address} ({node[:6]})"

"""What leaves no room on a node of a Ray cluster."""

from __future__ import annotations

from typing import Any

from trailnotes.runs.cluster.cluster import Cluster

CPUS = 4  # of a node of the tests' cluster


class Idle:
    """Takes all CPUs of a node."""

    def here(self) -> bool:
        return True


def occupied(node: str) -> Any:
    """An actor that fills a node until `ray.kill` ends it."""
    import ray

    actor: Any = ray.remote(Idle).options(num_cpus=CPUS, scheduling_strategy=Cluster.pin_to_node(node)).remote()
    assert ray.get(actor.here.remote(), timeout=120)
    return actor

"""What a run asks of a cluster, against what nodes have: nothing is started."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nodes import refused
from small import small_config
from trailnotes.cluster.cluster import Cluster
from trailnotes.envs.workers.hosts import RemoteHost

ray: Any = pytest.importorskip("ray")

VLLM = {"engine": {"name": "vllm"}, "run": {"deterministic": False}}
SPREAD = {"engine": {"name": "vllm", "devices": ["0,1"]}, "run": {"deterministic": False}}


@pytest.fixture
def cluster_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    """Nodes of 16 CPUs and some GPUs, the process of the run on the first, and GPUs seen by it where it has some."""

    def make(*gpus: int, **sections: dict[str, Any]) -> Cluster:
        found = [
            {"NodeID": str(node), "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 16.0, "GPU": n}}
            for node, n in enumerate(gpus)
        ]
        monkeypatch.setattr(ray, "nodes", lambda: found)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "0"))
        return Cluster(small_config(cluster={"address": "auto"}, **sections))

    monkeypatch.setattr(
        "trailnotes.policies.hf.policy.resolve_device", lambda name: torch.device("cuda" if name == "auto" else name)
    )
    return make


def test_the_start_of_a_worker_has_the_limit_that_messages_name() -> None:
    class Silent(RemoteHost):
        def _send(self, frame: bytes, answer: Any) -> None: ...
        def _end(self, why: str) -> str:
            return why

        def close(self) -> None: ...

    assert Silent("worker", 600.0, 120.0)._start_limit == 120.0


@pytest.mark.parametrize(
    ("gpus", "sections", "why"),
    [
        ((2,), {"learner": {"world_size": 2}}, ""),
        ((1,), {"learner": {"world_size": 2}}, "the run wants 1 for learner.world_size [+] 1 for this process = 2 GPU"),
        ((6,), {"learner": {"world_size": 8}}, "the run wants 7 for learner.world_size [+] 1 for this process = 8 GPU"),
        (
            (1,),
            VLLM,
            "the run wants 1 for engine.replicas [+] 1 for this process = 2 GPU of the cluster, which has 1",
        ),
        ((1,), VLLM | {"model": {"device": "cuda:0"}}, ""),  # Ray does not know of it
        ((0, 1), VLLM, ""),  # nothing to set aside on the first node
        ((1,), {}, ""),
        ((3,), SPREAD, ""),
        ((1, 2), SPREAD, ""),
    ],
)
def test_the_gpu_of_the_run_is_counted(
    cluster_of: Callable[..., Cluster], gpus: tuple[int, ...], sections: dict[str, Any], why: str
) -> None:
    cluster = cluster_of(*gpus, **{"model": {"device": "auto"}} | sections)
    with refused(why) if why else nullcontext():
        cluster._require_resources(cluster.get_resource_requests())

"""What a run sets aside on a cluster: nothing is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from small import small_config
from trailnotes.envs.workers.hosts import RemoteHost
from trailnotes.errors import ConfigError
from trailnotes.runs.cluster import cluster as module
from trailnotes.runs.cluster.cluster import Cluster

HOME = "ab" * 28  # the node of this process


def test_the_start_of_a_worker_has_the_limit_that_messages_name() -> None:
    class Silent(RemoteHost):
        def _send(self, frame: bytes, answer: Any) -> None: ...
        def _end(self, why: str) -> str:
            return why

        def close(self) -> None: ...

    assert Silent("worker", 600.0, 120.0)._start_limit == 120.0


@pytest.mark.parametrize(
    ("gpus", "sections", "own", "others"),
    [
        (2, {"learner": {"world_size": 2}}, True, [{"CPU": 1.0, "GPU": 1.0}]),
        (2, {"model": {"device": "cuda:0"}}, False, []),  # Ray does not know of it
        (0, {"model": {"device": "auto"}}, False, []),  # nothing to set aside on this node
        (1, {"env": {"num_workers": 2}, "cluster": {"address": "auto"}}, True, [{"CPU": 1.0}] * 2),
        (1, {"cluster": {"address": "ray://10.0.0.1:10001"}}, False, []),  # this process is elsewhere
    ],
)
def test_what_a_run_sets_aside(
    monkeypatch: pytest.MonkeyPatch, gpus: int, sections: dict[str, Any], own: bool, others: list[dict[str, float]]
) -> None:
    reserved: list[Any] = []
    node = {"NodeID": HOME, "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 16.0, "GPU": gpus}}
    monkeypatch.setattr(ray, "nodes", lambda: [node])
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: HOME))
    monkeypatch.setattr("trailnotes.policies.hf.policy.resolve_device", device_of)
    monkeypatch.setattr(module, "reserve_gpu", lambda *_: "a GPU")
    monkeypatch.setattr(module, "placement_group", lambda bundles, strategy: reserved.extend(bundles) or Room())
    cluster = Cluster(small_config(**{"cluster": {"address": "auto"}, "model": {"device": "auto"}} | sections))
    cluster.reserve()
    assert (cluster._gpu == "a GPU") is own
    assert reserved == others


def device_of(name: str) -> torch.device:
    return torch.device("cuda" if name == "auto" else name)


class Room:
    def wait(self, timeout: float) -> bool:
        return True


def test_ranks_cannot_reach_a_process_outside_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: HOME))
    outside = {"cluster": {"address": "ray://10.0.0.1:10001"}, "learner": {"world_size": 2}}
    with pytest.raises(ConfigError, match="needs this process on a machine of the cluster"):
        Cluster(small_config(**outside)).reserve()

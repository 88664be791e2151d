"""What stands between an address and a cluster, without any: refusals, the room of a run, what ranks listen at."""

from __future__ import annotations

import socket
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from torch.distributed import TCPStore

from nodes import refused
from small import small_config
from trailnotes.config.schema import Config
from trailnotes.runs.cluster import cluster as module
from trailnotes.runs.cluster.cluster import Cluster
from trailnotes.runs.cluster.connection import connect_cluster
from trailnotes.runs.cluster.ranks import create_store, find_interface

HOME = "ab" * 28  # the node of this process


def at(address: str, **sections: Any) -> Config:
    return small_config(cluster={"address": address}, **sections)


def test_where_nobody_is_the_address_is_named() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with refused(rf"cluster.address = '{address}': nobody answers"), connect_cluster(at(address)):
            raise AssertionError("joined")


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
    def device_of(name: str) -> torch.device:
        return torch.device("cuda" if name == "auto" else name)

    reserved: list[Any] = []
    node = {"NodeID": HOME, "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 16.0, "GPU": gpus}}
    room = SimpleNamespace(wait=lambda timeout: True)
    monkeypatch.setattr(ray, "nodes", lambda: [node])
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: HOME))
    monkeypatch.setattr(module, "resolve_device", device_of)
    monkeypatch.setattr(module, "resolve_device_type", lambda config: "cuda")
    monkeypatch.setattr(module, "reserve_gpu", lambda *_: "a GPU")
    monkeypatch.setattr(module, "placement_group", lambda bundles, strategy: reserved.extend(bundles) or room)
    cluster = Cluster(small_config(**{"cluster": {"address": "auto"}, "model": {"device": "auto"}} | sections))
    cluster.reserve()
    assert (cluster._gpu == "a GPU") is own
    assert reserved == others


def test_a_store_listens_at_its_address_alone() -> None:
    store = create_store("127.0.0.1", 2, 5.0)
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("203.0.113.77") == ""  # kept for documentation, RFC 5737
    other = TCPStore("127.0.0.1", store.port, 2, timeout=timedelta(seconds=5.0))
    other.set("said", "hello")
    assert store.get("said") == b"hello"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), 5.0)

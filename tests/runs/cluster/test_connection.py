"""What stands between an address and a cluster, without any: refusals, the room of a run, what ranks listen at."""

from __future__ import annotations

import socket
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from torch.distributed import TCPStore

from nodes import refused
from small import small_config
from trailnotes.config.schema import Config
from trailnotes.memory.store import REQUESTS_KEPT
from trailnotes.runs.cluster import cluster as module
from trailnotes.runs.cluster.cluster import Cluster
from trailnotes.runs.cluster.connection import connect_cluster
from trailnotes.runs.cluster.memory import MemoryService, get_folder_id, make_request_id
from trailnotes.runs.cluster.ranks import create_store, find_interface
from trailnotes.types import Tip

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


def test_only_the_newest_requests_of_a_memory_service_stay_marked(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with closing(MemoryService(str(path), get_folder_id(path), small_config())) as service:
        store = service._memory.store
        names = [make_request_id() for _ in range(REQUESTS_KEPT + 3)]
        assert service.call("add", [Tip("task", "first", "key", 0.0)], once="phase") == 1
        for name in names:
            assert service.call("add", [Tip("task", name, "key", 0.0)], once=name) == 1
        for kept in (names[-1], names[3], "phase"):  # that of a phase stays
            assert service.call("add", [Tip("task", "again", "key", 0.0)], once=kept) == 0
        marks = store._query("SELECT name FROM meta WHERE name GLOB 'once/*'")
        assert {name for (name,) in marks} == {f"once/{name}" for name in ("phase", *names[3:])}

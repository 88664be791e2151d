"""What stands between an address and a cluster, without any: refusals, the room of a run, what ranks listen at."""

from __future__ import annotations

import socket
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import TCPStore

from nodes import refused
from small import small_config
from trailnotes.config.schema import Config
from trailnotes.runs.cluster.connection import connect_cluster
from trailnotes.runs.cluster.ranks import create_store, find_interface


def at(address: str, **sections: Any) -> Config:
    return small_config(cluster={"address": address}, **sections)


def test_where_nobody_is_the_address_is_named() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with refused(rf"cluster.address = '{address}': no answer"), connect_cluster(at(address)):
            raise AssertionError("joined")


def test_a_store_listens_at_its_address_alone() -> None:
    store = create_store("127.0.0.1", Config(learner={"world_size": 2, "timeout": 5.0}))
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("203.0.113.77") == ""  # kept for documentation, RFC 5737
    other = TCPStore("127.0.0.1", store.port, 2, timeout=timedelta(seconds=5.0))
    other.set("said", "hello")
    assert store.get("said") == b"hello"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), 5.0)

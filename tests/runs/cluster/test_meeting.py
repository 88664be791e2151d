"""Where the ranks of several machines meet, and what listens there."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from trailnotes.learner.process_group import bind_interface
from trailnotes.runs.cluster.ranks import create_store, find_interface


def test_an_address_has_an_interface() -> None:
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("203.0.113.77") == ""  # kept for documentation, RFC 5737


def test_a_store_listens_at_its_address_alone() -> None:
    store = create_store("127.0.0.1", 2, 5.0)
    other = TCPStore("127.0.0.1", store.port, 2, timeout=timedelta(seconds=5.0))
    other.set("said", "hello")
    assert store.get("said") == b"hello"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), 5.0)


def test_an_interface_that_somebody_named_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    with bind_interface("eth7"):
        assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("ib0", "eth7")
    assert "NCCL_SOCKET_IFNAME" not in os.environ
    with bind_interface(""):  # nobody knows it: they choose
        assert "NCCL_SOCKET_IFNAME" not in os.environ

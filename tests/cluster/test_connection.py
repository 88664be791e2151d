"""What stands between an address and a cluster, without any."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from nodes import refused
from small import small_config
from trailnotes.cluster import connection
from trailnotes.cluster.connection import connect_cluster
from trailnotes.config.schema import Config
from trailnotes.errors import MissingExtraError


def at(address: str) -> Config:
    return small_config(cluster={"address": address})


@pytest.mark.parametrize("address", ["local", "6379", "host", "ray://host", "http://host:1", "a b:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="name auto, HOST:PORT, or ray://HOST:PORT"):
        at(address)


def test_ray_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "find_missing_module", lambda extra: extra)
    with (
        pytest.raises(MissingExtraError, match=r"cluster.address needs the package ray: .*\[ray\]"),
        connect_cluster(at("auto")),
    ):
        raise AssertionError("joined")


def test_auto_does_not_choose_among_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", lambda: {"10.0.0.2:6379", "10.0.0.1:6379"})
    with (
        refused("2 Ray clusters run on this machine: name one of 10.0.0.1:6379, 10.0.0.2:6379"),
        connect_cluster(at("auto")),
    ):
        raise AssertionError("joined")


def test_where_nobody_is_the_address_is_named() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            refused(rf"cluster.address = '{address}': nobody answers .*: start Ray there"),
            connect_cluster(at(address)),
        ):
            raise AssertionError("joined")


class Page(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_what_is_not_ray_is_refused_before_ray_asks_it(scheme: str) -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with refused("something else than Ray answers"), connect_cluster(at(f"{scheme}127.0.0.1:{server.server_port}")):
            raise AssertionError("joined")
        server.shutdown()
        thread.join()

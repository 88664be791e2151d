"""What stands between an address and a cluster, without a cluster; and one that is looked over."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from small import small_config
from trailnotes.cluster import connection
from trailnotes.cluster.connection import joined
from trailnotes.config.schema import Config
from trailnotes.errors import ClusterError, MissingExtraError

if TYPE_CHECKING:
    from nodes import TwoNodes


def at(address: str, **env: Any) -> Config:
    return small_config(cluster={"address": address}, env=env)


@contextmanager
def refused(config: Config, why: str) -> Iterator[None]:
    with pytest.raises(ClusterError, match=why) as caught, joined(config):
        raise AssertionError("joined")
    assert "\n" not in str(caught.value)
    yield


def test_without_an_address_there_is_no_cluster() -> None:
    with joined(small_config()) as cluster:
        assert cluster is None


@pytest.mark.parametrize("address", ["local", "6379", "host", "ray://host", "http://host:1", "a b:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="name auto, HOST:PORT, or ray://HOST:PORT"):
        at(address)


def test_ray_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "missing_package", lambda extra: extra)
    with (
        pytest.raises(MissingExtraError, match=r"cluster.address needs the package ray: .*\[ray\]"),
        joined(at("auto")),
    ):
        raise AssertionError("joined")


def test_where_nobody_is_the_address_is_named() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with refused(at(address), rf"cluster.address = '{address}': nobody answers .*: start Ray there"):
            pass


class Page(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_what_is_not_ray_is_refused_before_ray_asks_it(scheme: str) -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with refused(at(f"{scheme}127.0.0.1:{server.server_port}"), "something else than Ray answers"):
            server.shutdown()
        thread.join()


def test_a_cluster_is_looked_over(two_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    with joined(at(two_nodes.address, num_workers=8)) as cluster:
        assert cluster is not None
        assert {cluster.home, two_nodes.other} == {*cluster.nodes}
        with refused(
            at(two_nodes.address, num_workers=9), "env.num_workers = 9 want 9 CPU of the cluster, which has 8"
        ):
            pass
        wide = small_config(cluster={"address": two_nodes.address, "env_cpus": 5}, env={"num_workers": 1})
        with refused(wide, "no node of the cluster has 5 CPU, which each of env.num_workers wants"):
            pass
        monkeypatch.setattr(connection.trailnotes, "__version__", "0.0.0")
        with refused(
            at(two_nodes.address), r"node .* has Trailnotes .*, this process 0.0.0 .*: install the same there"
        ):
            pass

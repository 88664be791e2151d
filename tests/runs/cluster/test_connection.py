"""What stands between an address and a cluster, without any."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from nodes import refused
from small import small_config
from trailnotes.config.schema import Config
from trailnotes.errors import MissingExtraError
from trailnotes.runs.cluster import connection
from trailnotes.runs.cluster.connection import connect_cluster


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


def test_where_nobody_is_the_address_is_named() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            refused(rf"cluster.address = '{address}': nobody answers .*: start Ray there"),
            connect_cluster(at(address)),
        ):
            raise AssertionError("joined")

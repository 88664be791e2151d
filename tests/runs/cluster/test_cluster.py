"""Runs whose environments are actors on two nodes: they train what a process alone trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodes import TwoNodes, refused
from small import small_config
from tinyrun import SAME, differences, episodes, metrics, tiny_config, trained_once
from trailnotes.config.schema import Config
from trailnotes.memory import TipMemory
from trailnotes.runs.cluster import connection
from trailnotes.runs.cluster.cluster import Cluster
from trailnotes.runs.cluster.connection import connect_cluster
from trailnotes.runs.train import train
from trailnotes.types import Tip

pytestmark = pytest.mark.long


def spread(nodes: TwoNodes, start_model: Path, **sections: dict[str, Any]) -> Config:
    """A run on the cluster, with an environment worker on each node, and room for both on either."""
    env = sections.pop("env", {}) | {"num_workers": 2}
    return tiny_config(start_model, env=env, cluster={"address": nodes.address}, **sections)


def tasks(path: Path) -> list[str]:
    """The tasks that were trained on, each once for each iteration."""
    ended = [episode for episode in episodes(path) if episode["outcome"] != "error"]
    return list(dict.fromkeys(f"{episode['iteration']} {episode['task']['id']}" for episode in ended))


@pytest.fixture(scope="module", autouse=True)
def cluster(cluster_of_module: TwoNodes) -> Iterator[Cluster]:
    """This process has joined it, for all tests of the file: what `train` joins is what is there."""
    config = small_config(cluster={"address": cluster_of_module.address})
    with connect_cluster(config) as cluster:
        yield cluster


def test_a_cluster_is_looked_over(cluster: Cluster, two_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    def asking(num_workers: int, timeout: float = 120.0) -> Config:
        settings = {"address": two_nodes.address, "timeout": timeout}
        return small_config(cluster=settings, env={"num_workers": num_workers})

    assert {cluster.home, two_nodes.other} == {*cluster.nodes}
    with connect_cluster(asking(8)) as same:
        assert same.home == cluster.home
    message = "no room for 99 environment workers of 1 CPU and 0 ranks within cluster.timeout = 5 s: lower env"
    with refused(message), connect_cluster(asking(99, 5.0)):
        raise AssertionError("joined")
    monkeypatch.setattr(connection.trailnotes, "__version__", "0.0.0")
    with refused(r"node .* has Trailnotes .*, this process 0.0.0: install the same there"), connect_cluster(asking(1)):
        raise AssertionError("joined")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rollout": {"num_tasks": 5, "max_async_iterations": 1}, "algorithm": {"show_tips": "other"}},
        {"memory": {"threshold": -1.0, "order": ["ucb"]}},
    ],
    ids=["in turn", "ahead, tips of others", "tips by their readers"],
)
def test_a_cluster_trains_what_one_process_trains(
    two_nodes: TwoNodes, start_model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    train(spread(two_nodes, start_model, **settings), tmp_path)
    assert differences(trained_once(start_model, **settings), tmp_path) == SAME


def test_killed_env_worker_costs_an_episode(two_nodes: TwoNodes, start_model: Path, tmp_path: Path) -> None:
    grave = tmp_path / "grave"
    grave.mkdir()
    options = {"families": ["keys/granite"], "max_steps": 2, "grave": str(grave), "deaths": 2}
    train(spread(two_nodes, start_model, env={"name": "paying:Mortal", "options": options}), tmp_path / "run")
    failed = [episode for episode in episodes(tmp_path / "run") if episode["outcome"] == "error"]
    assert len(failed) >= 2
    assert all("was lost: its worker process has died" in episode["error"] for episode in failed)
    assert tasks(tmp_path / "run") == tasks(trained_once(start_model))
    assert [line["iteration"] for line in metrics(tmp_path / "run")] == [0, 1, 2]


@contextmanager
def at_find(number: int, then: Callable[[], None]) -> Iterator[None]:
    """Have something happen when the memory is searched for the `number`-th time; each iteration does so ten times."""
    find = TipMemory.search_async
    calls: list[int] = []

    async def troubled(self: TipMemory, *arguments: Any) -> list[Tip]:
        calls.append(1)
        if len(calls) == number:
            then()
        return await find(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TipMemory, "search_async", troubled)
        yield
    assert len(calls) >= number

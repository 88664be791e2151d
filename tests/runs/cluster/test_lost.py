"""What a run on a cluster may lose: a node, the process that trains, an answer."""

from __future__ import annotations

import signal
import socket
import time
from contextlib import closing
from pathlib import Path

import pytest
from test_cluster import at_find, spread, tasks

from nodes import QUIET, TwoNodes
from tinyrun import SAME, differences, episodes, run_command, trained_once
from trailnotes.config.toml import to_toml
from trailnotes.runs.train import train

pytestmark = pytest.mark.ray


def test_a_lost_node_costs_episodes(two_nodes: TwoNodes, start_model: Path, tmp_path: Path) -> None:
    with at_find(15, two_nodes.lose_other):
        train(spread(two_nodes, start_model), tmp_path)
    assert any(episode["outcome"] == "error" for episode in episodes(tmp_path))
    assert tasks(tmp_path) == tasks(trained_once(start_model))


@pytest.mark.parametrize("moment", [9, 20, 33])
def test_a_killed_driver_resumes(two_nodes: TwoNodes, start_model: Path, tmp_path: Path, moment: int) -> None:
    (tmp_path / "config.toml").write_text(to_toml(spread(two_nodes, start_model)))
    words = ["train", str(tmp_path / "config.toml"), "--run-dir", str(tmp_path / "run")]
    assert run_command(words, tmp_path / "run", moment) == -signal.SIGKILL
    assert run_command(words, tmp_path / "run") == 0
    assert differences(trained_once(start_model), tmp_path / "run") == SAME


@pytest.mark.filterwarnings(  # Ray opens the log of that server, and leaves it to the collector
    "ignore:Exception ignored.*ray_client_server:pytest.PytestUnraisableExceptionWarning"
)
def test_a_cluster_is_reached_through_its_client_port(
    start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with closing(TwoNodes(ray_client_server_port=port)) as nodes:
        config = spread(nodes, start_model)
        reached = config.cluster.model_copy(update={"address": f"ray://127.0.0.1:{port}"})
        while not answers(port):
            time.sleep(0.1)
        train(config.model_copy(update={"cluster": reached}), tmp_path)
    assert differences(trained_once(start_model), tmp_path) == SAME


def answers(port: int) -> bool:
    with closing(socket.socket()) as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0

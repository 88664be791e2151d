"""A rank takes a free device of its node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import ray
import torch

from idle import occupied
from sharded_cases import config_of
from trailnotes.config.schema import Config, LearnerConfig
from trailnotes.errors import ClusterError
from trailnotes.runs.cluster.cluster import Cluster, reserve_gpu
from trailnotes.runs.cluster.connection import connect_cluster

if TYPE_CHECKING:
    from nodes import TwoNodes

pytestmark = pytest.mark.ray


@pytest.fixture
def config(two_nodes: TwoNodes, start_model: Path) -> Iterator[Config]:
    """Settings for two ranks, by which this process has joined the cluster."""
    alone = config_of(start_model)
    config = alone.model_copy(update={"cluster": alone.cluster.model_copy(update={"address": two_nodes.address})})
    with connect_cluster(config.model_copy(update={"learner": LearnerConfig()})) as cluster:
        busy = occupied(cluster.home)  # before room for the rank is set aside
        with connect_cluster(config):
            yield config
        ray.kill(busy)


def test_gpu_is_reserved(config: Config, two_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    two_nodes._cluster.add_node(num_cpus=1, num_gpus=2, object_store_memory=100 << 20)
    (node,) = (result["NodeID"] for result in ray.nodes() if result["Resources"].get("GPU"))
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    here = Cluster.pin_to_node(node)
    seats = [reserve_gpu(config, here), reserve_gpu(config, here)]
    assert sorted(chosen) == [0, 1]
    assert ray.available_resources().get("GPU", 0) == 0
    ray.kill(seats.pop(chosen.index(1)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    reserve_gpu(config, here)
    assert chosen[2] == 1  # the second that it sees
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(ClusterError, match="CUDA_VISIBLE_DEVICES is 7: unset it"):
        reserve_gpu(config, here)

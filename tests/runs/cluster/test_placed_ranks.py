"""Learner ranks on a cluster of two nodes: they learn what one process does, and whatever stops one is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray
import torch

from children import alive, wait_for
from idle import occupied
from nodes import get_pid
from sharded_cases import UPDATES, Case, config_of, difference, rows_of
from trailnotes.config.schema import Config, LearnerConfig
from trailnotes.errors import ClusterError, LearnerError
from trailnotes.learner.sharded import ShardedLearner, make_learner
from trailnotes.policies.hf.policy import load_model
from trailnotes.runs.cluster.cluster import Cluster, reserve_gpu
from trailnotes.runs.cluster.connection import connect_cluster
from trailnotes.runs.cluster.ranks import RankActorHandle

if TYPE_CHECKING:
    from nodes import TwoNodes

pytestmark = pytest.mark.ray
MIXED = rows_of(Case(others=True))  # with tips and without, held, imitated


@pytest.fixture
def cluster_at(two_nodes: TwoNodes, start_model: Path) -> Iterator[Callable[..., tuple[Config, Cluster]]]:
    """Joins the cluster by settings for two ranks."""
    with ExitStack() as stack:

        def join(**options: Any) -> tuple[Config, Cluster]:
            config = config_of(start_model, **options)
            config = config.model_copy(
                update={"cluster": config.cluster.model_copy(update={"address": two_nodes.address})}
            )
            alone = stack.enter_context(connect_cluster(config.model_copy(update={"learner": LearnerConfig()})))
            stack.callback(ray.kill, occupied(alone.home))  # before room for the rank is set aside
            return config, stack.enter_context(connect_cluster(config))

        yield join


def rank_1(learner: ShardedLearner) -> RankActorHandle:
    result = learner._monitor.ranks[1]
    assert isinstance(result, RankActorHandle)
    return result


def test_two_nodes_learn_what_one_process_does(cluster_at: Any, two_nodes: TwoNodes, tmp_path: Path) -> None:
    config, cluster = cluster_at(sections={"loss": {"kl": 0.1}})
    learner = ShardedLearner(config, tmp_path / "dumps", cluster.start_ranks())
    assert two_nodes.other[:6] in rank_1(learner).where
    models = [load_model(config.model)[0] for _ in range(2)]
    alone = make_learner(config_of(Path(config.model.path), 1, sections={"loss": {"kl": 0.1}}), *models, None)
    for rows in (rows_of(Case()), MIXED):
        for seed in range(UPDATES):
            mine, theirs = learner.update(rows, seed=seed), alone.update(rows, seed=seed)
            assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    assert difference(learner, alone) <= 1e-5
    (tmp_path / "saved").mkdir()
    learner.save(tmp_path / "saved")
    kept, pid = learner.weights(), get_pid(rank_1(learner).actor)
    learner.close()
    wait_for(lambda: not alive(pid), 120)

    learner = ShardedLearner(config, tmp_path / "dumps", cluster.start_ranks())
    learner.load(tmp_path / "saved")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in learner.weights().items())
    os.kill(get_pid(rank_1(learner).actor), signal.SIGKILL)
    with pytest.raises(
        LearnerError, match=r"^rank 1 on node \S+ \(.{6}\) of the learner was lost: its worker process has died$"
    ):
        learner.update(MIXED)
    with pytest.raises(LearnerError, match="have ended"):
        learner.update(MIXED)


def test_gpu_is_reserved(cluster_at: Any, two_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = cluster_at()
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

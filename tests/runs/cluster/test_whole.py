"""Whole runs with everything on a cluster of two nodes: ranks of the learner, engines, environments."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from idle import occupied
from nodes import TwoNodes, get_pid
from small import small_config
from tinyrun import distance, list_actions, metrics, tiny_config
from trailnotes.config.schema import Config
from trailnotes.errors import LearnerError
from trailnotes.learner.sharded import ShardedLearner
from trailnotes.runs.cluster import engines
from trailnotes.runs.cluster.cluster import Cluster
from trailnotes.runs.cluster.connection import connect_cluster
from trailnotes.runs.cluster.ranks import RankActorHandle
from trailnotes.runs.train import train
from trailnotes.storage import checkpoint

pytestmark = pytest.mark.ray

PROGRAM = Path(__file__).parents[2] / "causal.py"
ENGINE = {"name": "vllm", "python": sys.executable}
GRPO = {"algorithm": {"name": "grpo"}}
LORA = {"lora": {"enabled": True, "rank": 4}}


@pytest.fixture(scope="module", autouse=True)
def cluster(cluster_of_module: TwoNodes) -> Iterator[Cluster]:
    """This process has joined it, for all tests of the file."""
    with connect_cluster(small_config(cluster={"address": cluster_of_module.address})) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines draw as the embedded one does."""
    placed = partial(engines.place_engines, program=PROGRAM)
    monkeypatch.setattr("trailnotes.runs.cluster.cluster.place_engines", placed)


def alone(start_model: Path, model: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Config:
    """In this process; such that rounding cannot change a token."""
    own = {"model": {"path": str(start_model), **(model or {})}, "optim": {"lr": 1e-4, "epochs": 2}}
    return tiny_config(start_model, run={"deterministic": False}, **own, **sections)


def spread(nodes: TwoNodes, config: Config, world: int = 2, **engine: Any) -> Config:
    """The same on the cluster."""
    sections = config.model_dump()
    sections["env"]["num_workers"] = 1
    sections["learner"] |= {"world_size": world, "timeout": 120.0}
    sections["engine"] |= engine
    sections["cluster"]["address"] = nodes.address
    return Config(**sections)


def at_update(monkeypatch: pytest.MonkeyPatch, number: int, then: Callable[[RankActorHandle], object]) -> None:
    """Have something happen to rank 1 when the `number`-th update from now begins."""
    update, calls = ShardedLearner.update, []

    def troubled(self: ShardedLearner, *arguments: Any, **named: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == number:
            rank = self._monitor.ranks[1]
            assert isinstance(rank, RankActorHandle)
            then(rank)
        return update(self, *arguments, **named)

    monkeypatch.setattr(ShardedLearner, "update", troubled)


@pytest.mark.parametrize(
    ("model", "sections"), [({}, GRPO), (LORA, {}), ({}, {})], ids=["grpo-full", "empo2-lora", "empo2-full"]
)
def test_a_cluster_trains_what_one_process_trains(
    two_nodes: TwoNodes, start_model: Path, tmp_path: Path, model: dict[str, Any], sections: dict[str, Any]
) -> None:
    config = alone(start_model, model, **sections)
    train(config, tmp_path / "one")
    train(spread(two_nodes, config, **ENGINE), tmp_path / "two")
    assert list_actions(tmp_path / "two") == list_actions(tmp_path / "one")
    assert distance(tmp_path / "one", tmp_path / "two") < 1e-5
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert two["update/loss"] == pytest.approx(one["update/loss"], abs=1e-5)
        assert two["engine/difference"] < 1e-5


@pytest.mark.parametrize("how", ["stopped", "lost"])
def test_resume_after_lost_rank(
    cluster: Cluster, two_nodes: TwoNodes, start_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    import ray

    config = alone(start_model, **GRPO)
    train(config, tmp_path / "one")
    busy = occupied(cluster.home)  # so that the rank is on the other node
    losses: dict[str, tuple[Callable[[RankActorHandle], object], str]] = {
        "stopped": (
            lambda rank: os.kill(get_pid(rank.actor), signal.SIGSTOP),
            r"hangs: nothing from it for learner.timeout = 10 s",
        ),
        "lost": (lambda rank: two_nodes.lose_other(), "was lost: "),
    }
    troubled = spread(two_nodes, config)
    troubled = troubled.model_copy(
        update={
            "learner": troubled.learner.model_copy(update={"timeout": 10.0 if how == "stopped" else 120.0}),
            "env": config.env,
        }
    )
    with monkeypatch.context() as patch:
        at_update(patch, 2, losses[how][0])
        with pytest.raises(LearnerError, match=rf"^rank 1 on node \S+( \(.{{6}}\))? of the learner {losses[how][1]}"):
            train(troubled, tmp_path / "two")
    ray.kill(busy)
    two_nodes.mend()
    saved = list((tmp_path / "two/checkpoints").glob("step-*"))  # a node may take a moment to die
    assert saved
    assert not any(checkpoint.verify(path) for path in saved)
    train(spread(two_nodes, config), tmp_path / "two", allow_change=["learner", "env"])
    assert list_actions(tmp_path / "two") == list_actions(tmp_path / "one")
    assert distance(tmp_path / "one", tmp_path / "two") < 1e-5

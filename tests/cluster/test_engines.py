"""Engines on a cluster of two nodes, with a made-up model: whatever becomes of them, they are asked again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray
import torch

from children import alive, wait_for
from idle import occupied
from small import small_config
from trailnotes.cluster.connection import connect_cluster
from trailnotes.cluster.engines import place_engines
from trailnotes.errors import PolicyError
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.hf.policy import load_tokenizer
from trailnotes.policies.vllm.replica import Replica, WeightFile, write_full_model
from trailnotes.types import Completion, Sampling

if TYPE_CHECKING:
    from nodes import TwoNodes
    from trailnotes.cluster.cluster import Cluster
    from trailnotes.config.schema import Config

MARKOV = Path(__file__).parents[1] / "policies" / "vllm" / "markov.py"
CORE = """
import importlib.util, os
os.environ["FAKE_ENGINE"] = {faults!r}
spec = importlib.util.spec_from_file_location("markov", {markov!r})
markov = importlib.util.module_from_spec(spec)
spec.loader.exec_module(markov)
Core = markov.Core
"""
TOKENS = 20


@pytest.fixture(scope="module")
def cluster(cluster_of_module: TwoNodes, start_model: Path) -> Iterator[Cluster]:
    config = small_config(
        run={"deterministic": False},
        model={"path": str(start_model)},
        engine={"name": "vllm", "python": sys.executable, "start_timeout": 120.0},
        cluster={"address": cluster_of_module.address},
        env={"num_workers": 0},
    )
    with connect_cluster(config) as cluster:
        assert cluster is not None
        yield cluster


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    """A file in this folder is a fault of every engine."""
    path = tmp_path / "faults"
    path.mkdir()
    return path


@pytest.fixture
def core(tmp_path: Path, faults: Path) -> Path:
    path = tmp_path / "core.py"
    path.write_text(CORE.format(faults=str(faults), markov=str(MARKOV)), encoding="utf-8")
    return path


def replica_of(cluster: Cluster, core: Path) -> Replica:
    tokenizer = load_tokenizer(cluster.config.model)
    _, (connect,) = place_engines(cluster.config, core)
    return Replica(connect, StopCondition(tokenizer.decode, ()), 0.05)


def parcel(config: Config, folder: Path) -> WeightFile:
    """Weights under which no two tokens are as likely."""
    size = len(load_tokenizer(config.model))
    path = folder / "weights.safetensors"
    table = torch.randn(size, size, generator=torch.Generator().manual_seed(1))
    write_full_model({"table": table}, path, torch.float32)
    return WeightFile(path, 1, None)


def ask(replica: Replica) -> Completion:
    return asyncio.run(replica.complete((3, 5), Sampling(max_tokens=TOKENS, seed=4)))


def ask_and_lose(replica: Replica, faults: Path, lose: Callable[[], object]) -> Completion:
    """What it answers where `lose` is called in the middle of a step."""
    found: list[Completion] = []
    (faults / "hang-once").touch()
    asking = threading.Thread(target=lambda: found.append(ask(replica)))
    asking.start()
    wait_for(lambda: not (faults / "hang-once").exists())
    lose()
    asking.join()
    return found[0]


def server_of(replica: Replica) -> int:
    """The process of the actor that serves an engine, which is its parent."""
    stat = Path(f"/proc/{replica.about['pid']}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[1])


def kill(pid: int) -> Callable[[], None]:
    return lambda: os.kill(pid, signal.SIGKILL)


def test_a_killed_engine_comes_back_with_its_weights_and_is_asked_again(
    cluster: Cluster, core: Path, faults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ray.util.get_node_ip_address()
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.254")  # the run is on another machine
    with closing(replica_of(cluster, core)) as replica:
        replica.start_engine()
        replica.wait_until_ready()
        assert replica._link is not None
        assert replica._link.label.startswith(f"engine {here}:")
        replica.load(parcel(cluster.config, tmp_path), None)
        before = ask(replica)
        assert len(before.token_ids) == TOKENS
        assert ask_and_lose(replica, faults, kill(replica.about["pid"])) == before
        worker = replica.about["pid"]
        assert ask_and_lose(replica, faults, kill(server_of(replica))) == before
        wait_for(lambda: not alive(worker))  # it ends with its server
        assert replica.num_rebuilds == 2
        connect: Any = replica._connect
        with pytest.raises(PolicyError, match="knows another token"):
            connect.func(*connect.args, again=False, token="another of some length")


@pytest.mark.ray
def test_an_engine_on_a_lost_node_comes_back_on_another(
    cluster: Cluster, cluster_of_module: TwoNodes, core: Path, faults: Path, tmp_path: Path
) -> None:
    busy = occupied(cluster.home)
    with closing(replica_of(cluster, core)) as replica:
        replica.start_engine()
        replica.wait_until_ready()
        ray.kill(busy)
        replica.load(parcel(cluster.config, tmp_path), None)
        before = ask(replica)
        assert ask_and_lose(replica, faults, cluster_of_module.lose_other) == before
        assert replica.num_rebuilds == 1
    cluster_of_module.mend()


@pytest.mark.ray
def test_what_an_engine_cannot_run_is_told(cluster: Cluster, core: Path, faults: Path) -> None:
    (faults / "refuse").touch()
    with pytest.raises(PolicyError, match=r"^engine 0 of the cluster: this model has heads of 24 channels$"):
        replica_of(cluster, core).start_engine()


@pytest.mark.ray
def test_an_engine_that_finds_no_room_is_told_in_time(cluster: Cluster, two_nodes: TwoNodes, core: Path) -> None:
    busy = [occupied(node) for node in (cluster.home, two_nodes.other)]
    short = cluster.config.engine.model_copy(update={"start_timeout": 3.0})
    cluster = copy(cluster)
    cluster.config = cluster.config.model_copy(update={"engine": short})
    with pytest.raises(PolicyError, match=r"^engine 0 of the cluster did not answer within engine.start_timeout = 3 s"):
        replica_of(cluster, core).start_engine()
    for actor in busy:
        ray.kill(actor)

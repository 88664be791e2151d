"""Engines on a cluster of two nodes, with a made-up model: whatever becomes of them, they are asked again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import ray
import torch

from children import alive, wait_for
from idle import occupied
from small import small_config
from trailnotes.errors import PolicyError
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.hf.policy import load_tokenizer
from trailnotes.policies.vllm.replica import Replica
from trailnotes.policies.vllm.weights import WeightFiles, write_weights
from trailnotes.runs.cluster.connection import connect_cluster
from trailnotes.runs.cluster.engines import place_engines
from trailnotes.types import Completion, Sampling

if TYPE_CHECKING:
    from nodes import TwoNodes
    from trailnotes.config.schema import Config
    from trailnotes.runs.cluster.cluster import Cluster

TESTS = Path(__file__).parents[2]
PROGRAM = """
import os, runpy, sys
os.environ["FAKE_ENGINE"] = {faults!r}
sys.path.insert(0, {tests!r})
runpy.run_path({tests!r} + "/markov.py", run_name="__main__")
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
def program(tmp_path: Path, faults: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(faults=str(faults), tests=str(TESTS)), encoding="utf-8")
    return path


def replica_of(cluster: Cluster, program: Path) -> Replica:
    tokenizer = load_tokenizer(cluster.config.model)
    _, (connect,) = place_engines(cluster.config, program)
    return Replica(connect, StopCondition(tokenizer.decode, ()), cluster.config.engine)


def write_table(config: Config, folder: Path) -> WeightFiles:
    """Weights under which no two tokens are as likely."""
    size = len(load_tokenizer(config.model))
    table = torch.randn(size, size, generator=torch.Generator().manual_seed(1))
    return write_weights({"table": table}, folder / "weights", 1, torch.float32, None)


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


def find_engines(faults: Path) -> list[int]:
    """The processes of the engines that have this folder of faults."""
    program = str(faults.parent / "program.py").encode()
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if program in read(path)]


def read(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


def find_parent(pid: int) -> int:
    """The process of the actor that has an engine."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[1])


def kill(pid: int) -> Callable[[], None]:
    return lambda: os.kill(pid, signal.SIGKILL)


def test_a_killed_engine_comes_back_with_its_weights_and_is_asked_again(
    cluster: Cluster, program: Path, faults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ray.util.get_node_ip_address()
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.254")  # the run is on another machine
    with closing(replica_of(cluster, program)) as replica:
        replica.start_engine()
        replica.wait_until_ready()
        assert replica.server is not None
        assert replica.server.url.startswith(f"http://{here}:")
        replica.load(write_table(cluster.config, tmp_path), None)
        before = ask(replica)
        assert len(before.token_ids) == TOKENS
        (engine,) = find_engines(faults)
        assert ask_and_lose(replica, faults, kill(engine)) == before
        (engine,) = find_engines(faults)
        assert ask_and_lose(replica, faults, kill(find_parent(engine))) == before
        wait_for(lambda: not alive(engine))  # it ends with its actor
        assert replica.num_rebuilds == 2


@pytest.mark.ray
def test_an_engine_on_a_lost_node_comes_back_on_another(
    cluster: Cluster, cluster_of_module: TwoNodes, program: Path, faults: Path, tmp_path: Path
) -> None:
    busy = occupied(cluster.home)
    with closing(replica_of(cluster, program)) as replica:
        replica.start_engine()
        replica.wait_until_ready()
        ray.kill(busy)
        replica.load(write_table(cluster.config, tmp_path), None)
        before = ask(replica)
        assert ask_and_lose(replica, faults, cluster_of_module.lose_other) == before
        assert replica.num_rebuilds == 1
    cluster_of_module.mend()


@pytest.mark.ray
def test_what_an_engine_cannot_run_is_told(cluster: Cluster, program: Path, faults: Path) -> None:
    (faults / "refuse").touch()
    with pytest.raises(PolicyError, match=r"^engine 0 of the cluster: engine 0 exited .* this model has heads of"):
        replica_of(cluster, program).start_engine()


@pytest.mark.ray
def test_an_engine_that_finds_no_room_is_told_in_time(cluster: Cluster, two_nodes: TwoNodes, program: Path) -> None:
    busy = [occupied(node) for node in (cluster.home, two_nodes.other)]
    short = cluster.config.engine.model_copy(update={"start_timeout": 3.0})
    cluster = copy(cluster)
    cluster.config = cluster.config.model_copy(update={"engine": short})
    with pytest.raises(PolicyError, match=r"^engine 0 of the cluster did not answer within engine.start_timeout = 3 s"):
        replica_of(cluster, program).start_engine()
    for actor in busy:
        ray.kill(actor)

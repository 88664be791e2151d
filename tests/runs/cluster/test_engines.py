"""Engines on a cluster of two nodes, with a made-up server: whatever becomes of them, they are asked again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import ray
import torch

from children import alive, wait_for
from small import small_config
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.hf.policy import load_model, load_tokenizer
from trailnotes.policies.vllm.engine import Replica
from trailnotes.policies.vllm.policy import write_weights
from trailnotes.runs.cluster.connection import connect_cluster
from trailnotes.runs.cluster.engines import place_engines
from trailnotes.types import Completion, Sampling

if TYPE_CHECKING:
    from nodes import TwoNodes
    from trailnotes.runs.cluster.cluster import Cluster

pytestmark = pytest.mark.ray
TESTS = Path(__file__).parents[2]
PROGRAM = """
import os, runpy, sys
os.environ["FAKE_ENGINE"] = {faults!r}
runpy.run_path({tests!r} + "/causal.py", run_name="__main__")
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
        yield cluster


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    """A file in this folder is a fault of every engine."""
    path = tmp_path / "faults"
    path.mkdir()
    return path


@pytest.fixture
def start(cluster: Cluster, faults: Path) -> Callable[..., Replica]:
    """Place an engine, and start it with weights of its own."""
    program = faults.with_name("program.py")
    program.write_text(PROGRAM.format(faults=str(faults), tests=str(TESTS)), encoding="utf-8")

    def start(cluster: Cluster = cluster) -> Replica:
        _, (connect,) = place_engines(cluster.config, program)
        decode = load_tokenizer(cluster.config.model).decode
        replica = Replica(connect, StopCondition(decode, ()), cluster.config.engine)
        replica.start()
        weights = {name: 1.1 * p for name, p in load_model(cluster.config.model)[0].state_dict().items()}
        replica.load(write_weights(weights, faults.with_name("weights"), 1, torch.float32, None), None)
        return replica

    return start


def ask(replica: Replica) -> Completion:
    return asyncio.run(replica.complete((3, 5), Sampling(max_tokens=TOKENS, seed=4)))


def ask_and_lose(replica: Replica, faults: Path, lose: Callable[[], object]) -> Completion:
    """What it answers where `lose` is called in the middle of a step."""
    result: list[Completion] = []
    (faults / "hang-once").touch()
    asking = threading.Thread(target=lambda: result.append(ask(replica)), daemon=True)
    asking.start()
    wait_for(lambda: not (faults / "hang-once").exists())
    lose()
    asking.join(600)  # an engine may be started anew three times
    assert result, "the lost engine was not replaced"
    return result[0]


def find_engine(faults: Path) -> int:
    """The process of the engine that has this folder of faults."""
    program = str(faults.with_name("program.py")).encode()
    result = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            result += [int(path.parent.name)] * (program in path.read_bytes())
    (pid,) = result
    return pid


def kill(pid: int) -> Callable[[], None]:
    return lambda: os.kill(pid, signal.SIGKILL)


def test_killed_engine_restarts_with_its_weights(
    start: Callable[[], Replica], faults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ray.util.get_node_ip_address()
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.254")  # the run is on another machine
    with closing(start()) as replica:
        assert replica.client is not None
        assert replica.client.server.url.startswith(f"http://{here}:")
        before = ask(replica)
        assert len(before.token_ids) == TOKENS
        assert ask_and_lose(replica, faults, kill(find_engine(faults))) == before
        engine = find_engine(faults)
        actor = int(Path(f"/proc/{engine}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        assert ask_and_lose(replica, faults, kill(actor)) == before
        wait_for(lambda: not alive(engine))  # it ends with its actor
        assert replica.num_rebuilds == 2

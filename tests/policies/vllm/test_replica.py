"""One engine and its clients, with no server behind them: what may happen between threads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from trailnotes.config.model_schema import EngineConfig
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.vllm import replica as replicas
from trailnotes.policies.vllm.client import EngineLostError
from trailnotes.policies.vllm.replica import ProbeRecord, Replica
from trailnotes.policies.vllm.weights import WeightFiles

ROW = ((1, 2), 1)


class Client:
    """A client of an engine whose log-probability of every token is minus the version of its weights."""

    made: list[Client]
    opened: threading.Event
    reached: threading.Event

    def __init__(self, *_: Any) -> None:
        self.failure, self.weights, self.loads = "", None, 0
        self.made.append(self)

    def wait_until_ready(self) -> None:
        """It is."""

    def close(self) -> None:
        """Nothing is behind it."""

    def load(self, weights: WeightFiles) -> None:
        """Take over weights when it may."""
        self.reached.set()
        assert self.opened.wait(60)
        self.weights, self.loads = weights, self.loads + 1

    def score(self, rows: Any, _temperature: float) -> list[list[float]]:
        if self.failure:
            raise EngineLostError(self.failure)
        return [[-float(self.weights.version if self.weights else 0)] for _ in rows]


@pytest.fixture
def client_class(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    Client.made, Client.opened, Client.reached = [], threading.Event(), threading.Event()
    Client.opened.set()
    monkeypatch.setattr(replicas, "EngineClient", Client)
    return Client


def make_replica() -> Replica:
    """Old weights are within its tolerance."""
    replica = Replica(lambda: None, StopCondition(lambda ids: "", frozenset()), EngineConfig(max_logprob_mismatch=2.0))
    replica.start_engine()
    return replica


def weights_of(version: int) -> WeightFiles:
    return WeightFiles(Path(str(version)), version, is_adapters=False)


def record_of(version: int) -> ProbeRecord:
    return ProbeRecord([ROW], [[-float(version)]], 1.0)


def test_weights_that_come_while_another_thread_starts_the_engine_anew_arrive(client_class: type[Client]) -> None:
    replica, made = make_replica(), client_class.made
    assert replica.load(weights_of(1), record_of(1)) == 0.0
    assert replica.load(weights_of(2), record_of(2)) == 0.0
    made[0].failure = "engine 0 is gone"
    client_class.opened.clear()
    client_class.reached.clear()
    rebuilding = threading.Thread(target=replica.score, args=([ROW], 1.0))
    rebuilding.start()
    assert client_class.reached.wait(60)  # the second engine loads version 2
    found: list[float] = []
    loading = threading.Thread(target=lambda: found.append(replica.load(weights_of(3), record_of(3))))
    loading.start()
    client_class.opened.set()
    rebuilding.join()
    loading.join()
    assert made[1].weights is not None
    assert (found, made[1].weights.version, made[1].loads) == ([0.0], 3, 2)
    assert replica.num_rebuilds == 1


def test_weights_are_loaded_once_into_an_engine_that_is_started_for_them(client_class: type[Client]) -> None:
    replica, made = make_replica(), client_class.made
    made[0].failure = "engine 0 is gone"
    replica.load(weights_of(1), record_of(1))
    assert (made[1].weights, made[1].loads) == (weights_of(1), 1)

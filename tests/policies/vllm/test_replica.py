"""One engine and its link, with nobody behind them: what may happen between threads, and by the clock."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from children import wait_for
from trailnotes.policies.hf.engine import StopCondition
from trailnotes.policies.vllm import link as linking
from trailnotes.policies.vllm.link import EngineConnection, EngineLostError
from trailnotes.policies.vllm.replica import ProbeRecord, Replica, WeightFile
from trailnotes.policies.vllm.worker import wire

ROW = ((1, 2), 1)


class Engine:
    """A link to an engine whose log-probability of every token is minus the version of its weights."""

    is_local, label, about = True, "engine 0", {}
    failure = ""
    version: int | None = None

    def __init__(self, opened: threading.Event, reached: threading.Event) -> None:
        self._opened, self._reached = opened, reached
        self.loads = 0

    def wait_until_ready(self) -> None:
        """It is."""

    def close(self) -> None:
        """Nothing is behind it."""

    def call(self, name: str, argument: Any, _payload: Path | None = None) -> Any:
        """Take over weights when it may, or score."""
        if name == "load":
            self._reached.set()
            assert self._opened.wait(60)
            self.version, self.loads = argument["version"], self.loads + 1
            return None
        return [[-float(self.version or 0)] for _ in argument["rows"]]


def record_of(version: int) -> ProbeRecord:
    return ProbeRecord([ROW], [[-float(version)]], 1.0)


def test_weights_that_come_while_another_thread_builds_the_engine_anew_arrive() -> None:
    opened, reached = threading.Event(), threading.Event()
    opened.set()
    made: list[Any] = []

    def connect(_again: bool) -> Any:
        made.append(Engine(opened, reached))
        return made[-1]

    replica = Replica(connect, StopCondition(lambda ids: "", frozenset()), tolerance=2.0)  # old weights are within it
    replica.start_engine()
    assert replica.load(WeightFile(Path("1"), 1, None), record_of(1)) == 0.0
    assert replica.load(WeightFile(Path("2"), 2, None), record_of(2)) == 0.0
    made[0].failure = "engine 0 is gone"
    opened.clear()
    reached.clear()
    rebuilding = threading.Thread(target=replica.score, args=([ROW], 1.0))
    rebuilding.start()
    assert reached.wait(60)  # the second engine is being sent version 2
    found: list[float] = []
    loading = threading.Thread(target=lambda: found.append(replica.load(WeightFile(Path("3"), 3, None), record_of(3))))
    loading.start()
    opened.set()
    rebuilding.join()
    loading.join()
    assert (found, made[1].version, made[1].loads) == ([0.0], 3, 2)
    assert replica.num_rebuilds == 1


def test_weights_are_sent_once_to_an_engine_that_is_built_for_them() -> None:
    opened = threading.Event()
    opened.set()
    made: list[Any] = []

    def connect(_again: bool) -> Any:
        made.append(Engine(opened, threading.Event()))
        return made[-1]

    replica = Replica(connect, StopCondition(lambda ids: "", frozenset()), tolerance=0.1)
    replica.start_engine()
    made[0].failure = "engine 0 is gone"
    replica.load(WeightFile(Path("1"), 1, None), record_of(1))
    assert (made[1].version, made[1].loads) == (1, 1)


def test_an_engine_that_only_says_that_it_lives_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock alone: nothing is judged for want of something to read."""
    now = [100.0]
    monkeypatch.setattr(linking, "TICK", 3600.0)
    monkeypatch.setattr(linking, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ours, theirs = socket.socketpair()
    link = EngineConnection(ours, "engine 0", start_timeout=60, timeout=5, buried=lambda why: why)
    with theirs:
        theirs.sendall(wire.encode_frame(["ready", {}]))
        link.wait_until_ready()
        failure: list[str] = []

        def ask() -> None:
            try:
                link.call("score", {})
            except EngineLostError as error:
                failure.append(str(error))

        asking = threading.Thread(target=ask)
        asking.start()
        assert b'"score"' in theirs.recv(1000)
        now[0] += 6
        theirs.sendall(wire.encode_frame(["alive", 1, True]))  # a step further
        wait_for(lambda: link._steps == 1)
        assert not link.failure
        now[0] += 6
        theirs.sendall(wire.encode_frame(["alive", 1, True]))
        asking.join()
    assert failure == ["engine 0 hangs: no token for engine.timeout = 5 s"]

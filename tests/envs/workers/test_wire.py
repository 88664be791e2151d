"""Frames and messages between a pool and its workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.envs.workers import main as worker
from trailnotes.errors import ConfigError, EnvError, MissingExtraError
from trailnotes.storage.files import trajectory_to_json
from trailnotes.types import Observation, Task, Trajectory

texts = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates too
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
infos = st.dictionaries(texts, scalars | st.lists(scalars, max_size=3), max_size=3)


@dataclass(frozen=True)
class Larger(Observation):
    more: int = 0  # stays with the environment


class Garbage:
    """Answers with whatever fields it is given."""

    fields: Mapping[str, Any] = MappingProxyType({})

    def step(self, action: str) -> Observation:
        return Larger(**self.fields)

    def close(self) -> None: ...


anything = st.recursive(
    scalars | st.floats() | st.binary() | st.builds(object) | st.builds(np.float32) | st.just(np.arange(2)),
    lambda inner: st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(texts | st.integers(), inner),
    max_leaves=4,
)  # fmt: skip
good = {"reward": st.floats(-1e30, 1e30), "actions": st.lists(texts).map(tuple), "instruction": texts, "info": infos}
garbage = st.fixed_dictionaries({"text": texts}, optional=good) | st.fixed_dictionaries(
    {"text": anything | texts},
    optional={field.name: anything for field in fields(Observation) if field.name not in {"text", "request"}},
)


@given(garbage)
def test_any_observation_is_taken_or_refused_alike_with_and_without_a_worker(values: dict[str, Any]) -> None:
    Garbage.fields = values
    local, remote = worker.Slots("test_wire:Garbage", {}), worker.EnvServer()
    local.run("open", 0)
    for request in (["start", "test_wire:Garbage", {}], ["open", 0, None]):
        remote.answer(request)
    [(status, *answer)] = worker.decode_frames(bytearray(remote.answer(["step", 0, ""])))
    if status == "error":
        with pytest.raises(EnvError) as caught:
            local.run("step", 0, "")
        assert str(caught.value) == answer[1]
        return
    taken = local.run("step", 0, "")
    assert taken == worker.unpack_observation(answer[0])
    json.dumps(trajectory_to_json(Trajectory(Task("t", "x"), (), taken, "truncated", False, 0.0)), allow_nan=False)


@given(texts.filter(bool), st.integers(), infos)
def test_tasks_survive(name: str, seed: int, options: dict[str, Any]) -> None:
    task = Task(name, "env", seed, "test", MappingProxyType(options))
    [values] = worker.decode_frames(bytearray(worker.encode(task)))
    assert Task(*values) == Task(name, "env", seed, "test", options)


@given(st.lists(st.none() | texts.map(lambda text: [text])), st.lists(st.integers(1, 7), min_size=1))
def test_frames_may_arrive_in_any_pieces(messages: list[Any], sizes: list[int]) -> None:
    stream = b"".join(worker.HEARTBEAT if message is None else worker.encode(message) for message in messages)
    buffer, got, turn = bytearray(), [], 0
    while stream:
        size = sizes[turn % len(sizes)]
        buffer += stream[:size]
        got += worker.decode_frames(buffer)
        stream, turn = stream[size:], turn + 1
    assert got == [message for message in messages if message is not None]


@pytest.mark.parametrize("kind", [EnvError, ConfigError, MissingExtraError])
def test_errors_keep_their_kind(kind: type[Exception]) -> None:
    error = worker.unpack_error(kind.__name__, "é\nhere")
    assert (type(error), str(error)) == (kind, "é\nhere")
    assert type(worker.unpack_error("PolicyError", "x")) is EnvError

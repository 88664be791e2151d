"""Counting similar states, by angles whose cosines one can look up."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from trailnotes.memory import StateCounter
from trailnotes.memory.embed import HashingEmbedder


class Compass:
    """Two dimensions: the text is an angle in degrees."""

    name, dim = "compass", 2

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        angles = np.radians([float(text) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_new_states_are_remembered_and_similar_ones_counted() -> None:
    counter = StateCounter(Compass(), threshold=0.5)  # 60 degrees and closer are the same state
    assert counter.count("task", "0") == 1
    assert counter.count("task", "60") == 1  # like 0, so not remembered
    assert counter.count("task", "100") == 1  # new: 100 from 0, and 60 was not remembered
    assert counter.count("task", "50") == 2  # like both
    assert counter.count("task", "200") == 1
    assert counter.count("task", "150") == 2
    assert counter.count("other", "50") == 1, "namespaces never mix"


def test_a_threshold_above_all_similarities_makes_every_state_new() -> None:
    counter = StateCounter(HashingEmbedder(), threshold=1.0)
    assert [counter.count("task", f"room {number}") for number in range(3)] == [1, 1, 1]
    assert counter.state_dict()["sizes"] == [3]
    counter.count("task", "room 1")
    assert counter.state_dict()["sizes"] == [3], "an identical state is never new"


def test_state_survives_arrays_and_json() -> None:
    counter = StateCounter(Compass(), threshold=0.5)
    for namespace, angle in [("a", "0"), ("b", "10"), ("a", "100")]:
        counter.count(namespace, angle)
    state = counter.state_dict()
    vectors = state.pop("vectors")
    assert vectors.shape == (3, 2)
    assert vectors.dtype == np.float32
    restored = StateCounter(Compass(), threshold=0.5)
    restored.count("c", "77")
    restored.load_state_dict({**json.loads(json.dumps(state)), "vectors": vectors})
    assert restored.count("a", "50") == 2
    assert restored.count("b", "50") == 1
    assert restored.state_dict()["namespaces"] == ["a", "b"], "what was there before is gone"


def test_an_empty_state() -> None:
    counter = StateCounter(Compass())
    counter.load_state_dict(StateCounter(Compass()).state_dict())
    assert counter.state_dict()["vectors"].shape == (0, 2)
    assert counter.count("a", "0") == 1


def test_a_state_of_another_embedder_is_refused() -> None:
    counter = StateCounter(Compass())
    counter.count("a", "0")
    with pytest.raises(ValueError, match=r"compass \(1, 2\) do not fit hashing"):
        StateCounter(HashingEmbedder()).load_state_dict(counter.state_dict())
    with pytest.raises(ValueError, match="do not fit"):
        counter.load_state_dict({**counter.state_dict(), "sizes": [2]})

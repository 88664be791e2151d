"""Novelty embeds the states of a batch together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tiny import group, step, trajectory
from trailnotes.config.schema import Config
from trailnotes.memory.retrieval import HashingEmbedder
from trailnotes.runs.exploration import make_novelty
from trailnotes.types import Observation, Trajectory


class Recording(HashingEmbedder):
    """Notes each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.calls.append(list(texts))
        return super().embed(texts)


def episode(*texts: str) -> Trajectory:
    return trajectory([replace(step([1], [2]), observation=Observation(text)) for text in texts])


@pytest.mark.parametrize("kind", ["states", "rnd"])
def test_all_states_of_a_batch_are_embedded_in_one_call(kind: str) -> None:
    recording = Recording()
    config = Config(algorithm={"intrinsic": kind})  # type: ignore[arg-type]
    novelty = make_novelty(config, 0, lambda: recording)
    groups = [group(episode("hall", "attic", "hall"), episode("attic", "cellar")), group(episode("roof"))]
    rated = novelty.rate(groups)
    assert [{text.strip() for text in call} for call in recording.calls] == [{"hall", "attic", "cellar", "roof"}]
    assert rated == make_novelty(config, 0, HashingEmbedder).rate(groups)
    assert novelty.rate([]) == []

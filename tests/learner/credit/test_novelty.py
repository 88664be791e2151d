"""The four ways to rate a state, on numbers that one can look up or work out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from embeddings import Compass
from tiny import step, trajectory
from trailnotes.config.schema import Config
from trailnotes.learner.credit.rnd import RandomNetworkDistillation
from trailnotes.learner.credit.steps import Novelty, StateCounter, VisitCounter
from trailnotes.memory.retrieval import HashingEmbedder
from trailnotes.runs.training import make_novelty
from trailnotes.types import Observation, Task, Trajectory, TrajectoryGroup

KINDS = ("none", "tips", "states", "counts", "rnd")


def episode(*texts: str, task: str = "task") -> Trajectory:
    """One step in each of these states."""
    steps = [replace(step([1], [2]), observation=Observation(text)) for text in texts]
    return replace(trajectory(steps), task=Task(task, "numbers"))


def group(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(trajectories[0].task, trajectories)


def novelty(kind: str, make_embedder: Any = HashingEmbedder) -> Novelty:
    return make_novelty(Config(algorithm={"intrinsic": kind, "mode_unit": "iteration"}), 3, make_embedder)


def bonuses(groups: Sequence[TrajectoryGroup]) -> list[list[float]]:
    return [[step.reward_intrinsic for step in t.steps] for group in groups for t in group.trajectories]


# --- states


def test_visits_of_similar_states_by_hand() -> None:
    counter = StateCounter(Compass(), threshold=0.5)  # 60 degrees and closer are the same state
    assert counter.rate([episode("0")]) == [[1.0]]
    assert counter.rate([episode("60")]) == [[1 / 2]], "like 0, so a visit of it, and not remembered"
    assert counter.rate([episode("100")]) == [[1.0]], "new: 100 from 0, and 60 was not remembered"
    assert counter.rate([episode("45")]) == [[1 / 4]], "like both, so 3 visits there and 1 here: it is nearer to 0"
    assert counter.rate([episode("100")]) == [[1 / 2]]
    assert counter.rate([episode("200", "200")]) == [[1 / 2, 1 / 2]], "the batch is counted before it is rated"
    assert counter.rate([episode("45", task="other")]) == [[1.0]], "namespaces never mix"


# --- counts


def test_visits_by_hand() -> None:
    """The hall is visited 3 times in the first batch, and once more in the second."""
    counter = VisitCounter()
    assert counter.rate([episode("hall", "hall", "attic"), episode("hall")]) == [[1 / 3, 1 / 3, 1.0], [1 / 3]]
    assert counter.rate([episode("hall", "cellar")]) == [[0.25, 1.0]]
    assert counter.rate([episode("hall", task="other")]) == [[1.0]], "namespaces never mix"


@pytest.mark.parametrize("counter", [VisitCounter, lambda: StateCounter(HashingEmbedder())])
@given(rows=st.lists(st.lists(st.sampled_from("abc"), max_size=4), min_size=1, max_size=5), rng=st.randoms())
def test_novelty_does_not_depend_on_the_order(counter: Any, rows: list[list[str]], rng: Any) -> None:
    order = rng.sample(range(len(rows)), len(rows))
    first, second = counter(), counter()
    straight = first.rate([episode(*row) for row in rows])
    assert second.rate([episode(*rows[i]) for i in order]) == [straight[i] for i in order]


# --- Random Network Distillation


@torch.no_grad()
def by_hand(distillation: RandomNetworkDistillation, angle: float) -> float:
    """Mean squared error, with the layers written out; the instruction is empty, and sqrt(dim) = sqrt(2)."""
    radians = math.radians(angle)
    state = math.sqrt(2) * torch.tensor([math.cos(radians), math.sin(radians)])
    outputs = []
    for network in (distillation.target, distillation.predictor):
        value = state
        *hidden, last = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
        for layer in hidden:
            value = (layer.weight @ value + layer.bias).clamp(min=0)
        outputs.append(last.weight @ value + last.bias)
    return float(((outputs[1] - outputs[0]) ** 2).mean())


def test_the_bonus_is_the_error_over_the_deviation_of_all_errors_so_far() -> None:
    distillation = RandomNetworkDistillation(Compass(), 0)
    batches: list[list[float]] = [[0, 90, 180], [90, 270]]
    so_far: list[float] = []
    for angles in batches:
        errors = [by_hand(distillation, angle) for angle in angles]  # before the predictor learns from them
        so_far += errors
        (rated,) = distillation.rate([episode(*map(str, angles))])
        assert rated == pytest.approx([error / np.std(so_far) for error in errors], rel=1e-4)


def test_what_is_seen_often_becomes_old_and_what_is_not_stays_new() -> None:
    distillation = RandomNetworkDistillation(HashingEmbedder(), 0)
    hall = [distillation.rate([episode(*["the great hall"] * 8)])[0][0] for _ in range(60)]
    assert all(later < earlier for earlier, later in pairwise(hall[::10]))
    new, old = distillation.rate([episode("a rusty key in the attic", "the great hall")])[0]
    assert new > 20 * old


# --- the service


@pytest.mark.parametrize("kind", ["states", "rnd"])
def test_all_states_of_a_batch_are_embedded_in_one_call(kind: str) -> None:
    embedder, calls = HashingEmbedder(), list[set[str]]()
    embed = embedder.embed
    embedder.embed = lambda texts: calls.append({text.strip() for text in texts}) or embed(texts)  # type: ignore[func-returns-value, method-assign]
    service = novelty(kind, lambda: embedder)
    groups = [group(episode("hall", "attic", "hall"), episode("attic", "cellar")), group(episode("roof"))]
    assert service.rate(groups) == novelty(kind).rate(groups)
    assert calls == [{"hall", "attic", "cellar", "roof"}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_service_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    batches = [[group(episode(*words.split(), task=task))] for words in ("a b a", "c a", "d b b") for task in "xy"]
    whole, half, restored = novelty(kind), novelty(kind), novelty(kind)
    expected = [bonuses(whole.rate(batch)) for batch in batches]
    for batch in batches[:3]:
        half.rate(batch)
    arrays, rest = half.state_dict()
    save_file(dict(arrays), tmp_path / "arrays")
    restored.rate(batches[5])  # forgotten by loading
    restored.load_state_dict(load_file(tmp_path / "arrays"), json.loads(json.dumps(rest)))
    assert [bonuses(restored.rate(batch)) for batch in batches[3:]] == expected[3:]
    for name, array in whole.state_dict()[0].items():
        np.testing.assert_array_equal(restored.state_dict()[0][name], array)
    assert restored.state_dict()[1] == whole.state_dict()[1]

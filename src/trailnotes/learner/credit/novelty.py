"""Novelty of states: the intrinsic reward of every step, for the observation acted on, s_t.

State of estimators is arrays and JSON values, so that checkpoints hold it without pickle.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import Embedder
from trailnotes.memory.index import ExactIndex
from trailnotes.memory.retrieval import Floats
from trailnotes.storage.checkpoint import Arrays, ComponentState
from trailnotes.types import Trajectory, TrajectoryGroup


class Estimator:
    """An estimator of how new a state is; this one has no state of its own."""

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """Rate each step of each trajectory; afterwards these states count as seen."""
        raise NotImplementedError

    def state_dict(self) -> ComponentState:
        """Return all state that the next bonus depends on."""
        return {}, {}

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        """Load a state; raises ValueError or RuntimeError where it does not fit."""


class Novelty:
    """The novelty service of a run: an estimator, by the name that `algorithm.intrinsic` gives it."""

    def __init__(self, kind: str, estimator: Estimator | None) -> None:
        self.kind = kind
        self._estimator = estimator

    def rate(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """Fill in `reward_intrinsic` of every step, before the coefficient beta."""
        if self._estimator is None:
            return list(groups)
        bonuses = iter(self._estimator.rate([t for group in groups for t in group.trajectories]))

        def add(trajectory: Trajectory) -> Trajectory:
            pairs = zip(trajectory.steps, next(bonuses), strict=True)
            return replace(trajectory, steps=tuple(replace(step, reward_intrinsic=bonus) for step, bonus in pairs))

        return [replace(group, trajectories=tuple(map(add, group.trajectories))) for group in groups]

    def state_dict(self) -> ComponentState:
        arrays, rest = self._estimator.state_dict() if self._estimator else ({}, {})
        return arrays, {"kind": self.kind, **rest}

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        """Load a state; bonuses continue bit for bit. Another kind's state is ignored, and counting starts afresh."""
        if self._estimator is not None and rest.get("kind", "states") == self.kind:
            self._estimator.load_state_dict(arrays, rest)


class RetrievalNovelty(Estimator):
    """1 / (1 + tips shown), in modes with tips only (EMPO2, release 0b40cb72).

    Tips that `memory.leave_room` held back do not count; the release counts and shows all that were retrieved.
    """

    def __init__(self, memory: MemoryConfig) -> None:
        self.memory = memory

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        rated = []
        for trajectory in trajectories:
            shown = [len(step.tips) for step in trajectory.steps]
            if not self.memory.repeat_shown:
                shown = [min(num, self.memory.top_k) for num in itertools.accumulate(shown)]
            rated.append([0.0 if trajectory.mode == "plain" else 1.0 / (1 + num) for num in shown])
        return rated


class StateCounter(Estimator):
    """1/n, n = visits of similar states of the task, the whole batch included (EMPO2, section 4.3).

    A state similar to none is new and remembered; any other counts as a visit of the most similar one. The batch is
    counted before it is rated, so equal episodes earn the same. `threshold` is the cosine similarity of equal states.
    """

    def __init__(self, embedder: Embedder, threshold: float = 0.9) -> None:
        self.embedder = embedder
        self.threshold = threshold
        self._states: dict[str, Floats] = {}  # (n, dim)
        self._visits: dict[str, list[int]] = {}  # n of them

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        texts = list(dict.fromkeys(step.observation.text for t in trajectories for step in t.steps))
        vectors = dict(zip(texts, self.embedder.embed(texts), strict=True))
        for trajectory in trajectories:
            for step in trajectory.steps:
                vector = vectors[step.observation.text]
                states = self._states.get(trajectory.task.id, np.empty((0, self.embedder.dim), np.float32))
                visits = self._visits.setdefault(trajectory.task.id, [])
                similar, similarities = ExactIndex(states).find_within(vector, self.threshold)
                if len(similar):
                    visits[similar[similarities.argmax()]] += 1
                else:
                    self._states[trajectory.task.id] = np.vstack([states, vector])
                    visits.append(1)
        return [[1.0 / self._count(t.task.id, vectors[s.observation.text]) for s in t.steps] for t in trajectories]

    def _count(self, namespace: str, vector: Floats) -> int:
        similar, _ = ExactIndex(self._states[namespace]).find_within(vector, self.threshold)
        return sum(self._visits[namespace][row] for row in similar)

    def state_dict(self) -> ComponentState:
        """Return "vectors" float32 (sum of sizes, dim), "visits" int64 (sum of sizes,), and their owners."""
        arrays = {
            "vectors": np.concatenate([np.empty((0, self.embedder.dim), np.float32), *self._states.values()]),
            "visits": np.array([num for visits in self._visits.values() for num in visits], np.int64),
        }
        sizes = [len(states) for states in self._states.values()]
        return arrays, {"embedder": self.embedder.name, "namespaces": list(self._states), "sizes": sizes}

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        """Load a state; without "visits", as saved once, each state counts as met once."""
        vectors = np.asarray(arrays["vectors"], np.float32)
        sizes = [int(size) for size in rest["sizes"]]
        if rest["embedder"] != self.embedder.name or vectors.shape != (sum(sizes), self.embedder.dim):
            raise ValueError(
                f"novelty counts of {rest['embedder']} {vectors.shape} do not fit {self.embedder.name} "
                f"({sum(sizes)}, {self.embedder.dim}): keep memory.embedder as it was"
            )
        visits = split_array(np.asarray(arrays.get("visits", np.ones(len(vectors), np.int64))), sizes)
        self._states = dict(zip(rest["namespaces"], split_array(vectors, sizes), strict=True))
        self._visits = {name: each.tolist() for name, each in zip(rest["namespaces"], visits, strict=True)}


def split_array(array: npt.NDArray[Any], sizes: Sequence[int]) -> list[npt.NDArray[Any]]:
    if len(array) != sum(sizes):
        raise ValueError(f"{len(array)} states do not fit the sizes {list(sizes)}")
    return np.split(array, np.cumsum(sizes)[:-1]) if sizes else []

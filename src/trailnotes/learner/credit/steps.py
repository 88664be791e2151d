"""Credit of single steps: advantages among visits of one state, and the novelty of the states that were acted on.

Advantages compare visits of a state in a group (GiGPO, arXiv 2505.10978), or by level of history (HGPO, ICLR 2026),
with what verl-agent's code (2716b30) settles. Novelty is the intrinsic reward of every step, for s_t. State of
estimators is arrays and JSON values, so that checkpoints hold it without pickle.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trailnotes.config.schema import MemoryConfig
from trailnotes.learner.credit.episodes import Array, Scores, discounted_return, group_relative
from trailnotes.memory import Embedder
from trailnotes.memory.retrieval import DECIMALS, Floats
from trailnotes.storage.checkpoint import Arrays, ComponentState
from trailnotes.types import Trajectory, TrajectoryGroup, hash_state


@dataclass(frozen=True, slots=True)
class Visits:
    """The steps of one group as M samples in any order. One listed twice counts once in every statistic."""

    trajectory: NDArray[np.int64]  # (M,) index of its episode
    step: NDArray[np.int64]  # (M,) t, from 0
    states: tuple[Hashable, ...]  # (M,) equal for visits of the same state
    episode_scores: Array  # (M,) x = R(trajectory) - penalty
    step_scores: Array  # (M,) y = sum_{k >= t} gamma^(k - t) r_k - penalty


def collect_visits(scores: Scores, gamma: float) -> Visits:
    """Collect the steps of all episodes in order; penalties are subtracted after discounting.

    `gamma` discounts the return from a step on.
    """
    known: dict[Hashable, int] = {}  # equal states have one number
    lengths = [len(row) for row in scores.rewards]
    returns = [discounted_return(row, gamma) for row in scores.rewards]
    penalties = np.concatenate([np.zeros(0), *scores.penalties])
    return Visits(
        trajectory=np.repeat(np.arange(len(lengths)), lengths),
        step=np.array([t for length in lengths for t in range(length)], dtype=np.int64),
        states=tuple(known.setdefault(state, len(known)) for row in scores.states for state in row),
        episode_scores=np.repeat(scores.returns, lengths) - penalties,
        step_scores=np.concatenate([np.zeros(0), *returns]) - penalties,
    )


def step_relative(visits: Visits, states: Sequence[Hashable], normalize_std: bool = False, *, ddof: int = 1) -> Array:
    """Compute A^S (M,): each visit's score relative to visits of the same state (GiGPO, arXiv 2505.10978).

    `states` (M,) are groups of visits, `visits.states` or longer histories; None belongs to none. Exact zeros where
    fewer than two visits count.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, state in enumerate(states):
        if state is not None:
            members[state].append(index)
    advantages = np.zeros(len(visits.step))
    for indices in members.values():
        # Each visit once, ordered so that sums are always the same.
        once = {(visits.trajectory[i], visits.step[i]): i for i in reversed(indices)}
        counted = [once[place] for place in sorted(once)]
        if len(counted) > 1:
            values, group = visits.step_scores[indices], visits.step_scores[counted]
            advantages[indices] = group_relative(values, normalize_std, group=group, ddof=ddof)
    return advantages


def weigh_levels(levels: Mapping[int, Array]) -> Array:
    """Compute A = sum_k w_k A_k (M,), with w_k ~ k + 1 over the levels k that are not 0 (HGPO); 0 where all are."""
    weights = {k: (k + 1.0) * (values != 0) for k, values in levels.items()}
    total = sum(weights.values(), np.zeros(1))
    nothing = np.zeros_like(total)
    return sum((weights[k] / np.where(total == 0, 1.0, total) * values for k, values in levels.items()), nothing)


def build_histories(visits: Visits, length: int) -> list[Hashable]:
    """Build the last `length` states of each visit (M,), oldest first; None where there were fewer."""
    seen = dict(zip(zip(visits.trajectory.tolist(), visits.step.tolist(), strict=True), visits.states, strict=True))
    return [
        tuple(seen[trajectory, t - back] for back in reversed(range(length))) if t + 1 >= length else None
        for trajectory, t in zip(visits.trajectory.tolist(), visits.step.tolist(), strict=True)
    ]


class Estimator:
    """An estimator of how new a state is; this one has no state of its own."""

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """Rate each step of each trajectory; afterwards these states count as seen."""
        raise NotImplementedError

    def state_dict(self) -> ComponentState:
        return {}, {}

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        """Load a state; raises ValueError or RuntimeError where it does not fit."""


class Novelty:
    """The novelty service of a run: an estimator, by the name that `algorithm.intrinsic` gives it."""

    def __init__(self, kind: str, estimator: Estimator | None) -> None:
        self.kind, self._estimator = kind, estimator

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
        if self._estimator is not None and rest["kind"] == self.kind:
            self._estimator.load_state_dict(arrays, rest)


class RetrievalNovelty(Estimator):
    """1 / (1 + tips in the prompt), in modes with tips only (EMPO2, release 0b40cb72).

    Tips that `memory.leave_room` kept out do not count; the release counts and shows all that were retrieved.
    """

    def __init__(self, memory: MemoryConfig) -> None:
        self.memory = memory

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        rated = []
        for trajectory in trajectories:
            counts = [len(step.tips) for step in trajectory.steps]
            if not self.memory.repeat_shown:
                counts = [min(num, self.memory.top_k) for num in itertools.accumulate(counts)]
            rated.append([0.0 if trajectory.mode == "plain" else 1.0 / (1 + num) for num in counts])
        return rated


class StateCounter(Estimator):
    """1/n, n = visits of similar states of the task, the whole batch included (EMPO2, section 4.3).

    A state similar to none is new and remembered; any other counts as a visit of the most similar one. The batch is
    counted before it is rated, so equal episodes earn the same. `threshold` is the cosine similarity of equal states.
    """

    def __init__(self, embedder: Embedder, threshold: float = 0.9) -> None:
        self.embedder, self.threshold = embedder, threshold
        self._states: dict[str, Floats] = {}  # (n, dim)
        self._visits: dict[str, list[int]] = {}  # n of them

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        by_task: dict[str, list[str]] = {}
        for trajectory in trajectories:
            by_task.setdefault(trajectory.task.id, []).extend(step.observation.text for step in trajectory.steps)
        texts = list(dict.fromkeys(itertools.chain(*by_task.values())))
        vectors = dict(zip(texts, self.embedder.embed(texts), strict=True))
        counts = {task: self._visit(task, visited, vectors) for task, visited in by_task.items()}
        return [[1.0 / counts[t.task.id][step.observation.text] for step in t.steps] for t in trajectories]

    def _visit(self, task: str, visited: Sequence[str], vectors: Mapping[str, Floats]) -> dict[str, int]:
        """Count the visits of a task's states, one for each of `visited`; return those of states like each text."""
        known = self._states.get(task, np.empty((0, self.embedder.dim), np.float32))
        rows = {text: row for row, text in enumerate(dict.fromkeys(visited))}
        new = np.array([vectors[text] for text in rows], np.float32).reshape(-1, self.embedder.dim)
        candidates = np.concatenate([known, new])
        similarities = np.round(new @ candidates.T, DECIMALS)  # (texts, candidates)
        similarities[similarities < np.float32(self.threshold)] = -np.inf
        states, visits = list(range(len(known))), self._visits.setdefault(task, [])  # rows of the candidates
        for text in visited:
            own = similarities[rows[text], states]
            if own.max(initial=-np.inf) > -np.inf:
                visits[int(own.argmax())] += 1
            else:
                states.append(len(known) + rows[text])
                visits.append(1)
        self._states[task] = candidates[states]
        sums = (similarities[:, states] > -np.inf) @ np.array(visits, np.int64)
        return {text: int(sums[row]) for text, row in rows.items()}

    def state_dict(self) -> ComponentState:
        """Return "vectors" float32 (sum of sizes, dim), "visits" int64 (sum of sizes,), and their owners."""
        arrays = {
            "vectors": np.concatenate([np.empty((0, self.embedder.dim), np.float32), *self._states.values()]),
            "visits": np.array([num for visits in self._visits.values() for num in visits], np.int64),
        }
        sizes = [len(states) for states in self._states.values()]
        return arrays, {"embedder": self.embedder.name, "namespaces": list(self._states), "sizes": sizes}

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        vectors = np.asarray(arrays["vectors"], np.float32)
        sizes = [int(size) for size in rest["sizes"]]
        if rest["embedder"] != self.embedder.name or vectors.shape != (sum(sizes), self.embedder.dim):
            raise ValueError(
                f"novelty counts of {rest['embedder']} {vectors.shape} do not fit {self.embedder.name} "
                f"({sum(sizes)}, {self.embedder.dim}): keep memory.embedder as it was"
            )
        visits = split_array(np.asarray(arrays["visits"]), sizes)
        self._states = dict(zip(rest["namespaces"], split_array(vectors, sizes), strict=True))
        self._visits = {name: each.tolist() for name, each in zip(rest["namespaces"], visits, strict=True)}


class VisitCounter(Estimator):
    """1/n, n = visits of this very state of the task, the whole batch included, so equal episodes earn the same."""

    def __init__(self) -> None:
        self._visits: Counter[tuple[str, int]] = Counter()  # by task and state

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        rows = [[(t.task.id, hash_state(step.observation.text)) for step in t.steps] for t in trajectories]
        self._visits.update(itertools.chain.from_iterable(rows))
        return [[1.0 / self._visits[state] for state in row] for row in rows]

    def state_dict(self) -> ComponentState:
        visits = sorted(self._visits.items())
        sizes = Counter(task for (task, _), _ in visits)
        arrays = {
            "states": np.array([state for (_, state), _ in visits], np.uint64),
            "visits": np.array([num for _, num in visits], np.int64),
        }
        return arrays, {"namespaces": [*sizes], "sizes": [*sizes.values()]}

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        tasks = [task for task, size in zip(rest["namespaces"], rest["sizes"], strict=True) for _ in range(size)]
        states = zip(tasks, arrays["states"].tolist(), strict=True)
        self._visits = Counter(dict(zip(states, arrays["visits"].tolist(), strict=True)))


def split_array(array: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    if len(array) != sum(sizes):
        raise ValueError(f"{len(array)} states do not fit the sizes {list(sizes)}")
    return np.split(array, np.cumsum(sizes)[:-1]) if sizes else []

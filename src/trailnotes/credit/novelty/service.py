"""The service: a batch of groups goes in, the same groups come out with `reward_intrinsic` of every step filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from trailnotes.config.schema import AlgorithmConfig, MemoryConfig
from trailnotes.credit.novelty.counting import Arrays, RetrievedTips, State, StateCounter, VisitCounter
from trailnotes.credit.novelty.distillation import RandomNetworkDistillation
from trailnotes.memory import make_embedder
from trailnotes.types import Trajectory, TrajectoryGroup


class Estimator(Protocol):
    """One way to tell how new a state is."""

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """A bonus for each step of each trajectory; afterwards these states have been seen."""
        ...

    def state_dict(self) -> State:
        """All that the next bonus depends on."""
        ...

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave. Raises ValueError or RuntimeError where it does not fit."""
        ...


class Novelty:
    """The service that `algorithm.intrinsic` names.

    Args:
        algorithm: `intrinsic`, `novelty_threshold`.
        memory: `embedder` for "states" and "rnd"; `top_k` and `repeat_shown` for "tips".
        seed: of the networks of "rnd".
    """

    def __init__(self, algorithm: AlgorithmConfig, memory: MemoryConfig, seed: int) -> None:
        self.kind = algorithm.intrinsic
        self._estimator: Estimator | None = None
        if self.kind == "tips":
            self._estimator = RetrievedTips(memory)
        elif self.kind == "states":
            self._estimator = StateCounter(make_embedder(memory.embedder), algorithm.novelty_threshold)
        elif self.kind == "counts":
            self._estimator = VisitCounter()
        elif self.kind == "rnd":
            self._estimator = RandomNetworkDistillation(make_embedder(memory.embedder), seed)

    def rate(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """The groups with `reward_intrinsic` of every step filled in, before the coefficient beta."""
        if self._estimator is None:
            return list(groups)
        bonuses = iter(self._estimator.rate([t for group in groups for t in group.trajectories]))
        return [replace(g, trajectories=tuple(_with_bonuses(t, next(bonuses)) for t in g.trajectories)) for g in groups]

    def state_dict(self) -> State:
        """Arrays for a safetensors file, and JSON values."""
        arrays, rest = self._estimator.state_dict() if self._estimator else ({}, {})
        return arrays, {"kind": self.kind, **rest}

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; bonuses go on bit for bit.

        The state of another kind is left alone: whoever lets `algorithm.intrinsic` change begins anew.

        Raises:
            ValueError: it belongs to another embedder, or its parts do not fit each other.
        """
        if self._estimator is not None and rest.get("kind", "states") == self.kind:
            self._estimator.load_state_dict(arrays, rest)


def _with_bonuses(trajectory: Trajectory, bonuses: Sequence[float]) -> Trajectory:
    pairs = zip(trajectory.steps, bonuses, strict=True)
    return replace(trajectory, steps=tuple(replace(step, reward_intrinsic=bonus) for step, bonus in pairs))

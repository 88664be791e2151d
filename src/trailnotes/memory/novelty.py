"""Counts of similar states: the estimator "states" of the novelty reward (EMPO2, section 3 of its method)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trailnotes.memory.embed import Embedder
from trailnotes.memory.index import ExactIndex, Floats


class StateCounter:
    """Remembers one vector for each new state of a namespace.

    Args:
        embedder: turns a state's text into a unit vector.
        threshold: cosine similarity from which two states count as the same.
    """

    def __init__(self, embedder: Embedder, threshold: float = 0.9) -> None:
        self.embedder = embedder
        self.threshold = threshold
        self._states: dict[str, Floats] = {}  # (n, dim)

    def count(self, namespace: str, text: str) -> int:
        """Number n of remembered states that are similar to this one; the reward is 1/n.

        A state that is similar to none is new: it is remembered, and n = 1. A state that is similar to some is not
        remembered. So meeting a state again gives 1 as well, and n grows only where remembered states overlap.
        """
        vector = self.embedder.embed([text])[0]
        states = self._states.get(namespace, np.empty((0, self.embedder.dim), np.float32))
        similar, _ = ExactIndex(states).within(vector, self.threshold)
        if len(similar):
            return len(similar)
        self._states[namespace] = np.vstack([states, vector])
        return 1

    def state_dict(self) -> dict[str, Any]:
        """Everything as JSON values, and one float32 array "vectors" (sum of sizes, dim): no pickle needed."""
        vectors = list(self._states.values()) or [np.empty((0, self.embedder.dim), np.float32)]
        return {
            "embedder": self.embedder.name,
            "threshold": self.threshold,
            "namespaces": list(self._states),
            "sizes": [len(states) for states in self._states.values()],
            "vectors": np.concatenate(vectors),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave.

        Raises:
            ValueError: it belongs to another embedder, or its parts do not fit each other.
        """
        vectors = np.asarray(state["vectors"], np.float32)
        sizes = [int(size) for size in state["sizes"]]
        if state["embedder"] != self.embedder.name or vectors.shape != (sum(sizes), self.embedder.dim):
            raise ValueError(
                f"novelty counts of {state['embedder']} {vectors.shape} do not fit {self.embedder.name} "
                f"({sum(sizes)}, {self.embedder.dim}): keep memory.embedder as it was"
            )
        parts = np.split(vectors, np.cumsum(sizes)[:-1]) if sizes else []
        self._states = dict(zip(state["namespaces"], parts, strict=True))

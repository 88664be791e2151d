"""The interface of what updates the model of a run: this process, several, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trailnotes.types import Sample


class ModelLearner(Protocol):
    """A model in training. `Learner` documents the methods; its siblings differ in where they compute."""

    @property
    def steps(self) -> int: ...

    def logprobs(self, samples: Sequence[Sample], *, initial: bool = False) -> list[tuple[float, ...]]: ...

    def update(self, samples: Sequence[Sample], seed: int = 0, lr_scale: float = 1.0) -> dict[str, float]: ...

    def weights(self) -> Any:
        """Return the trained weights, as the policy that acts with them takes them in `TrainedPolicy.load`."""

    def export(self, path: Path, tokenizer: Any = None) -> None: ...

    def save(self, path: Path) -> None: ...

    def load(self, path: Path) -> None:
        """Restore what `save` wrote. Raises `ValueError` for the state of another model."""

    def close(self) -> None: ...

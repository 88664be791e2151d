"""Novelty by Random Network Distillation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from trailnotes.memory import Embedder
from trailnotes.storage.checkpoint import Arrays, ComponentState
from trailnotes.types import Trajectory

WIDTHS = (64, 32)  # hidden layers, and the random features that are predicted
LEARNING_RATE = 1e-3
MINIBATCH = 64  # states
MIN_SCALE = 0.1  # of the mean error


class RandomNetworkDistillation:
    """Error of a trained network that predicts a fixed random one (Burda et al., arXiv 1810.12894).

    Both read the embedder's vector of the instruction and the observation. The bonus is the mean squared error over the
    running deviation of all errors, this batch's included (section 2.4 divides by that of the returns), and at least a
    tenth of the mean error. After rating, the predictor takes one pass over the batch.
    """

    def __init__(self, embedder: Embedder, seed: int) -> None:
        self.embedder, self.seed = embedder, seed
        generator = torch.Generator().manual_seed(seed)
        hidden, features = WIDTHS
        self.target = _make_mlp((embedder.dim, hidden, features), generator).requires_grad_(False)
        self.predictor = _make_mlp((embedder.dim, hidden, hidden, features), generator)
        self._optimizer = torch.optim.Adam(self.predictor.parameters(), lr=LEARNING_RATE)
        self._num_batches = 0
        self._num_errors, self._mean, self._squares = 0, 0.0, 0.0  # squares: sum of squared distances from the mean

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        """Rate each step as `Estimator.rate` does."""
        goals = [t.steps[0].observation.instruction or "" if t.steps else "" for t in trajectories]
        pairs = zip(goals, trajectories, strict=True)  # with the goal one predictor serves all tasks
        rows = [[f"{goal}\n{step.observation.text}" for step in t.steps] for goal, t in pairs]
        texts = [text for row in rows for text in row]
        if not texts:
            return [[] for _ in rows]
        distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        vectors = torch.from_numpy(self.embedder.embed(list(distinct)) * math.sqrt(self.embedder.dim))
        with torch.no_grad():
            errors = self._compute_errors(vectors).double().numpy()
        which = [distinct[text] for text in texts]
        self._update_statistics(errors[which])
        scale = max(math.sqrt(self._squares / self._num_errors), MIN_SCALE * self._mean) or 1.0
        self._train(vectors[which])
        bonuses = iter((errors[which] / scale).tolist())
        return [list(itertools.islice(bonuses, len(row))) for row in rows]

    def _compute_errors(self, vectors: Tensor) -> Tensor:  # (n, dim) -> (n,)
        difference: Tensor = self.predictor(vectors) - self.target(vectors)
        return difference.square().mean(-1)

    def _update_statistics(self, errors: npt.NDArray[np.float64]) -> None:
        """Merge the batch's moments into the running ones (Chan et al. 1979)."""
        num, mean = len(errors), float(errors.mean())
        total, shift = self._num_errors + num, mean - self._mean
        self._squares += float(((errors - mean) ** 2).sum()) + shift**2 * self._num_errors * num / total
        self._mean += shift * num / total
        self._num_errors = total

    def _train(self, vectors: Tensor) -> None:
        generator = torch.Generator().manual_seed((self.seed + self._num_batches) % 2**63)
        self._num_batches += 1
        for chosen in torch.randperm(len(vectors), generator=generator).split(MINIBATCH):  # type: ignore[no-untyped-call]
            self._optimizer.zero_grad()
            self._compute_errors(vectors[chosen]).mean().backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()

    def state_dict(self) -> ComponentState:
        """Return weights of both networks and Adam's moments, float32, and the running statistics."""
        moments = self._optimizer.state_dict()["state"]
        tensors = {
            **{f"target.{name}": value for name, value in self.target.state_dict().items()},
            **{f"predictor.{name}": value for name, value in self.predictor.state_dict().items()},
            **{f"optimizer.{i}.{name}": value for i, kept in moments.items() for name, value in kept.items()},
        }
        return {name: value.numpy().copy() for name, value in tensors.items()}, {
            "embedder": self.embedder.name,
            "num_batches": self._num_batches,
            "errors": [self._num_errors, self._mean, self._squares],
        }

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        """Load a state as `Estimator.load_state_dict` does."""
        if rest["embedder"] != self.embedder.name:
            raise ValueError(f"novelty of {rest['embedder']} does not fit {self.embedder.name}: keep memory.embedder")
        parts: dict[str, dict[str, Tensor]] = {"target": {}, "predictor": {}, "optimizer": {}}
        for name, value in arrays.items():
            part, _, own = name.partition(".")
            parts[part][own] = torch.from_numpy(np.array(value))
        self.target.load_state_dict(parts["target"])
        self.predictor.load_state_dict(parts["predictor"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            index, _, own = name.partition(".")
            moments.setdefault(int(index), {})[own] = tensor
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self._num_batches = int(rest["num_batches"])
        self._num_errors, self._mean, self._squares = rest["errors"]


def _make_mlp(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Make linear layers with ReLU, orthogonal as in the paper's code, without the global generator."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
        nn.init.orthogonal_(linear.weight, math.sqrt(2), generator)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])

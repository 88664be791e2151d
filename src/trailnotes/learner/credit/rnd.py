"""Random Network Distillation, a novelty reward: `algorithm.intrinsic = "rnd"`."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trailnotes.learner.credit.steps import Estimator
from trailnotes.memory import Embedder
from trailnotes.storage.checkpoint import Arrays, ComponentState
from trailnotes.types import Trajectory

WIDTHS = (64, 32)  # of the networks: hidden layers, and the random features that are predicted
LEARNING_RATE = 1e-3
MINIBATCH = 64  # states
MIN_SCALE = 0.1  # of the mean error


class RandomNetworkDistillation(Estimator):
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
        self._networks = nn.ModuleDict({"target": self.target, "predictor": self.predictor})
        self._optimizer = torch.optim.Adam(self.predictor.parameters(), lr=LEARNING_RATE)
        self._num_batches = 0
        self._num_errors, self._mean, self._squares = 0, 0.0, 0.0  # squares: sum of squared distances from the mean

    def rate(self, trajectories: Sequence[Trajectory]) -> list[list[float]]:
        pairs = [(t.steps[0].observation, step.observation) for t in trajectories for step in t.steps]
        texts = [f"{first.instruction or ''}\n{seen.text}" for first, seen in pairs]  # one predictor serves all goals
        if not texts:
            return [[] for _ in trajectories]
        distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        vectors = torch.from_numpy(self.embedder.embed(list(distinct)) * math.sqrt(self.embedder.dim))
        which = [distinct[text] for text in texts]
        with torch.no_grad():
            errors = self._compute_errors(vectors).double().numpy()[which]
        num, mean = len(errors), float(errors.mean())  # merged into the running moments (Chan et al. 1979)
        total, shift = self._num_errors + num, mean - self._mean
        self._squares += float(((errors - mean) ** 2).sum()) + shift**2 * self._num_errors * num / total
        self._mean += shift * num / total
        self._num_errors = total
        scale = max(math.sqrt(self._squares / total), MIN_SCALE * self._mean) or 1.0
        self._train(vectors[which])
        bonuses = iter((errors / scale).tolist())
        return [list(itertools.islice(bonuses, len(t.steps))) for t in trajectories]

    def _compute_errors(self, vectors: Tensor) -> Tensor:  # (n, dim) -> (n,)
        difference: Tensor = self.predictor(vectors) - self.target(vectors)
        return difference.square().mean(-1)

    def _train(self, vectors: Tensor) -> None:
        generator = torch.Generator().manual_seed((self.seed + self._num_batches) % 2**63)
        self._num_batches += 1
        for chosen in torch.randperm(len(vectors), generator=generator).split(MINIBATCH):  # type: ignore[no-untyped-call]
            self._optimizer.zero_grad()
            self._compute_errors(vectors[chosen]).mean().backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()

    def state_dict(self) -> ComponentState:
        tensors = dict(self._networks.state_dict())
        for index, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        errors = [self._num_errors, self._mean, self._squares]
        rest = {"embedder": self.embedder.name, "num_batches": self._num_batches, "errors": errors}
        return {name: value.numpy().copy() for name, value in tensors.items()}, rest

    def load_state_dict(self, arrays: Arrays, rest: Mapping[str, Any]) -> None:
        if rest["embedder"] != self.embedder.name:
            raise ValueError(f"novelty of {rest['embedder']} does not fit {self.embedder.name}: keep memory.embedder")
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        self._networks.load_state_dict({name: tensors.pop(name) for name in self._networks.state_dict()})
        moments: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():  # optimizer.PARAMETER.MOMENT
            _, index, own = name.split(".")
            moments[int(index)][own] = tensor
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": moments})
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

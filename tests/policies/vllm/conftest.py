"""Policies whose engines are real processes with a made-up server, and the learner of their weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from puppet import forward
from trailnotes.config.schema import Config
from trailnotes.policies.vllm import VLLMPolicy, make_vllm_policy
from trailnotes.types import Completion


class Learner:
    """The model that learns, in this process."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def score(self, completions: Sequence[Completion], temperature: float = 1.0) -> list[list[float]]:
        return [forward(self.model, completion, temperature) for completion in completions]

    @torch.no_grad()
    def update(self, seed: int, among: str = "") -> dict[str, torch.Tensor]:
        """Change all weights whose names hold a word, far enough that old ones would be whole nats off."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.model.named_parameters():
            if among in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        return {name: tensor for name, tensor in self.model.state_dict().items() if among in name}


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory, tokenizer_of: Any, model_of: Any) -> Path:
    path = tmp_path_factory.mktemp("model")
    model_of().save_pretrained(path)
    tokenizer_of().save_pretrained(path)
    return path


@pytest.fixture
def config_of(model_path: Path) -> Callable[..., Config]:
    def make(
        model: dict[str, Any] | None = None, temperature: float = 1.0, timeout: float = 300.0, **engine: Any
    ) -> Config:
        config = Config(
            run={"deterministic": False},
            model={"path": str(model_path), "device": "cpu", **(model or {})},
            engine={"name": "vllm", "python": sys.executable, "start_timeout": 120.0, **engine},
            rollout={"max_context_tokens": 200, "temperature": temperature},
        )
        return config.model_copy(update={"engine": config.engine.model_copy(update={"timeout": timeout})})

    return make


@pytest.fixture
def policy_of(config_of: Callable[..., Config], engine_faults: Path) -> Iterator[Callable[..., VLLMPolicy]]:
    """Makes policies, and ends their engines after the test."""
    made: list[VLLMPolicy] = []

    def make(**options: Any) -> VLLMPolicy:
        made.append(make_vllm_policy(config_of(**options), trains=True))
        return made[-1]

    yield make
    for policy in made:
        policy.close()


@pytest.fixture
def learner(model_of: Any) -> Learner:
    return Learner(model_of())

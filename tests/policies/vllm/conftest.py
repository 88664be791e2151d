"""Policies whose engines are real processes with a made-up model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from trailnotes.config.schema import Config
from trailnotes.policies.vllm import VLLMPolicy, make_vllm_policy, server
from trailnotes.types import Completion

PROGRAM = Path(__file__).parents[2] / "markov.py"


class Learner:
    """The same made-up model on the other side."""

    def __init__(self, size: int) -> None:
        self.table = torch.zeros(size, size)

    def update(self, seed: int) -> dict[str, torch.Tensor]:
        self.table = torch.randn(self.table.shape, generator=torch.Generator().manual_seed(seed))
        return {"table": self.table}

    def score(self, completions: Sequence[Completion], temperature: float = 1.0) -> list[list[float]]:
        logprobs = torch.log_softmax(self.table / temperature, dim=-1)
        return [
            [
                float(logprobs[last, token])
                for last, token in zip((*c.prompt_ids[-1:], *c.token_ids), c.token_ids, strict=False)
            ]
            for c in completions
        ]


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory, tokenizer_of: Any, model_of: Any) -> Path:
    """A directory whose config and tokenizer are real; its weights are read by nobody."""
    path = tmp_path_factory.mktemp("model")
    model_of().save_pretrained(path)
    tokenizer_of().save_pretrained(path)
    return path


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in this folder is a fault of every engine, which are not vLLM's."""
    monkeypatch.setattr(server, "PROGRAM", PROGRAM)
    path = tmp_path / "faults"
    path.mkdir()
    monkeypatch.setenv("FAKE_ENGINE", str(path))
    return path


@pytest.fixture
def config_of(model_path: Path) -> Callable[..., Config]:
    def make(model: dict[str, Any] | None = None, temperature: float = 1.0, **engine: Any) -> Config:
        return Config(
            run={"deterministic": False},
            model={"path": str(model_path), "device": "cpu", **(model or {})},
            engine={"name": "vllm", "python": sys.executable, "start_timeout": 120.0, **engine},
            rollout={"max_context_tokens": 200, "temperature": temperature},
        )

    return make


@pytest.fixture
def policy_of(config_of: Callable[..., Config], faults: Path) -> Iterator[Callable[..., VLLMPolicy]]:
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
    return Learner(model_of().config.vocab_size)

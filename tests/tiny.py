"""Random models that fit on a thumbnail, and episodes made of numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.learner.learner import Learner
from trailnotes.types import (
    Completion,
    Mode,
    Observation,
    RowRole,
    Sample,
    Step,
    Task,
    TokenIds,
    Trajectory,
    TrajectoryGroup,
)

VOCABULARY = 48
TASK = Task("task", "numbers")


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32, tied: bool = True) -> Qwen2ForCausalLM:
    """A Qwen2 of some 20,000 random weights, large enough that distributions are not flat."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, tie_word_embeddings=tied,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).to(dtype).eval()


def draw_adapters(model: nn.Module, seed: int, std: float, matrices: str = "lora_") -> None:
    """Draw matrices of adapters, so that these change something."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if matrices in name:
                parameter.normal_(std=std)


def learner(
    model: nn.Module | None = None, *, reference: nn.Module | None = None, dump_dir: Path | None = None, **settings: Any
) -> Learner:
    """A learner of a tiny model; settings go to the section that knows them."""
    settings = {"lr": 1e-3, "grad_clip": 0.0, "minibatch": 0, "mask_logprob": None} | settings
    optim = OptimConfig(**{k: v for k, v in settings.items() if k in OptimConfig.model_fields})
    loss = LossConfig(**{k: v for k, v in settings.items() if k in LossConfig.model_fields})
    assert not set(settings) - set(OptimConfig.model_fields) - set(LossConfig.model_fields)
    return Learner(model or tiny_model(), optim, loss, reference=reference, dump_dir=dump_dir)


def gradients(learner: Learner) -> list[Tensor]:
    return [p.grad.clone() for p in learner.model.parameters() if p.grad is not None]


def step(prompt: Sequence[int], sampled: Sequence[int], plain: Sequence[int] | None = None) -> Step:
    """A step that acted on `prompt`; `plain` is its tip-free context, the same by default."""
    logprobs = tuple(-0.1 * (i + 1) for i in range(len(sampled)))
    completion = Completion(tuple(prompt), tuple(sampled), logprobs, "go")
    return Step(Observation("here"), (), completion, tuple(prompt if plain is None else plain), "go", 0.0)


def trajectory(steps: Sequence[Step], mode: Mode = "plain", member: int = 0) -> Trajectory:
    return Trajectory(TASK, tuple(steps), Observation("end"), "terminated", True, 1.0, mode=mode, member=member)


def group(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(TASK, tuple(trajectories))


def episode(
    rng: random.Random, turns: int, mode: Mode = "plain", tips: bool = True, fork: int | None = None
) -> Trajectory:
    """An episode of random tokens whose contexts grow at the end; at turn `fork` the history is rendered anew."""

    def some(low: int, high: int) -> TokenIds:
        return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high)))

    acting, plain, steps = (), (), []
    for turn in range(turns):
        if turn == fork:
            acting = plain = some(2, 4)
        tip = some(1, 3) if tips and mode != "plain" else ()
        observation, action = some(1, 4), some(1, 3)
        acting, plain = acting + tip + observation, plain + observation
        steps.append(step(acting, action, plain))
        acting, plain = acting + action, plain + action
    return trajectory(steps, mode)


def with_logprobs(samples: Sequence[Sample], seed: int, spread: float = 0.3) -> list[Sample]:
    """The same rows with behaviour near -3, so that ratios differ from 1."""
    rng = random.Random(seed)
    return [replace(s, behavior_logprobs=tuple(m * (-3 + rng.gauss(0, spread)) for m in s.loss_mask)) for s in samples]


def make_row(role: RowRole, seed: int, tokens: int, advantage: float = 0.0, **weights: float) -> Sample:
    """A row of another role: three tokens of context, then `tokens` that are trained."""
    rng = random.Random(seed)
    ids = tuple(rng.randrange(VOCABULARY) for _ in range(3 + tokens))
    behavior, advantages = ((0.0,) * 3 + (value,) * tokens for value in (-3.0, advantage))
    return Sample(ids, (0,) * 3 + (1,) * tokens, behavior, advantages, role=role, **weights)

"""The learner on a GPU: the same update as on the CPU, up to the arithmetic of either."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tiny import episode, group, tiny_model, with_logprobs
from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.learner.learner import Learner
from trailnotes.learner.samples import build_samples
from trailnotes.types import Sample

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def rows() -> list[Sample]:
    episodes = [episode(random.Random(i), 1 + i % 3, "off_policy" if i % 2 else "plain") for i in range(6)]
    return with_logprobs(build_samples([group(*episodes)], [[(-1.0) ** i for i in range(6)]]), 1)


def learner(device: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Learner:
    optim = OptimConfig(lr=1e-4, epochs=2, minibatch=3, microbatch_tokens=30, logprob_chunk=4)
    loss = LossConfig(kl=0.1, mask_logprob=-4.0)
    return Learner(tiny_model(seed, dtype).to(device), optim, loss, reference=tiny_model(1, dtype).to(device))


def test_the_update_is_the_cpus() -> None:
    cpu, gpu = learner("cpu"), learner("cuda")
    expected, found = cpu.update(rows(), seed=1), gpu.update(rows(), seed=1)
    for name in set(expected) - {"seconds", "seconds_reference"}:
        assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name
    for mine, theirs in zip(gpu.logprobs(rows()), cpu.logprobs(rows()), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)


def test_a_state_moves_between_devices(tmp_path: Path) -> None:
    gpu, cpu = learner("cuda"), learner("cpu")
    gpu.update(rows())
    gpu.save(tmp_path)
    cpu.load(tmp_path)
    for mine, theirs in zip(cpu.logprobs(rows()), gpu.logprobs(rows()), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


def test_bfloat16_goes_on_bit_for_bit(tmp_path: Path) -> None:
    alone, resumed = learner("cuda", torch.bfloat16), learner("cuda", torch.bfloat16, seed=7)
    alone.update(rows(), seed=1)
    alone.save(tmp_path)
    resumed.load(tmp_path)
    for subject in (alone, resumed):
        assert subject.update(rows(), seed=2)["grad_norm"] > 0
    mine, theirs = (subject._optimizer.state_dict() for subject in (resumed, alone))
    assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())

"""Sampling rows by hand-checkable distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.policies.hf.sampling import TokenSampler, draw_uniforms
from trailnotes.types import Sampling

PROBS = torch.tensor([[0.1, 0.4, 0.2, 0.3]])


def draw(probs: torch.Tensor, uniform: float, **options: float) -> tuple[int, float]:
    ((token,), (logprob,)) = sample_rows(probs.log(), [Sampling(**options)], uniform)
    return token, logprob


def sample_rows(logits: torch.Tensor, settings: list[Sampling], uniform: float) -> tuple[list[int], list[float]]:
    sample = TokenSampler([(each, np.array([uniform], dtype=np.float32)) for each in settings])
    sample(logits)
    tokens, logprobs = sample.read()
    return [token for (token,) in tokens], [logprob for (logprob,) in logprobs]


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.09, 0), (0.11, 1), (0.49, 1), (0.51, 2), (0.71, 3)])
def test_the_cumulative_distribution_is_inverted(uniform, token):
    assert draw(PROBS, uniform) == (token, pytest.approx(math.log(PROBS[0, token]), abs=1e-6))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, {1: 0.4 / 0.7, 3: 0.3 / 0.7}),
        ({"top_p": 0.5}, {1: 0.4 / 0.7, 3: 0.3 / 0.7}),
        ({"top_p": 0.39}, {1: 1.0}),
        ({"top_k": 3, "top_p": 0.8}, {1: 0.4 / 0.9, 3: 0.3 / 0.9, 2: 0.2 / 0.9}),  # .7/.9 < .8
        ({"top_k": 3, "top_p": 0.75}, {1: 0.4 / 0.7, 3: 0.3 / 0.7}),
        ({"top_k": 9}, dict(enumerate(PROBS[0].tolist()))),
    ],
)
def test_truncated_distributions_are_normalised(options, kept):
    drawn = {draw(PROBS, step / 64, **options)[0] for step in range(64)}
    assert drawn == kept.keys()
    for uniform in (0.0, 0.3, 0.6, 0.9999999):
        token, logprob = draw(PROBS, uniform, **options)
        assert logprob == pytest.approx(math.log(kept[token]), abs=1e-6)


def test_rows_keep_their_own_settings():
    settings = [Sampling(), Sampling(top_k=1), Sampling(temperature=0), Sampling(temperature=2.0, top_p=0.3)]
    logits = PROBS.log().expand(4, -1)
    tokens, logprobs = sample_rows(logits, settings, 0.05)
    assert tokens == [0, 1, 1, 1]
    assert logprobs == pytest.approx([math.log(0.1), 0.0, math.log(0.4), 0.0], abs=1e-6)


def test_a_row_with_fewer_numbers_than_others_draws_on():
    """Its completion ends before theirs; what it draws then is not read."""
    rows = [(Sampling(), np.array([0.0, 0.11, 0.51], dtype=np.float32)), (Sampling(), np.array([0.71], np.float32))]
    sample = TokenSampler(rows, 3)
    drawn = [sample(PROBS.log().expand(2, -1)).tolist() for _ in range(3)]
    tokens, logprobs = sample.read()
    assert tokens == [list(row) for row in zip(*drawn, strict=True)]
    assert tokens[0] == [0, 1, 2]
    assert tokens[1][0] == 3
    assert logprobs[0] == pytest.approx([math.log(p) for p in (0.1, 0.4, 0.2)], abs=1e-6)


@given(st.integers(0, 2**24 - 1), st.integers(0, 1000))
def test_an_impossible_token_is_never_drawn(step, seed):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(1, 50, generator=generator) * (torch.rand(1, 50, generator=generator) < 0.3)
    if not probs.sum():
        probs[0, 7] = 1.0
    token, logprob = draw(probs, step / 2**24)
    assert probs[0, token] > 0
    assert math.isfinite(logprob)


def test_uniforms_belong_to_the_seed_and_the_position():
    assert draw_uniforms(3, 4).tolist() == draw_uniforms(3, 9)[:4].tolist()
    assert draw_uniforms(3, 4).tolist() != draw_uniforms(4, 4).tolist()
    assert draw_uniforms(-1, 2).dtype == np.float32
    many = draw_uniforms(0, 20000)
    assert 0 <= many.min() <= many.max() < 1
    assert many.mean() == pytest.approx(0.5, abs=0.01)

"""The terms of the loss, each number worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trailnotes.config.schema import LossConfig
from trailnotes.learner import losses
from trailnotes.learner.logprobs import Batch


def row(*values: float) -> Tensor:
    return torch.tensor([values])


def batch(length: int, advantages: Tensor | None = None) -> Batch:
    zeros = torch.zeros(1, length)
    advantages = zeros if advantages is None else advantages
    return Batch(zeros.long(), zeros == 0, zeros, advantages, torch.tensor([False]))


def mask(*values: int) -> Tensor:
    return torch.tensor([values]).bool()


def test_ratio_by_hand_and_its_bounds() -> None:
    found = losses.ratio(row(math.log(0.6), -1.0, 0.0, -500.0), row(math.log(0.3), -1.0, -500.0, 0.0))
    torch.testing.assert_close(found, row(2.0, 1.0, math.exp(20), math.exp(-20)))


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual", "loss"),
    [
        (1.1, 2.0, 0, -2.2),  # inside
        (1.5, 2.0, 0, -2.6),  # clipped at 1.3
        (0.5, 2.0, 0, -1.0),  # below, but the minimum is the unclipped term
        (0.5, -2.0, 0, 1.6),  # clipped at 0.8: min(-1, -1.6) = -1.6
        (1.5, -2.0, 0, 3.0),  # above: min(-3, -2.6) = -3
        (50.0, -2.0, 0, 100.0),  # no bound
        (50.0, -2.0, 10, 20.0),  # bound by c = 10
        (9.0, -2.0, 10, 18.0),  # under the bound
        (50.0, 2.0, 10, -2.6),  # the dual clip leaves positive advantages alone
        (7.0, 0.0, 10, 0.0),
    ],
)
def test_surrogate_by_hand(ratio: float, advantage: float, dual: float, loss: float) -> None:
    found = losses.clipped_surrogate(row(ratio), row(advantage), 0.2, 0.3, dual)
    torch.testing.assert_close(found, row(loss))


def test_a_clipped_token_has_no_gradient_and_is_counted() -> None:
    ratios, advantages = row(1.5, 0.5, 50.0, 1.0, 1.5, 0.5), row(1.0, -1.0, -1.0, 1.0, -1.0, 1.0)
    logprobs = ratios.log().requires_grad_()
    losses.clipped_surrogate(losses.ratio(logprobs, torch.zeros(1, 6)), advantages, 0.2, 0.3, 10).sum().backward()
    found = losses.ppo(LossConfig(clip_low=0.2, clip_high=0.3, dual_clip=10.0), ratios.log(), batch(6, advantages))
    low, high, dual = found[2:]
    assert high.tolist() == [[True, False, False, False, False, False]]
    assert low.tolist() == [[False, True, False, False, False, False]]
    assert dual.tolist() == [[False, False, True, False, False, False]]
    assert logprobs.grad is not None
    assert (logprobs.grad == 0).tolist() == [[True, True, True, False, False, False]]


def test_an_enormous_ratio_gives_a_finite_gradient() -> None:
    for surrogate in (lambda rho, a: losses.clipped_surrogate(rho, a, 0.2, 0.3, 10), losses.shaped_surrogate):
        logprobs = row(0.0).requires_grad_()
        surrogate(losses.ratio(logprobs, row(-1e4)), row(-1.0)).sum().backward()
        assert logprobs.grad is not None
        assert torch.isfinite(logprobs.grad).all()


def test_k3_by_hand() -> None:
    # d = log 2: 2 - log 2 - 1; d = -log 2: 1/2 + log 2 - 1; d = 0: exactly 0
    found = losses.k3_kl(row(0.0, math.log(2), -3.0), row(math.log(2), 0.0, -3.0))
    torch.testing.assert_close(found, row(1 - math.log(2), math.log(2) - 0.5, 0.0))
    assert found[0, 2] == 0


def test_k3_is_unbiased() -> None:
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    expectation = (policy * losses.k3_kl(policy.log()[None], reference.log()[None])[0]).sum()
    torch.testing.assert_close(expectation, (policy * (policy / reference).log()).sum())


@given(st.floats(-50, 0), st.floats(-50, 0))
def test_k3_is_never_negative(policy: float, reference: float) -> None:
    assert losses.k3_kl(row(policy), row(reference)).item() >= 0


LOGPROBS = row(-9.0, -1.0, -6.0, -9.0, -2.0, -5.0, -7.0)
TRAINED = mask(0, 1, 1, 0, 1, 1, 0)


def find_kept(logprobs: Tensor, trained: Tensor, unit: Any, off_policy: bool = True) -> list[list[int]]:
    rows = replace(batch(trained.shape[1]), mask=trained, off_policy=torch.tensor([off_policy] * len(trained)))
    kept: list[list[int]] = (
        losses.find_kept(LossConfig(mask_logprob=-5.0, mask_unit=unit), logprobs, rows).int().tolist()
    )
    return kept


def test_low_probability_tokens_go_alone_or_with_their_response() -> None:
    assert find_kept(LOGPROBS, TRAINED, "token") == [[0, 1, 0, 0, 1, 1, 0]]  # -6 goes; exactly -5 stays
    assert find_kept(LOGPROBS, TRAINED, "response") == [[0, 0, 0, 0, 1, 1, 0]]  # -1 goes with it; the second stays
    assert find_kept(LOGPROBS, TRAINED, "token", off_policy=False) == TRAINED.int().tolist()


def test_responses_of_different_rows_are_apart() -> None:
    logprobs = torch.tensor([[0.0, 0.0, -9.0], [0.0, -1.0, -1.0]])
    trained = torch.tensor([[0, 1, 1], [0, 1, 1]]).bool()
    assert find_kept(logprobs, trained, "response") == [[0, 0, 0], [0, 1, 1]]


@given(st.lists(st.tuples(st.booleans(), st.floats(-10, 0)), min_size=1, max_size=12))
def test_response_mask_equals_token_mask_for_single_tokens(tokens: list[tuple[bool, float]]) -> None:
    apart = [pair for token in tokens for pair in ((False, 0.0), token)]
    trained, logprobs = mask(*(int(t) for t, _ in apart)), row(*(p for _, p in apart))
    by_token = find_kept(logprobs, trained, "token")
    assert by_token == find_kept(logprobs, trained, "response")
    assert not (torch.tensor(by_token).bool() & ~trained).any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -20 / 11),  # 1 / 1.1
        (0.1, 2.0, -1.0),  # half
        (0.9, -3.0, 2.7),  # 0.9 / 1.0, where the clip would start to matter soon
        (9.9, 2.0, -1.98),  # far above the clip: 9.9 / 10
        (99.9, -2.0, 1.998),  # far above the dual clip: no bound is needed below 1
        (0.0, 5.0, 0.0),
    ],
)
def test_shaped_surrogate_by_hand(ratio: float, advantage: float, loss: float) -> None:
    torch.testing.assert_close(losses.shaped_surrogate(row(ratio), row(advantage)), row(loss))


def test_shaping_raises_the_gradient_of_improbable_tokens() -> None:
    """d loss / d log pi = -A x f'(x) = -A 0.1 x / (x + 0.1)^2: at 0.1 a quarter, at 1 of 1.1^2 a tenth."""
    logprobs = row(math.log(0.1), 0.0, math.log(0.01)).requires_grad_()
    advantages = row(2.0, -1.0, 1.0)
    losses.shaped_surrogate(losses.ratio(logprobs, torch.zeros(1, 3)), advantages).sum().backward()
    torch.testing.assert_close(logprobs.grad, row(-2 * 0.25, 0.1 / 1.21, -0.001 / 0.0121))
    assert logprobs.grad is not None
    assert (logprobs.grad.abs() > losses.ratio(logprobs, torch.zeros(1, 3)) * advantages.abs()).tolist() == [
        [True, False, True]
    ]


def test_token_and_sequence_sums_by_hand() -> None:
    values = torch.tensor([[7.0, 1.0, 2.0, 3.0], [7.0, 8.0, 7.0, 7.0], [7.0, 7.0, 7.0, 7.0]])
    trained = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]]).bool()
    assert [t.item() for t in losses.masked_sum(values, trained, "token")] == [14, 4]
    assert [t.item() for t in losses.masked_sum(values, trained, "sequence")] == [10, 2]  # the empty row counts not


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_the_sum_of_nothing_is_zero(aggregation: str) -> None:
    found = losses.masked_sum(row(3.0, 4.0), mask(0, 0), aggregation)  # type: ignore[arg-type]
    assert [value.item() for value in found] == [0, 0]

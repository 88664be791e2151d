"""The terms of the loss by hand, and the objectives against verl's own functions and at a ratio of one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tiny import tiny_model
from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.learner import losses
from trailnotes.learner.learner import Learner
from trailnotes.learner.logprobs import Batch
from trailnotes.runs.staleness import Correction
from trailnotes.types import Sample

VERL = json.loads((Path(__file__).parents[1] / "data/verl_losses.json").read_text())


def row(*values: float) -> Tensor:
    return torch.tensor([values])


def row64(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def make_batch(old: Tensor, advantages: Tensor, mask: Tensor | None = None, off_policy: bool = False) -> Batch:
    trained = torch.ones_like(old, dtype=torch.bool) if mask is None else mask
    return Batch(torch.zeros_like(old).long(), trained, old, advantages, torch.tensor([off_policy] * len(old)))


def mask(*values: int) -> Tensor:
    return torch.tensor([values]).bool()


def test_ratio_by_hand_and_its_bounds() -> None:
    ratios = losses.ratio(row(math.log(0.6), -1.0, 0.0, -500.0), row(math.log(0.3), -1.0, -500.0, 0.0))
    torch.testing.assert_close(ratios, row(2.0, 1.0, math.exp(20), math.exp(-20)))


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
    torch.testing.assert_close(losses.clipped_surrogate(row(ratio), row(advantage), 0.2, 0.3, dual), row(loss))


def test_a_clipped_token_has_no_gradient_and_is_counted() -> None:
    ratios, advantages = row(1.5, 0.5, 50.0, 1.0, 1.5, 0.5), row(1.0, -1.0, -1.0, 1.0, -1.0, 1.0)
    logprobs = ratios.log().requires_grad_()
    losses.clipped_surrogate(losses.ratio(logprobs, torch.zeros(1, 6)), advantages, 0.2, 0.3, 10).sum().backward()
    config = LossConfig(clip_low=0.2, clip_high=0.3, dual_clip=10.0)
    low, high, dual = losses.ppo(config, ratios.log(), make_batch(torch.zeros(1, 6), advantages))[2:]
    assert high.tolist() == [[True, False, False, False, False, False]]
    assert low.tolist() == [[False, True, False, False, False, False]]
    assert dual.tolist() == [[False, False, True, False, False, False]]
    assert (logprobs.grad == 0).tolist() == [[True, True, True, False, False, False]]


def test_an_enormous_ratio_gives_a_finite_gradient() -> None:
    for surrogate in (lambda rho, a: losses.clipped_surrogate(rho, a, 0.2, 0.3, 10), losses.shaped_surrogate):
        logprobs = row(0.0).requires_grad_()
        surrogate(losses.ratio(logprobs, row(-1e4)), row(-1.0)).sum().backward()
        assert torch.isfinite(logprobs.grad).all()


def test_k3_by_hand() -> None:
    # d = log 2: 2 - log 2 - 1; d = -log 2: 1/2 + log 2 - 1; d = 0: exactly 0
    kl = losses.k3_kl(row(0.0, math.log(2), -3.0), row(math.log(2), 0.0, -3.0))
    torch.testing.assert_close(kl, row(1 - math.log(2), math.log(2) - 0.5, 0.0))
    assert kl[0, 2] == 0


@given(st.floats(-50, 0), st.floats(-50, 0))
def test_k3_is_never_negative(policy: float, reference: float) -> None:
    assert losses.k3_kl(row(policy), row(reference)).item() >= 0


LOGPROBS = row(-9.0, -1.0, -6.0, -9.0, -2.0, -5.0, -7.0)
TRAINED = mask(0, 1, 1, 0, 1, 1, 0)


def find_kept(logprobs: Tensor, trained: Tensor, unit: Any, off_policy: bool = True) -> list[list[int]]:
    rows = make_batch(torch.zeros(trained.shape), torch.zeros(trained.shape), trained, off_policy)
    kept: Tensor = losses.find_kept(LossConfig(mask_logprob=-5.0, mask_unit=unit), logprobs, rows)
    return kept.int().tolist()


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
    is_raised = logprobs.grad.abs() > losses.ratio(logprobs, torch.zeros(1, 3)) * advantages.abs()
    assert is_raised.tolist() == [[True, False, True]]


def test_token_and_sequence_sums_by_hand() -> None:
    values = torch.tensor([[7.0, 1.0, 2.0, 3.0], [7.0, 8.0, 7.0, 7.0], [7.0, 7.0, 7.0, 7.0]])
    trained = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]]).bool()
    assert [t.item() for t in losses.masked_sum(values, trained, "token")] == [14, 4]
    assert [t.item() for t in losses.masked_sum(values, trained, "sequence")] == [10, 2]  # the empty row counts not
    for aggregation in ("token", "sequence"):
        assert [t.item() for t in losses.masked_sum(row(3.0, 4.0), mask(0, 0), aggregation)] == [0, 0]


# -- objectives


def surrogate(loss: LossConfig, logprobs: Tensor, rows: Batch) -> Tensor:
    return losses.compute_surrogate(loss, logprobs, rows).loss


# --- verl


@pytest.mark.parametrize("objective", ["gspo", "gmpo", "cispo", "dppo"])
def test_loss_and_gradient_are_verls(objective: Any) -> None:
    """On the rows of `tests/data/verl_losses.py`, which called them."""
    old, now, advantages = (torch.tensor(VERL[name], dtype=torch.float64) for name in ("old", "now", "advantages"))
    mask = torch.tensor(VERL["mask"]).bool()
    logprobs = now.requires_grad_()
    loss = surrogate(LossConfig(objective=objective), logprobs, make_batch(old, advantages, mask))
    total, count = losses.masked_sum(loss, mask, "sequence" if objective in ("gspo", "gmpo") else "token")
    (total / count).backward()
    expected = VERL["objectives"][objective]
    assert (total / count).item() == pytest.approx(expected["loss"], abs=1e-6)
    gradient = torch.tensor(expected["gradient"], dtype=torch.float64)
    torch.testing.assert_close(logprobs.grad, gradient, atol=1e-6, rtol=0)


def test_the_mean_of_a_constant_length_is_verls() -> None:
    now, mask = torch.tensor(VERL["now"], dtype=torch.float64), torch.tensor(VERL["mask"]).bool()
    total, count = losses.masked_sum(now, mask, "constant", 20)
    assert (total / count).item() == pytest.approx(VERL["constant"])


@pytest.mark.parametrize("unit", ["token", "sequence"])
@pytest.mark.parametrize("above", ["truncate", "mask"])
def test_weights_of_an_engines_mismatch_are_verls(unit: Any, above: Any) -> None:
    """Its masks are those of its rejection, with a bound on one side."""
    correction = Correction(VERL["cap"], unit, above)
    expected = VERL["weights"][unit][above]
    assert any(weight == (0.0 if above == "mask" else VERL["cap"]) for weight in expected[1][:5]), "some are above it"
    for then, now, mask, weights in zip(VERL["old"], VERL["now"], VERL["mask"], expected, strict=True):
        own, _ = correction.compute_weights([b - a for a, b in zip(then, now, strict=True)][: sum(mask)])
        assert own == pytest.approx(weights[: sum(mask)], abs=1e-6)


# --- by hand


def test_gspo_by_hand() -> None:
    """Ratios 2 and 1/2 have the mean 1 for both tokens: nothing is clipped, and each has its own gradient."""
    logprobs = row64(math.log(0.8), math.log(0.2)).requires_grad_()
    rows = make_batch(row64(math.log(0.4), math.log(0.4)), row64(3.0, 3.0))
    result = losses.gspo(LossConfig(), logprobs, rows)
    torch.testing.assert_close(result.loss, row64(-3.0, -3.0))
    result.loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, row64(-3.0, -3.0))
    assert not (result.low | result.high | result.dual).any()


def test_gmpo_by_hand() -> None:
    """Log-ratios .5 and -.1 are .3 and -.1 after the clip of .3: exp(.1) for both."""
    logprobs, rows = row64(-0.5, -1.1), make_batch(row64(-1.0, -1.0), row64(2.0, 2.0))
    result = losses.gmpo(LossConfig(), logprobs, rows)
    torch.testing.assert_close(result.loss, torch.full((1, 2), -2 * math.exp(0.1), dtype=torch.float64))
    assert (result.low.any().item(), result.high.tolist()) == (False, [[True, False]])


@pytest.mark.parametrize(
    ("old", "now", "advantage", "kept"),
    [(0.1, 0.35, 1.0, True), (0.1, 0.45, 1.0, False), (0.1, 0.45, -1.0, True), (0.5, 0.25, -1.0, False),
     (0.5, 0.25, 1.0, True), (0.001, 0.01, 1.0, True)],
)  # fmt: skip
def test_dppo_by_hand(old: float, now: float, advantage: float, kept: bool) -> None:
    """What counts is how far a probability moves, not by which factor; weights are held at 10."""
    logprobs, rows = row64(math.log(now)), make_batch(row64(math.log(old)), row64(advantage))
    expected = -min(10.0, now / old) * advantage * math.log(now) if kept else 0.0
    torch.testing.assert_close(surrogate(LossConfig(objective="dppo"), logprobs, rows), row64(expected))


def test_improbable_rows_drop_negative_advantages() -> None:
    """Mean log(pi_old / pi) of .3 and .1 at a bound of .2; positive advantages stay."""
    logprobs = torch.tensor([[-1.5, -1.1], [-1.1, -1.1]])
    rows = make_batch(torch.full((2, 2), -1.0), torch.tensor([[-1.0, 1.0]] * 2))
    loss = LossConfig(max_negative_kl=0.2)
    assert losses.find_dropped(loss, logprobs, rows).tolist() == [[True, False], [False, False]]
    assert (surrogate(loss, logprobs, rows) == 0).tolist() == [[True, False], [False, False]]
    assert not losses.find_dropped(LossConfig(), logprobs, rows).any()


# --- reductions


@pytest.mark.parametrize("objective", losses.OBJECTIVES)
def test_at_a_ratio_of_one_the_gradient_is_reinforces(objective: Any) -> None:
    """Of each token's own advantage, and none of a token that EMPO2's mask drops."""
    old, advantages = row64(-1.0, -9.0, -0.3), row64(2.0, -1.0, 0.5)
    logprobs = old.clone().requires_grad_()
    loss = LossConfig(objective=objective, max_negative_kl=0.1, mask_logprob=-5.0)
    for off_policy, expected in ((False, -advantages), (True, -row64(2.0, 0.0, 0.5))):
        batch = make_batch(old, advantages, off_policy=off_policy)
        total = losses.EpisodeLoss.compute(loss, logprobs, batch, None).policy
        torch.testing.assert_close(torch.autograd.grad(total, logprobs)[0], expected)


def rows_of(num: int) -> list[Sample]:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(48, (num, 6), generator=generator).tolist()
    behavior = (0.0, 0.0, -3.0, -4.0, -3.5, -4.0)
    return [
        Sample(tuple(ids), (0, 0, 1, 1, 1, 1), behavior, (0, 0, *(4 * ((-1.0) ** i,))), trajectory=i)
        for i, ids in enumerate(drawn)
    ]


@pytest.mark.parametrize("settings", [{"objective": name} for name in losses.OBJECTIVES if name != "ppo"] + [
    {"max_negative_kl": 0.01}, {"aggregation": "constant", "constant_length": 20}])  # fmt: skip
def test_a_learner_takes_each_and_micro_batches_do_not_show(settings: dict[str, Any]) -> None:
    def updated(tokens: int, **loss: Any) -> tuple[dict[str, float], Tensor]:
        optim = OptimConfig(lr=1e-3, minibatch=4, epochs=2, microbatch_tokens=tokens)
        learner = Learner(tiny_model(), optim, LossConfig(mask_logprob=None, **loss))
        figures = learner.update(rows_of(8))
        return figures, torch.cat([p.detach().flatten() for p in learner.model.parameters()])

    (figures, whole), (_, cut), (_, ppo) = updated(8192, **settings), updated(12, **settings), updated(8192)
    torch.testing.assert_close(whole, cut, atol=1e-4, rtol=0)  # AdamW magnifies rounding of a gradient near 0
    assert not torch.equal(whole, ppo)
    assert figures["optimizer_steps"] == 4
    assert (figures["dropped_fraction"] > 0) == ("max_negative_kl" in settings)


@pytest.mark.parametrize("objective", ["ppo", "gspo", "gmpo", "cispo", "dppo"])
@pytest.mark.parametrize("now", [0.01, 0.99])
def test_no_objective_clips_a_token_of_advantage_zero(objective: Any, now: float) -> None:
    loss = LossConfig(objective=objective, dual_clip=1.5)
    logprobs = row64(math.log(now)).requires_grad_()
    result = losses.compute_surrogate(loss, logprobs, make_batch(row64(math.log(0.5)), row64(0.0)))
    assert not (result.low | result.high | result.dual).any()
    result.loss.sum().backward()
    assert logprobs.grad == 0

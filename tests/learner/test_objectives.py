"""The objectives beside PPO's: by hand, against verl's own functions, and what each comes to at a ratio of one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tiny import tiny_model
from trailnotes.config.schema import LossConfig, OptimConfig
from trailnotes.learner import losses
from trailnotes.learner.learner import Learner
from trailnotes.learner.logprobs import Batch
from trailnotes.runs.staleness import Correction
from trailnotes.types import Sample

VERL = json.loads((Path(__file__).parents[1] / "data/verl_losses.json").read_text())


def batch(old: Tensor, advantages: Tensor, mask: Tensor | None = None) -> Batch:
    everything = torch.ones_like(old, dtype=torch.bool) if mask is None else mask
    ids = torch.zeros_like(old, dtype=torch.int64)
    return Batch(ids, everything, old, advantages, torch.zeros(len(old), dtype=torch.bool))


def surrogate(loss: LossConfig, logprobs: Tensor, rows: Batch) -> Tensor:
    return losses.compute_surrogate(loss, logprobs, rows).loss


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


# --- verl


@pytest.mark.parametrize("objective", ["gspo", "gmpo", "cispo", "dppo"])
def test_loss_and_gradient_are_verls(objective: Any) -> None:
    """On the rows of `tests/data/verl_losses.py`, which called them."""
    old, now, advantages = (torch.tensor(VERL[name], dtype=torch.float64) for name in ("old", "now", "advantages"))
    mask = torch.tensor(VERL["mask"]).bool()
    logprobs = now.requires_grad_()
    rows = batch(old, advantages, mask)
    found = surrogate(LossConfig(objective=objective), logprobs, rows)
    total, count = losses.masked_sum(found, mask, "sequence" if objective in ("gspo", "gmpo") else "token")
    (total / count).backward()
    expected = VERL["objectives"][objective]
    assert (total / count).item() == pytest.approx(expected["loss"], abs=1e-6)
    torch.testing.assert_close(
        logprobs.grad, torch.tensor(expected["gradient"], dtype=torch.float64), atol=1e-6, rtol=0
    )


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
        found, _ = correction.compute_weights([b - a for a, b in zip(then, now, strict=True)][: sum(mask)])
        assert found == pytest.approx(weights[: sum(mask)], abs=1e-6)


# --- by hand


def test_gspo_by_hand() -> None:
    """Ratios 2 and 1/2 have the mean 1 for both tokens: nothing is clipped, and each has its own gradient."""
    logprobs = row(math.log(0.8), math.log(0.2)).requires_grad_()
    rows = batch(row(math.log(0.4), math.log(0.4)), row(3.0, 3.0))
    found = losses.gspo(LossConfig(), logprobs, rows)
    torch.testing.assert_close(found.loss, row(-3.0, -3.0))
    found.loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, row(-3.0, -3.0))
    assert not (found.low | found.high | found.dual).any()


def test_gmpo_by_hand() -> None:
    """Log-ratios .5 and -.1 are .3 and -.1 after the clip of .3: exp(.1) for both."""
    logprobs, rows = row(-0.5, -1.1), batch(row(-1.0, -1.0), row(2.0, 2.0))
    found = losses.gmpo(LossConfig(), logprobs, rows)
    torch.testing.assert_close(found.loss, torch.full((1, 2), -2 * math.exp(0.1), dtype=torch.float64))
    assert (found.low.any().item(), found.high.tolist()) == (False, [[True, False]])


def test_cispo_by_hand() -> None:
    """A ratio of 2 counts as 1.3, and has a gradient all the same."""
    logprobs = row(math.log(0.8)).requires_grad_()
    found = surrogate(LossConfig(objective="cispo"), logprobs, batch(row(math.log(0.4)), row(2.0)))
    torch.testing.assert_close(found, row(-2.6 * math.log(0.8)))
    found.sum().backward()
    torch.testing.assert_close(logprobs.grad, row(-2.6))


@pytest.mark.parametrize(
    ("old", "now", "advantage", "kept"),
    [(0.1, 0.35, 1.0, True), (0.1, 0.45, 1.0, False), (0.1, 0.45, -1.0, True), (0.5, 0.25, -1.0, False),
     (0.5, 0.25, 1.0, True), (0.001, 0.01, 1.0, True)],
)  # fmt: skip
def test_dppo_by_hand(old: float, now: float, advantage: float, kept: bool) -> None:
    """What counts is how far a probability moves, not by which factor; weights are held at 10."""
    logprobs, rows = row(math.log(now)), batch(row(math.log(old)), row(advantage))
    found = surrogate(LossConfig(objective="dppo"), logprobs, rows)
    expected = -min(10.0, now / old) * advantage * math.log(now) if kept else 0.0
    torch.testing.assert_close(found, row(expected))


def test_improbable_rows_drop_negative_advantages() -> None:
    """Mean log(pi_old / pi) of .3 and .1 at a bound of .2; positive advantages stay."""
    logprobs, rows = (
        torch.tensor([[-1.5, -1.1], [-1.1, -1.1]]),
        batch(torch.full((2, 2), -1.0), torch.tensor([[-1.0, 1.0]] * 2)),
    )
    loss = LossConfig(max_negative_kl=0.2)
    assert losses.find_dropped(loss, logprobs, rows).tolist() == [[True, False], [False, False]]
    assert (surrogate(loss, logprobs, rows) == 0).tolist() == [[True, False], [False, False]]
    assert not losses.find_dropped(LossConfig(), logprobs, rows).any()


# --- reductions


@pytest.mark.parametrize("objective", losses.OBJECTIVES)
def test_at_a_ratio_of_one_the_gradient_is_reinforces(objective: Any) -> None:
    old = row(-1.0, -2.0, -0.3)
    logprobs, advantages = old.clone().requires_grad_(), row(2.0, 2.0, 2.0)
    loss = LossConfig(objective=objective, max_negative_kl=0.1)
    surrogate(loss, logprobs, batch(old, advantages)).sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)


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
    torch.testing.assert_close(
        whole, cut, atol=1e-4, rtol=0
    )  # AdamW magnifies what rounding leaves of a gradient near 0
    assert not torch.equal(whole, ppo)
    assert figures["optimizer_steps"] == 4
    assert (figures["dropped_fraction"] > 0) == ("max_negative_kl" in settings)

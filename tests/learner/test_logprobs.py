"""Log-probabilities: the model's own, at trained positions, in chunks."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from tiny import episode, group, tiny_model
from trailnotes.learner.logprobs import Batch, TokenScorer
from trailnotes.learner.samples import build_samples

CPU = torch.device("cpu")


def some_batch() -> Batch:
    episodes = [episode(random.Random(i), 1 + i % 4) for i in range(6)]
    return Batch.from_samples(build_samples([group(*episodes)], [[1.0] * 6]), CPU)


def naive(model: nn.Module, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """The definition: all logits of each row alone, without padding."""
    logprobs, entropies = torch.zeros(batch.mask.shape), torch.zeros(batch.mask.shape)
    for i, (ids, mask) in enumerate(zip(batch.token_ids, batch.mask, strict=True)):
        length = int(mask.nonzero().max()) + 1
        table = torch.log_softmax(model(input_ids=ids[None, :length]).logits[0] / temperature, -1)
        for t in range(1, length):
            if mask[t]:
                logprobs[i, t] = table[t - 1, ids[t]]
                entropies[i, t] = -(table[t - 1].exp() * table[t - 1]).sum()
    return logprobs, entropies


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("chunk", [1, 7, 1024])
def test_scores_are_the_models_own(temperature: float, chunk: int) -> None:
    model, batch = tiny_model(), some_batch()
    found = TokenScorer(model, temperature, chunk)(batch.token_ids, batch.mask)
    for mine, theirs in zip(found, naive(model, batch, temperature), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 7])
def test_recomputation_leaves_the_gradient_alone(chunk: int) -> None:
    gradients = []
    for size in (chunk, 1024):
        model, batch = tiny_model(), some_batch()
        logprobs, entropies = TokenScorer(model, 0.7, size)(batch.token_ids, batch.mask)
        assert not entropies.requires_grad
        (logprobs * torch.linspace(-1, 1, logprobs.numel()).view_as(logprobs)).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_nothing_trained_gives_zeros_that_can_be_differentiated() -> None:
    model = tiny_model()
    logprobs, _ = TokenScorer(model)(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.bool))
    logprobs.sum().backward()
    assert logprobs.tolist() == [[0.0] * 3] * 2


def test_no_logits_of_all_tokens_exist() -> None:
    model, batch, shapes = tiny_model(), some_batch(), []
    score = TokenScorer(model, chunk=5)
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape)))
    score(batch.token_ids, batch.mask)[0].sum().backward()
    positions = int(batch.mask.sum())
    assert max(rows for rows, _ in shapes) <= 5
    assert sum(rows for rows, _ in shapes) == 2 * positions  # forward and again, at trained positions only

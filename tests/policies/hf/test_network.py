"""Whether the head alone gives the logits: one verdict, for the policy that samples and the learner that scores."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
import torch

from trailnotes.learner.logprobs import TokenScorer
from trailnotes.policies.hf.decoder import split_model
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.types import Completion, Message, Sampling


async def answer(policy: HFPolicy) -> Completion:
    policy.open_episode("e")
    try:
        return await policy.generate((Message("user", "A hall."),), Sampling(max_tokens=8, seed=3), "e")
    finally:
        policy.close_episode("e")


def scored(score: TokenScorer, completion: Completion) -> list[float]:
    ids = torch.tensor([[*completion.prompt_ids, *completion.token_ids]])
    mask = torch.arange(ids.shape[1])[None] >= len(completion.prompt_ids)
    with torch.no_grad():
        found: list[float] = score(ids, mask)[0][mask].tolist()
    return found


@pytest.mark.parametrize(("kind", "alone"), [("qwen2", True), ("gemma2", False)])  # Gemma 2 caps its logits at 30
def test_policy_and_learner_agree(kind: str, alone: bool, model_of: Any, tokenizer: Any) -> None:
    model = model_of(kind, initializer_range=0.02, tie_word_embeddings=False)  # logits far too small for the cap
    model.train()
    assert (split_model(model) is not None, model.training) == (alone, True), "the probe leaves the mode alone"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        policy, score = HFPolicy(model, tokenizer), TokenScorer(model)
    assert policy.engine.decoder.network.parts == score.parts
    assert (score.parts is not None) == alone
    for growth in (1.0, 500.0):
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(growth)
        policy.bump_version()
        completion = asyncio.run(answer(policy))
        assert list(completion.logprobs) == pytest.approx(scored(score, completion), abs=1e-4)

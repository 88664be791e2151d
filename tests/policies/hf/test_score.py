"""How likely a policy finds a reply, held against one plain forward pass; asking leaves no trace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from trailnotes.errors import PolicyError
from trailnotes.policies.hf import policy as hf
from trailnotes.policies.hf.policy import HFPolicy
from trailnotes.types import Completion, Message, Sampling

ASKED = (Message("user", "You are in a hall."), Message("assistant", "look"), Message("user", "It is dark here."))
REPLIES = ("go north", "take key", "go north and south and look at the key")


def score(policy: HFPolicy, messages: Sequence[Message], replies: Sequence[Any]) -> list[float]:
    return asyncio.run(policy.score(messages, replies))


def by_hand(policy: HFPolicy, prompt: tuple[int, ...], reply: tuple[int, ...]) -> float:
    with torch.no_grad():
        logits = policy.model(torch.tensor([prompt + reply]), use_cache=False).logits[0].float()
    logprobs = torch.log_softmax(logits, dim=-1)
    return sum(float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(reply)) / len(reply)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2", "gemma2", "mamba"])
def test_a_score_is_the_mean_log_probability_of_the_reply(kind: str, model_of: Any, tokenizer: Any) -> None:
    policy = HFPolicy(model_of(kind), tokenizer)
    end = tuple(tokenizer.encode("<|im_end|>"))
    prompt = policy.encode(ASKED)
    wanted = [by_hand(policy, prompt, tuple(tokenizer.encode(text)) + end) for text in REPLIES]
    assert score(policy, ASKED, REPLIES) == pytest.approx(wanted, abs=1e-4)


def test_replies_do_not_know_each_other_however_they_are_batched(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = HFPolicy(model, tokenizer)
    alone = [score(policy, ASKED, [text])[0] for text in REPLIES]
    assert score(policy, ASKED, REPLIES) == pytest.approx(alone, abs=1e-5)
    monkeypatch.setattr(hf, "MAX_TOKENS", 1)
    assert score(policy, ASKED, REPLIES) == alone
    assert score(policy, ASKED, []) == []


async def answer(policy: HFPolicy, *, between: bool) -> list[Completion]:
    """Two turns of an episode; with `between`, replies are scored before, between and after them."""
    policy.open_episode("e")
    messages, said = list(ASKED), []
    for turn in range(2):
        if between:
            await policy.score(messages, REPLIES)
        said.append(await policy.generate(messages, Sampling(max_tokens=6, seed=turn), "e"))
        messages += [Message("assistant", said[-1].text, said[-1].token_ids), Message("user", "And now?")]
    if between:
        await policy.score(messages, REPLIES)
    policy.close_episode("e")
    return said


def test_sampled_ids_score_what_the_sampler_said_and_no_cache_is_touched(model: Any, tokenizer: Any) -> None:
    said = asyncio.run(answer(HFPolicy(model, tokenizer), between=False))
    policy = HFPolicy(model, tokenizer)
    assert asyncio.run(answer(policy, between=True)) == said
    first = said[0]
    assert score(policy, ASKED, [first.token_ids])[0] == pytest.approx(
        sum(first.logprobs) / len(first.logprobs), abs=1e-4
    )


def test_what_cannot_be_scored_is_refused(model: Any, tokenizer: Any) -> None:
    policy = HFPolicy(model, tokenizer, max_context_tokens=32)
    with pytest.raises(ValueError, match="an empty reply"):
        score(policy, ASKED[:1], ["go", " "])
    with pytest.raises(PolicyError, match="exceed the context of 32"):
        score(policy, ASKED[:1], ["go " * 40])

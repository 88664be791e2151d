"""A fresh small model that copies: what its heads do before any training, and what stays random without them."""

from __future__ import annotations

from typing import Any

import torch

from trailnotes.config.schema import WarmstartConfig
from trailnotes.warmstart.small_model import build_model

VOCABULARY = 400


class Tokens:
    """What a model is built for of a tokenizer."""

    eos_token_id, pad_token_id = 1, 0

    def __len__(self) -> int:
        return VOCABULARY


def model(**settings: Any) -> Any:
    torch.manual_seed(0)
    return build_model(Tokens(), WarmstartConfig(**settings), 128).eval()


def gain(model: Any) -> float:
    """Nats by which a random sequence is better foretold when it comes again."""
    once = torch.randint(2, VOCABULARY, (16, 30), generator=torch.Generator().manual_seed(1))
    ids = torch.cat([once, once], dim=1)
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    return float(logprobs[:, 30:].mean() - logprobs[:, :29].mean())


def test_it_copies_what_it_has_never_been_taught() -> None:
    assert gain(model(copying=True)) > 1.0
    assert abs(gain(model())) < 0.1

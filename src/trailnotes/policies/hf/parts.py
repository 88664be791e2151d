"""A causal LM in two parts, body and head, for whoever needs logits at a few positions only: policy and learner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

PROBE_SCALE = 100.0  # makes a soft cap or scale on the logits show, however small the weights of a fresh model are


class Parts(NamedTuple):
    """What gives hidden states, and what makes logits of them."""

    body: Any
    head: Any


def parts_of(model: Any) -> Parts | None:
    """Decoder and output embedding, if these two alone give the logits of `model`; None if it does more to them.

    Found out on a few random tokens, with the output of the head scaled.

    Args:
        model: a causal LM of transformers, or a peft model around one.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    body = inner.get_decoder() if hasattr(inner, "get_decoder") else None
    head = inner.get_output_embeddings()
    if body in (None, inner) or head is None:
        return None
    try:
        return Parts(body, head) if _are_enough(inner, body, head) else None
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError):  # a body that is asked otherwise
        return None


@torch.no_grad()
def _are_enough(model: Any, body: Any, head: Any) -> bool:
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(model.get_input_embeddings().num_embeddings, (2, 8), generator=generator)
    token_ids = token_ids.to(model.device)
    with head.register_forward_hook(lambda _module, _inputs, output: output * PROBE_SCALE), evaluating(model):
        expected = model(input_ids=token_ids, use_cache=False).logits.float()
        found = head(body(input_ids=token_ids, use_cache=False).last_hidden_state).float()
    tolerance = 1e-4 if head.weight.dtype == torch.float32 else 2e-2
    return expected.shape == found.shape and bool(
        (expected - found).abs().max() <= tolerance * expected.abs().max().clamp(min=1.0)
    )


@contextmanager
def evaluating(model: nn.Module, training: bool = False) -> Iterator[None]:
    """Put `model` into evaluation (or training) mode for a while."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)

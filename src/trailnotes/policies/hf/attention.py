"""Attention over a long cache for few new tokens, on a CPU in bfloat16.

torch's kernel for CPUs packs keys and values anew in each call, which pays for a prompt and not for one token: two
matrix products over keys without gaps take less than half of its time. With the softmax in float32 they are as exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION_NAME = "sdpa_trailnotes"  # by which a model's config finds it


def use_cached_attention(model: Any) -> bool:
    """Register `attend` for a bfloat16 model on a CPU that uses torch's kernel; return whether the model attends so."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    now = getattr(inner.config, "_attn_implementation", None)
    if now == "sdpa" and inner.device.type == "cpu" and inner.dtype == torch.bfloat16:
        AttentionInterface.register(ATTENTION_NAME, attend)
        AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
        inner.set_attn_implementation(ATTENTION_NAME)
        now = ATTENTION_NAME
    return bool(now == ATTENTION_NAME)


def attend(
    module: torch.nn.Module,
    query: Tensor,  # (B, heads, S, D)
    key: Tensor,  # (B, kv_heads, L, D)
    value: Tensor,  # (B, kv_heads, L, D)
    attention_mask: Tensor | None,  # (B, 1, S, L), added to the scores
    dropout: float = 0.0,
    scaling: float | None = None,
    **given: Any,
) -> tuple[Tensor, None]:  # (B, S, heads, D)
    """Attend as transformers asks; calls that do not look into a cache go to its own function."""
    special = any(given.get(name) is not None for name in ("position_bias", "softcap", "s_aux", "cache"))
    added = attention_mask is not None and attention_mask.is_floating_point() and attention_mask.shape[1] == 1
    if special or not added or key.shape[2] == query.shape[2]:
        options = {"dropout": dropout, "scaling": scaling, **given}
        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return found
    assert attention_mask is not None
    if query.shape[2] > 1:  # the kernel finds the heads that share keys; transformers would copy these for each
        out = scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2), None
    batch, heads, _, size = query.shape
    together = query.reshape(batch, key.shape[1], -1, size)  # the heads that share keys, as rows of one product
    scores = torch.matmul(together, key.transpose(-1, -2)).float()
    scores = scores.mul_(size**-0.5 if scaling is None else scaling).add_(attention_mask)
    out = torch.matmul(scores.softmax(-1).to(value.dtype), value).reshape(batch, heads, 1, -1)
    return out.transpose(1, 2), None

"""Attention for what torch's own does not know: few new tokens over a long cache, and rows that begin alike.

On a CPU torch's kernel packs keys and values anew in each call, which pays for a prompt and not for one token: in
bfloat16 two matrix products over keys without gaps take less than half of its time, and in float32 transformers would
copy the keys for every head that shares them. With the softmax in float32 they are as exact.

Where rows begin alike, all but attention is computed once for each token of their tree (`SharedRows`). Attention takes
queries, keys and values of each row out of the tree, so that it needs no mask of tree x tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from trailnotes.policies.prefixes import PrefixTree

ATTENTION_NAME = "sdpa_trailnotes"  # by which a model's config finds it


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of similar length, whose attention is computed together."""

    place: Tensor  # (b, w) int64, where their queries stand in the tree
    mask: Tensor | None = None  # (b, 1, w, L) over their keys in a cache; None: keys stand where queries do
    rows: Tensor | None = None  # (b,) int64, of the cache


@dataclass(frozen=True, slots=True)
class SharedRows:
    """B rows of up to T tokens as the N tokens of their tree; a model is called with the latter."""

    token_ids: Tensor  # (1, N) int64
    position_ids: Tensor  # (1, N) int64
    place: Tensor  # (B, T) int64, where each token of a row stands among the N; 0 behind its end
    groups: tuple[RowGroup, ...]
    source: Tensor  # (N,) int64, where the attention of each of the N stands in that of all groups

    @classmethod
    def from_tree(
        cls, tree: PrefixTree, order: Sequence[int], device: torch.device,
        build_mask: Callable[[Tensor], Tensor] | None = None,
    ) -> SharedRows:  # fmt: skip
        """Lay out a tree of rows, each of which becomes the row that `order` names.

        `build_mask` makes of (b, w) positions a (b, 1, w, L) mask over the keys of a cache. Queries are then tokens
        that a row shares with none before it; without a cache, they are all of its tokens, so that each sees those up
        to its own place.
        """
        place = torch.zeros(len(order), max(map(len, tree.places)), dtype=torch.int64)
        for row, places in zip(order, tree.places, strict=True):
            place[row, : len(places)] = torch.tensor(places)
        positions, source = torch.tensor(tree.positions), torch.zeros(len(tree.token_ids), dtype=torch.int64)
        groups, size = [], 0
        adds = [len(places) > shared for places, shared in zip(tree.places, tree.shared, strict=True)]
        queries = [torch.tensor(p[s:] if build_mask else p) for p, s in zip(tree.places, tree.shared, strict=True)]
        for chosen in _group_by_length([len(each) * adds[i] for i, each in enumerate(queries)]):
            stack = torch.nn.utils.rnn.pad_sequence([queries[i] for i in chosen], batch_first=True)  # (b, w)
            for i, start in zip(chosen, range(size, size + stack.numel(), stack.shape[1]), strict=True):
                own = queries[i][-(len(tree.places[i]) - tree.shared[i]) :]
                source[own] = torch.arange(len(own)) + start + len(queries[i]) - len(own)
            size += stack.numel()
            mask = build_mask(positions[stack].to(device)) if build_mask else None
            rows = torch.tensor([order[i] for i in chosen]).to(device)
            groups.append(RowGroup(stack.to(device), mask, rows))
        ids = torch.tensor([tree.token_ids])
        return cls(
            ids.to(device), positions[None].to(device), place.to(device), tuple(groups), source.to(device)
        )  # fmt: skip

    def make_inputs(self) -> dict[str, Any]:
        """Make the keyword arguments of a model that uses `attend`; the mask is one that no model touches."""
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.place.device)
        return {"position_ids": self.position_ids, "attention_mask": mask, "shared_rows": self}


def _group_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Group indices so that none is less than half as long as the longest of its group; leave out those of length 0."""
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[i] and (not groups or 2 * lengths[i] < lengths[groups[-1][0]]):
            groups.append([])
        if lengths[i]:
            groups[-1].append(i)
    return groups


class _TakeRows(torch.autograd.Function):
    """Take places out of a tree, (N, C) and (B, T) -> (B, T, C); gradients of shared tokens are added in float32."""

    @staticmethod
    def forward(context: Any, tree: Tensor, place: Tensor) -> Tensor:
        context.place, context.size = place, len(tree)
        return tree.index_select(0, place.flatten()).view(*place.shape, -1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (rows,) = gradients
        total = torch.zeros(context.size, rows.shape[-1], device=rows.device)
        total.index_add_(0, context.place.flatten(), rows.flatten(0, 1).float())
        return total.to(rows.dtype), None


def take_rows(tree: Tensor, place: Tensor) -> Tensor:
    """Take queries, keys or values of rows out of those of a tree: (1, heads, N, D), (B, T) -> (B, heads, T, D)."""
    _, heads, size, width = tree.shape
    rows: Tensor = _TakeRows.apply(tree.transpose(1, 2).reshape(size, -1), place)  # type: ignore[no-untyped-call]
    return rows.view(*place.shape, heads, width).transpose(1, 2)


def use_own_attention(model: Any) -> bool:
    """Let a model that uses torch's kernel use `attend`; return whether it does."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if getattr(inner.config, "_attn_implementation", None) == "sdpa":
        AttentionInterface.register(ATTENTION_NAME, attend)
        AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
        inner.set_attn_implementation(ATTENTION_NAME)
    return bool(getattr(inner.config, "_attn_implementation", None) == ATTENTION_NAME)


def use_cached_attention(model: Any) -> bool:
    """Let a model on a CPU use `attend` over its cache; return whether it does."""
    return model.device.type == "cpu" and use_own_attention(model)


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
    """Attend as transformers asks; calls that do not look into a cache go to its own function.

    With `shared_rows` among `given`, queries are those of a tree, and so is the result; keys and values are those of
    the tree, or of the rows of a cache.
    """
    shared: SharedRows | None = given.pop("shared_rows", None)
    if shared is not None:
        return _attend_shared(shared, query, key, value, dropout, scaling), None
    special = any(given.get(name) is not None for name in ("position_bias", "softcap", "s_aux", "cache"))
    added = attention_mask is not None and attention_mask.is_floating_point() and attention_mask.shape[1] == 1
    if special or not added or query.device.type != "cpu" or key.shape[2] == query.shape[2]:
        options = {"dropout": dropout, "scaling": scaling, **given}
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output
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


def _attend_shared(
    shared: SharedRows, query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None
) -> Tensor:  # (1, N, heads, D)
    parts = []
    for group in shared.groups:
        if group.mask is None:
            keys, values = (take_rows(each, group.place) for each in (key, value))
        else:
            keys, values = key[group.rows], value[group.rows]
        out = scaled_dot_product_attention(
            take_rows(query, group.place), keys, values, group.mask, dropout, is_causal=group.mask is None,
            scale=scaling, enable_gqa=True,
        )  # fmt: skip
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts).index_select(0, shared.source)[None]

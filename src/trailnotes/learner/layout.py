"""Rows as the model computes them, where it does not compute them padded: joined to one, or with shared beginnings.

Joined, rows stand one after the other, and positions that start anew tell them apart: attention for rows of varying
length (flash, flex) skips what lies between them. Shared, rows that begin alike become a tree: what they have in common
is computed once, and each token sees its own way back to the root. Members of a group begin with the same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trailnotes.learner.samples import PackingMode


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """B rows of up to T tokens as G sequences of N.

    Nothing is asked of what follows the last token of a row, so it is not computed.
    """

    token_ids: Tensor  # (G, N) int64
    position_ids: Tensor  # (G, N) int64
    node: Tensor  # (B, T) int64, where each token stands in the G * N
    attention: Tensor | None = None  # (G, 1, N, N) bool, who sees whom; None: positions tell


def pack_rows(rows: Sequence[Sequence[int]]) -> PackedLayout:
    """One sequence of all rows."""
    read = [row[:-1] for row in rows]
    node = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    start = 0
    for i, row in enumerate(read):
        node[i, : len(row)] = torch.arange(start, start + len(row))
        start += len(row)
    ids = torch.tensor([[token for row in read for token in row]], dtype=torch.int64)
    return PackedLayout(ids, torch.cat([torch.arange(len(row)) for row in read])[None], node)


class _PrefixTree:
    """Rows that begin alike, added in lexicographic order."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.position_ids: list[int] = []
        self.paths: list[list[int]] = []  # of each row, the places of its tokens

    def add(self, row: Sequence[int], common: int) -> None:
        """Add a row whose first `common` tokens are those of the row before it."""
        first = len(self.token_ids)
        self.paths.append((self.paths[-1][:common] if common else []) + list(range(first, first + len(row) - common)))
        self.token_ids += row[common:]
        self.position_ids += range(common, len(row))

    def build_mask(self, size: int) -> Tensor:  # (size, size) of bool
        """Each token what leads to it; places that nobody uses see themselves, since a softmax of nothing is nan."""
        seen = torch.eye(size, dtype=torch.bool)
        for path in self.paths:
            places = torch.tensor(path)
            seen[places[:, None], places[None, :]] |= torch.ones(len(path), len(path)).tril().bool()
        return seen


def share_prefixes(rows: Sequence[Sequence[int]]) -> PackedLayout:
    """A tree of all rows that begin alike, by at least half of the shorter one's length."""
    read = [list(row[:-1]) for row in rows]
    trees: list[_PrefixTree] = []
    where: dict[int, tuple[int, int]] = {}  # row -> its tree, and which path of it
    before: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: read[i]):
        common = _count_common_prefix(before, read[i])
        if not trees or 2 * common < min(len(before), len(read[i])):
            trees.append(_PrefixTree())
            common = 0
        trees[-1].add(read[i], common)
        where[i] = len(trees) - 1, len(trees[-1].paths) - 1
        before = read[i]
    size = max(len(tree.token_ids) for tree in trees)
    node = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for i, (tree, path) in where.items():
        places = trees[tree].paths[path]
        node[i, : len(places)] = torch.tensor(places) + tree * size

    def padded(lists: Sequence[list[int]]) -> Tensor:
        return torch.tensor([[*each, *[0] * (size - len(each))] for each in lists], dtype=torch.int64)

    seen = torch.stack([tree.build_mask(size) for tree in trees])[:, None]
    return PackedLayout(padded([t.token_ids for t in trees]), padded([t.position_ids for t in trees]), node, seen)


def build_layout(rows: Sequence[Sequence[int]], how: PackingMode, device: torch.device) -> PackedLayout | None:
    """The layout of rows on a device; None where they are padded."""
    if how == "padded":
        return None
    found = pack_rows(rows) if how == "joined" else share_prefixes(rows)
    attention = None if found.attention is None else found.attention.to(device)
    return PackedLayout(found.token_ids.to(device), found.position_ids.to(device), found.node.to(device), attention)


def is_padding_free(model: Any) -> bool:
    """Whether the attention of a model never computes what stands between the rows of a joined one."""
    return str(getattr(model.config, "_attn_implementation", "")).startswith(("flash", "flex"))


def _count_common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    for i, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return i
    return min(len(one), len(other))

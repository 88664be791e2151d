"""Token sequences that begin alike: what they have in common is computed once. Without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trailnotes.types import count_common_prefix

MAX_REPEATS = 4  # times the budget of tokens that attention may see, which looks at each row apart


@dataclass(slots=True)
class PrefixTree:
    """Tokens of rows, each stored once where rows begin alike.

    Rows whose first `start` tokens are computed already share a token if all before it are the same and as many of
    them were computed. They share it with the row before, so rows come in the order of `order_rows`.
    """

    token_ids: list[int] = field(default_factory=list)  # (N,)
    positions: list[int] = field(default_factory=list)  # (N,) in their rows
    places: list[list[int]] = field(default_factory=list)  # of each row, the index of each token after its start
    shared: list[int] = field(default_factory=list)  # how many of these, from the first on, are an earlier row's
    _last: tuple[Sequence[int], int] = ((), 0)  # the row before, and its start

    def count_common(self, row: Sequence[int], start: int) -> int:
        before, begun = self._last
        return max(0, count_common_prefix(before, row, len(row)) - start) if self.places and begun == start else 0

    def add(self, row: Sequence[int], start: int = 0) -> None:
        common = self.count_common(row, start)
        first, new = len(self.token_ids), len(row) - start - common
        self.places.append((self.places[-1][:common] if common else []) + list(range(first, first + new)))
        self.shared.append(common)
        self.token_ids += row[start + common :]
        self.positions += range(start + common, len(row))
        self._last = row, start


def order_rows(rows: Sequence[Sequence[int]], starts: Sequence[int]) -> list[int]:
    """Order rows so that those with the longest common prefixes are neighbours; return their indices."""
    return sorted(range(len(rows)), key=lambda i: (starts[i], tuple(rows[i])))


def iter_trees(
    rows: Sequence[Sequence[int]], starts: Sequence[int], max_tokens: int
) -> Iterator[tuple[list[int], PrefixTree]]:
    """Yield trees of at most `max_tokens` tokens, and the indices of their rows; a longer row goes alone."""
    tree, indices, width = PrefixTree(), list[int](), 0
    for i in order_rows(rows, starts):
        length = len(rows[i]) - starts[i]
        width = max(width, length)
        size = len(tree.token_ids) + length - tree.count_common(rows[i], starts[i])
        if indices and (size > max_tokens or (len(indices) + 1) * width > MAX_REPEATS * max_tokens):
            yield indices, tree
            tree, indices, width = PrefixTree(), [], length
        tree.add(rows[i], starts[i])
        indices.append(i)
    if indices:
        yield indices, tree

"""Rows that begin alike: each token is stored once, and each row is found again."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.policies.hf.attention import SharedRows
from trailnotes.policies.prefixes import MAX_REPEATS, PrefixTree, iter_trees, order_rows

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8)


def test_rows_share_their_common_beginning() -> None:
    tree = PrefixTree()
    tree.add([1, 2, 3, 4])
    tree.add([1, 2, 5])
    assert (tree.token_ids, tree.positions) == ([1, 2, 3, 4, 5], [0, 1, 2, 3, 2])
    assert (tree.places, tree.shared) == ([[0, 1, 2, 3], [0, 1, 4]], [0, 2])
    tree.add([1, 2, 6], start=2)  # whose first two tokens are in a cache of its own
    tree.add([1, 2, 6, 7], start=2)
    assert tree.places[2:] == [[5], [5, 6]]
    assert tree.positions[5:] == [2, 3]


@given(ROWS, st.data())
def test_trees_hold_every_row_within_the_budget(rows: list[list[int]], data: st.DataObject) -> None:
    starts = [data.draw(st.integers(0, len(row) - 1)) for row in rows]
    budget = data.draw(st.integers(1, 20))
    trees = list(iter_trees(rows, starts, budget))
    assert sorted(i for indices, _ in trees for i in indices) == list(range(len(rows)))
    for indices, tree in trees:
        lengths = [len(rows[i]) - starts[i] for i in indices]
        assert len(indices) == 1 or (
            len(tree.token_ids) <= budget and len(indices) * max(lengths) <= MAX_REPEATS * budget
        )
        for i, places in zip(indices, tree.places, strict=True):
            assert [tree.token_ids[place] for place in places] == rows[i][starts[i] :]
            assert [tree.positions[place] for place in places] == list(range(starts[i], len(rows[i])))
    (once,) = [tree for _, tree in iter_trees(rows, [0] * len(rows), 10_000)]
    assert len(once.token_ids) == len({tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)})


@given(ROWS)
def test_attention_answers_for_each_token_from_a_row_that_has_it(rows: list[list[int]]) -> None:
    tree, order = PrefixTree(), order_rows(rows, [0] * len(rows))
    for i in order:
        tree.add(rows[i])
    layout = SharedRows.from_tree(tree, order, torch.device("cpu"))
    queries = torch.cat([group.place.flatten() for group in layout.groups])
    assert queries[layout.source].tolist() == list(range(len(tree.token_ids)))
    for row, places in zip(rows, layout.place.tolist(), strict=True):
        assert [tree.token_ids[place] for place in places[: len(row)]] == row

"""How rows are shared out, and that two processes learn what one does."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st

from sharded_cases import CASES, Case, alone, among, learn, model_of, rows_of
from tiny import tiny_model
from trailnotes.learner.logprobs import TokenScorer, packs
from trailnotes.learner.ranks import Alone, deal, passes
from trailnotes.learner.samples import microbatches, opening

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does more to its logits:UserWarning"),
]
TIMES = ("seconds", "seconds_reference", "tokens_forward")  # what the cut of a batch changes


def rows(*lengths: int) -> list[Any]:
    return [SimpleNamespace(token_ids=(0,) * length) for length in lengths]


def test_the_longest_rows_go_to_different_ranks() -> None:
    assert deal(rows(1, 9, 5, 8, 2), 2) == [[0, 1, 4], [2, 3]]  # 9 | 8 5 | 2 1 |
    assert deal(rows(3), 3) == [[0], [], []]


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(1, 5), st.integers(1, 60), st.booleans())
def test_every_row_is_in_one_micro_batch_of_one_rank_and_all_ranks_pass_as_often(
    lengths: list[int], world: int, budget: int, packed: bool
) -> None:
    cuts = []
    for rank in range(world):
        ranks: Any = SimpleNamespace(rank=rank, world=world)
        cuts.append(passes(rows(*lengths), budget, ranks, packed=packed))
    assert sorted(i for cut in cuts for batch in cut for i in batch) == list(range(len(lengths)))
    assert len({len(cut) for cut in cuts}) == 1
    assert all(any(batches) for batches in zip(*cuts, strict=True))  # nobody passes nothing with everybody


def test_alone_nothing_changes() -> None:
    some = rows(5, 3, 9, 3)
    assert passes(some, 10, Alone()) == microbatches(some, 10) == [[1, 3], [0], [2]]


def test_joined_rows_count_without_padding() -> None:
    assert microbatches(rows(1, 2, 4, 8), 8, packed=True) == [[0, 1, 2], [3]]
    assert microbatches(rows(1, 2, 4, 8), 8) == [[0, 1], [2], [3]]


def test_an_opening_is_two_tokens_that_teach_nothing() -> None:
    short = opening(rows_of(Case())[0])
    assert (len(short.token_ids), short.loss_mask, short.advantages) == (2, (0, 1), (0.0, 0.0))
    assert opening(replace(short, token_ids=(7, 8))).token_ids == (7, 8)


@pytest.mark.parametrize("name", ["empo2, held rows", "lora, KL"])
def test_joined_rows_teach_what_padded_ones_do_with_fewer_tokens(name: str) -> None:
    padded = learn(replace(CASES[name], settings=CASES[name].settings | {"microbatch_tokens": 10_000}))
    joined = learn(replace(CASES[name], packed=True, settings=CASES[name].settings | {"microbatch_tokens": 10_000}))
    assert furthest(padded, joined) <= 1e-5
    assert joined["metrics"]["tokens_forward"] < padded["metrics"]["tokens_forward"]
    assert_equal_metrics(padded, joined)


def test_a_model_that_mixes_joined_rows_is_found_out() -> None:
    assert packs(TokenScorer(tiny_model()))
    mixing = tiny_model()
    body = mixing.model.forward
    mixing.model.forward = lambda **inputs: body(**{k: v for k, v in inputs.items() if k != "position_ids"})
    assert not packs(TokenScorer(mixing))


def furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of any weight."""
    assert list(one["weights"]) == list(other["weights"])
    return max(float((tensor - other["weights"][name]).abs().max()) for name, tensor in one["weights"].items())


def assert_equal_metrics(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["metrics"].keys() == other["metrics"].keys()
    for name in one["metrics"].keys() - set(TIMES):
        assert other["metrics"][name] == pytest.approx(one["metrics"][name], rel=1e-3, abs=1e-5), name


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """What one process finds and what two find."""
    path = tmp_path_factory.mktemp("ranks")
    started = mp.spawn(among, (2, str(path / "store"), str(path / "two")), nprocs=2, join=False)
    alone(path / "one")
    while not started.join():
        pass
    return torch.load(path / "one"), torch.load(path / "two")


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_does(both: tuple[Any, Any], name: str) -> None:
    one, two = (found[name] for found in both)
    start = model_of(CASES[name]).state_dict()
    assert furthest(one, two) <= 1e-5
    assert_equal_metrics(one, two)
    for mine, theirs in zip(one["said"], two["said"], strict=True):
        for row, other in zip(mine, theirs, strict=True):
            assert other == pytest.approx(row, abs=1e-4)
    if not CASES[name].lora:
        assert max(float((start[n] - w).abs().max()) for n, w in one["weights"].items()) > 1e-4  # all has moved

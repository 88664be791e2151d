"""Sparse and hybrid retrieval, and putting the most similar in order by something else."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.memory import TipMemory, open_memory
from trailnotes.memory.retrieval import BM25Index, Doubles, fuse_reciprocal_ranks
from trailnotes.types import Tip

KEYS = {"a": "red door red", "b": "red gate", "c": "blue gate by the sea", "d": "nothing"}


def memory_of(keys: dict[str, str], **fields: object) -> TipMemory:
    memory = open_memory(None, MemoryConfig(threshold=-1).model_copy(update=fields))
    memory.add([Tip("task", text, key, float(score)) for score, (text, key) in enumerate(keys.items())])
    return memory


def found(memory: TipMemory, query: str, top_k: int = 9) -> list[str]:
    tips = [tip.text for tip in memory.search("task", query, top_k)]
    assert tips == [tip.text for tip in asyncio.run(memory.search_async("task", query, top_k))]
    return tips


def scores_of(texts: Sequence[str], query: str) -> Doubles:
    return BM25Index(texts).score(query)


def test_bm25_by_hand() -> None:
    # N = 3, lengths 3, 2, 1, mean 2. red: n = 2, idf = ln(1 + 1.5/2.5); door: n = 1, idf = ln(1 + 2.5/1.5)
    texts = ["Red door, red!", "red gate", "gate"]
    red, door = math.log(1.6), math.log(8 / 3)
    first = red * 2 / (2 + 1.2 * (0.25 + 0.75 * 1.5)) + door * 1 / (1 + 1.2 * (0.25 + 0.75 * 1.5))
    second = red * 1 / (1 + 1.2 * (0.25 + 0.75))
    assert scores_of(texts, "a red, red door").tolist() == pytest.approx([first, second, 0.0])
    assert scores_of(texts, "sea").tolist() == [0.0] * 3
    assert scores_of([], "red").tolist() == []
    assert scores_of(["", "?"], "red").tolist() == [0.0] * 2


def test_reciprocal_ranks_by_hand() -> None:
    dense = np.array([0, 1, 2]), np.array([0.5, 0.9, 0.5])
    sparse = np.array([2]), np.array([7.0])
    assert fuse_reciprocal_ranks(4, dense, sparse).tolist() == pytest.approx([1 / 62, 1 / 61, 1 / 62 + 1 / 61, 0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcdef"), max_size=6), min_size=1, max_size=8), st.sets(st.sampled_from("abg"))
)
def test_only_a_shared_word_counts_and_one_more_never_hurts(texts: list[list[str]], query: set[str]) -> None:
    lines = [" ".join(text) for text in texts]
    scores, more = scores_of(lines, " ".join(query)), scores_of(lines, " ".join(query | {"c"}))
    assert [score > 0 for score in scores] == [bool(query & set(text)) for text in texts]
    assert (more >= scores).all()


def test_sparse_finds_what_shares_rare_words() -> None:
    with memory_of(KEYS, retrieval="sparse", order=("similarity",)) as memory:
        assert found(memory, "the red door") == ["a", "c", "b"], "'the' is rarer than 'red' here"
        assert found(memory, "mountain") == []
        assert memory.embedder.embed(["x"]).shape == (1, 256), (
            "the vectors are kept, so that dense search stays possible"
        )
    with memory_of(KEYS, retrieval="sparse") as memory:
        assert found(memory, "gate") == ["c", "b"], "its candidates in the order of the settings: by score"


def test_hybrid_joins_both_lists() -> None:
    keys = {"like": "red door", "rare word": "xyzzy of a long and winding tale", "neither": "sea"}
    with memory_of(keys, retrieval="hybrid", order=("similarity",), threshold=0.5) as memory:
        assert set(found(memory, "red door xyzzy")) == {"like", "rare word"}
        assert found(memory, "red door xyzzy", 1) == ["like"], "first by vectors, and second by words"


def test_words_follow_what_is_written() -> None:
    with memory_of(KEYS, retrieval="sparse", order=("similarity",)) as memory:
        assert found(memory, "harbour") == []
        memory.add([Tip("task", "new", "the harbour", 0.0), Tip("another", "far", "harbour", 0.0)])
        assert found(memory, "harbour") == ["new"]


def test_the_event_loop_goes_on_while_words_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    score = BM25Index.score

    def wait(self: BM25Index, query: str) -> Doubles:
        assert goes_on.wait(10), "the loop was held up"
        return score(self, query)

    async def search(memory: TipMemory) -> list[Tip]:
        searching = asyncio.ensure_future(memory.search_async("task", "red", 9))
        await asyncio.sleep(0)
        goes_on.set()
        return await searching

    monkeypatch.setattr(BM25Index, "score", wait)
    with memory_of(KEYS, retrieval="hybrid", order=("similarity",)) as memory:
        assert {tip.text for tip in asyncio.run(search(memory))} == {*KEYS}


def test_beyond_the_task_similarity_comes_first() -> None:
    assert MemoryConfig(scope="env", order=("worth",)).ranking == ("similarity", "worth")

"""Scores are BM25 as Lucene rounds it, and the best come first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes_worlds.search import bm25
from trailnotes_worlds.search import index as index_module
from trailnotes_worlds.search.analyzer import analyze
from trailnotes_worlds.search.building import IndexBuilder
from trailnotes_worlds.search.index import MAX_TERMS, SearchIndex

Documents = Sequence[tuple[str, str]]


def index_of(folder: Path, documents: Documents, run: int = 4_000_000) -> SearchIndex:
    with IndexBuilder(folder, run=run) as builder:
        for name, text in documents:
            builder.add(name, text)
        builder.finish()
    return SearchIndex.open(folder)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., SearchIndex]:
    return lambda *documents: index_of(tmp_path / "index", documents)


def test_lengths_are_kept_in_a_byte() -> None:
    assert bm25.LENGTHS[:40].tolist() == list(range(40))
    assert bm25.LENGTHS[40:60].tolist() == [*range(40, 56, 2), *range(56, 88, 4), *range(88, 120, 8)]
    assert bm25.LENGTHS[255] == 2_013_265_944  # what Lucene's byte4ToInt makes of the last byte
    lengths = np.array([0, 39, 40, 41, 42, 87, 88, 95, 96, 10**9])
    decoded = bm25.LENGTHS[bm25.encode_lengths(lengths)]
    assert decoded[:-1].tolist() == [0, 39, 40, 40, 42, 84, 88, 88, 96]
    assert 0.88 * 10**9 < decoded[-1] <= 10**9


def test_a_score_by_hand(build: Callable[..., SearchIndex]) -> None:
    index = build(("a", "blue mug"), ("b", "blue blue plate"), ("c", "green bowl with handle"))
    # three documents of 2, 3 and 3 terms ("with" is none), two of which hold "blue"
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    mean = 8 / 3

    def score(frequency: int, length: int) -> float:
        return idf * frequency / (frequency + 0.9 * (1 - 0.4 + 0.4 * length / mean))

    assert index.search("blue") == [("b", pytest.approx(score(2, 3))), ("a", pytest.approx(score(1, 2)))]
    assert index.search("blue, Blue!") == [("b", pytest.approx(2 * score(2, 3))), ("a", pytest.approx(2 * score(1, 2)))]


def test_ties_are_broken_by_name(build: Callable[..., SearchIndex]) -> None:
    index = build(*((name, "red cup") for name in ("m", "B", "z", "a", "10", "9")))
    assert [name for name, _ in index.search("cup")] == ["10", "9", "B", "a", "m", "z"]
    assert [name for name, _ in index.search("cup", 2)] == ["10", "9"]


def test_what_finds_nothing(build: Callable[..., SearchIndex]) -> None:
    index = build(("a", "red cup"), ("empty", ""), ("stops", "the of and"))
    for query in ("", "the", "unknown", "\x00", "\ud800", "★"):
        assert index.search(query) == []
    assert index.search("cup", 0) == []
    assert len(index) == 3
    assert index.search("cup")[0][1] == pytest.approx(math.log(1 + 0.5 / 1.5) / 1.9)  # empty ones count nowhere


def test_an_empty_index_finds_nothing(build: Callable[..., SearchIndex]) -> None:
    index = build()
    assert (len(index), index.search("cup"), index.find_by_term("cup")) == (0, [], [])


def test_a_term_that_is_said_very_often(build: Callable[..., SearchIndex]) -> None:
    index = build(("few", "sale " * 254), ("many", "sale " * 300 + "x"), ("more", "sale " * 70_000))
    names, scores = zip(*index.search("sale"), strict=True)
    assert names == ("more", "many", "few")
    lengths = [int(bm25.LENGTHS[bm25.encode_lengths(np.array([n]))][0]) for n in (254, 301, 70_000)]
    mean, idf = (254 + 301 + 70_000) / 3, math.log(1 + 0.5 / 3.5)
    expected = [
        idf * f / (f + 0.9 * (0.6 + 0.4 * length / mean)) for f, length in zip((254, 300, 70_000), lengths, strict=True)
    ]
    assert scores[::-1] == pytest.approx(expected, rel=1e-6)


def test_terms_that_are_there_already_are_found_as_they_are(tmp_path: Path) -> None:
    with IndexBuilder(tmp_path) as builder:
        builder.add_terms("b", ["The Cats", "x"])
        builder.add_terms("a", ["The Cats"])
        builder.finish()
    with closing(SearchIndex.open(tmp_path)) as index:
        assert index.find_by_term("The Cats") == ["b", "a"]
        assert index.find_by_term("cat") == index.find_by_term("\ud800") == []


def test_only_the_first_terms_of_an_endless_query_count(build: Callable[..., SearchIndex]) -> None:
    index = build(("a", "first"), ("z", "last"))
    filler = " ".join(f"w{number}" for number in range(MAX_TERMS - 1))
    assert [name for name, _ in index.search(f"first {filler} last")] == ["a"]
    assert [name for name, _ in index.search("last " * 20_000)] == ["z"]  # a repeat is no further term


# -- against a ranking that looks at every document


def ranked(documents: Documents, query: str) -> list[tuple[str, float]]:
    """The same in the plainest way: document by document, sorted."""
    counts = {name: Counter(analyze(text)) for name, text in documents}
    filled = [count for count in counts.values() if count]
    one, k1, b = np.float32(1), np.float32(0.9), np.float32(0.4)
    mean = np.float32(sum(count.total() for count in filled) / max(1, len(filled)))
    totals = dict.fromkeys(counts, 0.0)
    for term, times in Counter(analyze(query)).items():
        frequency = sum(term in count for count in filled)
        idf = math.log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5))
        weight = np.float32(times) * np.float32(idf)
        for name in (name for name, count in counts.items() if count[term]):
            length = np.float32(bm25.LENGTHS[bm25.encode_lengths(np.array([counts[name].total()]))][0])
            inverse = one / (k1 * ((one - b) + b * length / mean))
            totals[name] += float(weight - weight / (one + np.float32(counts[name][term]) * inverse))
    found = [(name, float(np.float32(total))) for name, total in totals.items() if total]
    return sorted(found, key=lambda item: (-item[1], item[0]))


TEXTS = st.lists(st.sampled_from(["red", "blue", "cup", "mug", "the", "x1", "★"]), max_size=60).map(" ".join)


@settings(max_examples=25, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=12), TEXTS, st.integers(1, 12), st.integers(1, 40))
def test_a_ranking_is_that_of_the_plain_way(texts: list[str], query: str, limit: int, run: int) -> None:
    documents = [(f"d{len(text) % 7}{place}", text) for place, text in enumerate(texts)]
    with TemporaryDirectory() as folder, closing(index_of(Path(folder), documents, run)) as index:
        assert index.search(query, limit) == ranked(documents, query)[:limit]


def test_the_best_of_many_blocks_are_the_best_of_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vocabulary = np.array([f"w{number}" for number in range(20)])
    documents = [
        (f"d{place:04d}", " ".join(vocabulary[rng.zipf(1.5, rng.integers(1, 9)) % 20])) for place in range(2500)
    ]
    with closing(index_of(tmp_path, documents, run=5_000)) as index:
        for query in ("w1 w2", "w13", "w19"):
            expected = ranked(documents, query)
            for limit in (1, 2, 3, 50, 6000):
                assert index.search(query, limit) == expected[:limit]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_looked_up_instead_of_read_ranks_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The frequent terms of a query decide between few documents: those alone are asked for them."""
    rng = np.random.default_rng(seed)
    words = [f"w{number}" for number in range(12)]
    documents = [
        (
            f"d{rng.integers(90):02d}{place:04d}",  # names are in another order than documents
            " ".join(word for k, word in enumerate(words) for _ in range(rng.choice([0, 1, 2, 300], p=likely[k]))),
        )
        for likely in ([(1 - share, 0.7 * share, 0.29 * share, 0.01 * share) for share in np.linspace(0.01, 0.95, 12)],)
        for place in range(1500)
    ]
    for name, value in {"_MAX_FULL_READ": 0, "_BLOCK_SIZE": 8, "_RARE_TERM_RATIO": 50, "_LOOKUP_COST_RATIO": 1}.items():
        monkeypatch.setattr(index_module, name, value)
    asked: list[tuple[int, int]] = []
    look_up = SearchIndex._look_up_scores
    monkeypatch.setattr(
        SearchIndex,
        "_look_up_scores",
        lambda self, term, found: asked.append((len(found), term.size)) or look_up(self, term, found),
    )
    with closing(index_of(tmp_path, documents)) as index:
        for _ in range(40):
            query = " ".join(rng.choice(words, rng.integers(1, 9)))
            expected = ranked(documents, query)
            for limit in (1, 7, 50):
                assert index.search(query, limit) == expected[:limit]
    assert sum(found for found, _ in asked) < sum(size for _, size in asked) / 4

"""Scores are BM25 as Lucene rounds it, and the best come first."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyrun import record
from trailnotes.errors import ConfigError
from trailnotes_worlds.search import bm25, terms
from trailnotes_worlds.search import index as index_module
from trailnotes_worlds.search.building import FILES, IndexBuilder
from trailnotes_worlds.search.index import SearchIndex
from trailnotes_worlds.search.terms import STOPWORDS, analyze, split_words, stem, to_term

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
    scored = [(name, float(np.float32(total))) for name, total in totals.items() if total]
    return sorted(scored, key=lambda item: (-item[1], item[0]))


TEXTS = st.lists(st.sampled_from(["red", "blue", "cup", "mug", "the", "x1", "★"]), max_size=60).map(" ".join)


@settings(max_examples=25, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=12), TEXTS, st.integers(1, 12), st.integers(1, 40))
def test_rankings_equal_a_plain_implementation(texts: list[str], query: str, limit: int, run: int) -> None:
    documents = [(f"{'mBza19'[place % 6]}{place}", text) for place, text in enumerate(texts)]
    with TemporaryDirectory() as folder:
        assert index_of(Path(folder), documents, run).search(query, limit) == ranked(documents, query)[:limit]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_lookups_rank_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
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
    look_ups = record(monkeypatch, SearchIndex, "_look_up_scores")
    index = index_of(tmp_path, documents)
    for _ in range(40):
        query = " ".join(rng.choice(words, rng.integers(1, 9)))
        expected = ranked(documents, query)
        for limit in (1, 7, 50):
            assert index.search(query, limit) == expected[:limit]
    asked = [(len(matches), term.size) for (_, term, matches), _ in look_ups]
    assert sum(matches for matches, _ in asked) < sum(size for _, size in asked) / 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wi-fi, usb-c / hdmi", ["wi", "fi", "usb", "c", "hdmi"]),
        ("don't o'clock' 'tis", ["don't", "o'clock", "tis"]),
        ("u.s.a. example.com 3.5mm 1,000,000 12:30", ["u.s.a", "example.com", "3.5mm", "1,000,000", "12", "30"]),
        ("color:red 3:a a.1 1.a 5'2", ["color:red", "3", "a", "a", "1", "1", "a", "5'2"]),
        ("snake_case _x_ __ _", ["snake_case", "_x_"]),
        ("50% off #1 a&b c++", ["50", "off", "1", "a", "b", "c"]),
        ("café naïve Ünïcode", ["café", "naïve", "Ünïcode"]),
        ("cafe\u0301s x\u200dy", ["cafe\u0301s", "x\u200dy"]),  # a combining mark and a joiner stay in their word
        ("men\u2019s l\u2019eau", ["men\u2019s", "l\u2019eau"]),
        ("½ ¼ ² 3²", ["3"]),
        ("面膜 30ml", ["面", "膜", "30ml"]),
        ("ひら カタカナ", ["ひ", "ら", "カタカナ"]),
        ("ผ้าไหม silk", ["ผ้าไหม", "silk"]),
        ("★new★ ☆ brand™ x® ©", ["★", "new", "★", "brand", "™", "x", "®", "©"]),
        ("👍🏽 👩‍👧 🇫🇷🇩🇪 ❤️ok", ["👍🏽", "👩‍👧", "🇫🇷", "🇩🇪", "❤️", "ok"]),
        ("１２.５ ＡＢ", ["１２.５", "ＡＢ"]),
        ("\ud800 a\x00b", ["a", "b"]),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert split_words(text) == expected


@given(st.text(st.characters(max_codepoint=127)))
def test_the_ascii_pattern_agrees(text: str) -> None:
    wide = [found[0] for found in terms._WIDE.finditer(text.translate(terms._CLASSES))]
    assert list(map(len, split_words(text))) == list(map(len, wide))


@pytest.mark.parametrize(  # most are the examples of Porter's paper
    ("word", "expected"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("caress", "caress"), ("cats", "cat"),
        ("feed", "feed"), ("agreed", "agre"), ("plastered", "plaster"), ("bled", "bled"), ("motoring", "motor"),
        ("sing", "sing"), ("conflated", "conflat"), ("troubled", "troubl"), ("sized", "size"), ("hopping", "hop"),
        ("falling", "fall"), ("hissing", "hiss"), ("fizzed", "fizz"), ("failing", "fail"), ("filing", "file"),
        ("happy", "happi"), ("sky", "sky"), ("relational", "relat"), ("conditional", "condit"), ("rational", "ration"),
        ("digitizer", "digit"), ("radically", "radic"), ("vietnamization", "vietnam"), ("operator", "oper"),
        ("feudalism", "feudal"), ("hopefulness", "hope"), ("formality", "formal"), ("sensibility", "sensibl"),
        ("triplicate", "triplic"), ("electrical", "electr"), ("goodness", "good"), ("revival", "reviv"),
        ("adjustment", "adjust"), ("adoption", "adopt"), ("communism", "commun"), ("effective", "effect"),
        ("probate", "probat"), ("rate", "rate"), ("cease", "ceas"), ("controll", "control"), ("roll", "roll"),
        ("possibly", "possibl"), ("archaeology", "archaeolog"), ("is", "is"), ("us", "us"), ("s", "s"),  # Lucene's own
        ("cafés", "café"), ("ion", "ion"), ("ying", "ying"),
    ],
)  # fmt: skip
def test_stems(word: str, expected: str) -> None:
    assert stem(word) == expected


def test_terms() -> None:
    words = analyze("The Women's shoes, and MEN\u2019S Running-Shoes' for 1's")
    assert words == ["women", "shoe", "men", "run", "shoe", "1", "s"]
    assert len(STOPWORDS) == 33
    assert analyze(" ".join(sorted(STOPWORDS))) == []
    assert to_term("IT'S") == ""  # a stopword without its possessive


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with IndexBuilder(tmp_path / "index") as builder:
        for number in range(50):
            builder.add(f"d{number}", f"cup number {number}")
        builder.finish()
    return tmp_path / "index"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_or_is_gone_is_named(folder: Path, name: str) -> None:
    os.truncate(folder / name, (folder / name).stat().st_size - 1)
    with pytest.raises(ConfigError, match=rf"^{folder / name} has \d+ bytes instead of \d+"):
        SearchIndex.open(folder)
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} has 0 bytes instead of"):
        SearchIndex.open(folder)

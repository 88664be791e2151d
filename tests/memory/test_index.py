"""The index beside a memory file: it finds what is there, of this file alone, and is never trusted further."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from test_store_model import EXACT, NEAREST, Directions

from trailnotes.errors import MemoryStoreError
from trailnotes.memory import TipMemory, exchange, index, open_memory
from trailnotes.memory.index import TipIndex
from trailnotes.types import Task, Tip

pytest.importorskip("faiss", reason="the index needs the extra index")


@pytest.fixture(autouse=True)
def _as_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tips are saved as often, and looked for in as few lists, as many are."""
    monkeypatch.setattr(index, "MAX_UNSAVED", 1)
    monkeypatch.setattr(index, "MIN_SCANNED_VECTORS", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


def opened(path: Path | None, **settings: object) -> TipMemory:
    return open_memory(path, NEAREST.model_copy(update=settings), embedder=Directions())  # constants among them


def tips(first: int, last: int, namespace: str = "task") -> list[Tip]:
    return [Tip(namespace, f"tip {number}", f"key {number}", float(number)) for number in range(first, last)]


def filled(path: Path, count: int = 300) -> None:
    with opened(path) as memory:
        memory.add(tips(0, count))
        memory.search("task", "key 0", 1)


def search_texts(memory: TipMemory, query: str, top_k: int = 10, task: str = "task") -> list[str]:
    return [tip.text for tip in memory.search(task, query, top_k)]


def test_it_finds_what_an_exact_search_does(path: Path) -> None:
    filled(path, 2000)
    queries = [f"question {number}" for number in range(50)]
    with opened(path) as memory, open_memory(path, EXACT, embedder=Directions()) as exact:
        pairs = [(set(search_texts(memory, query)), set(search_texts(exact, query))) for query in queries]
        assert memory.store.index.lists is not None
        assert exact.store.index.lists is None
    assert sum(len(ours & theirs) for ours, theirs in pairs) >= 0.98 * 10 * len(queries)


def test_it_is_saved_and_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    made = list(path.parent.glob("*-index"))
    assert [file.name for file in made] == ["memory.db-index"]
    monkeypatch.setattr(TipIndex, "create", None)  # it is not built again
    with opened(path) as memory:
        assert search_texts(memory, "key 9", 1) == ["tip 9"]
        memory.add(tips(300, 303))
        assert search_texts(memory, "key 301", 1) == ["tip 301"]


def test_a_full_disk_costs_the_index_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(index, "write_bytes_atomic", no_room)
    filled(path)
    assert "memory.db-index was not written" in caplog.text
    assert "No space left on device" in caplog.text
    with opened(path) as memory:
        built = memory.store.index
        assert search_texts(memory, "key 9", 1) == ["tip 9"]
        assert memory.store.index is built, "it is kept, and not built for every search"


def test_an_index_full_of_what_is_gone_is_built_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SAMPLE_PER_LIST", 1)
    filled(path)
    with opened(path) as memory:
        memory.search("task", "key 0", 1)
        first = memory.store.index.lists
        for number in range(1, 200, 40):
            exchange.enable_tips(memory.store, range(number, number + 40), enabled=False)
            assert search_texts(memory, "key 250", 1) == ["tip 250"]
        assert memory.store.index.lists is not first
        assert len(memory.store.index.lists or ()) < 150


def test_a_refused_report_costs_no_index(path: Path) -> None:
    filled(path)
    with opened(path) as memory:
        memory.search("task", "key 0", 1)
        lists = memory.store.index.lists
        with pytest.raises(MemoryStoreError, match="waits for its report"):
            memory.report_attempt("unknown", 1.0)
        assert memory.store.index.lists is lists is not None


@pytest.mark.parametrize("scope", ["family", "env", "all"])
def test_beyond_the_task_the_index_finds_what_may_be_read(path: Path, scope: str) -> None:
    tasks = [
        Task(f"{split} {family} {number}", "house", 0, split, {}, family)
        for split in ("train", "test", "validation") for family in ("maze", "vault") for number in range(10)
    ]  # fmt: skip
    rng = random.Random(0)
    with opened(path, scope=scope) as memory, opened(path, scope=scope, exact_below=10**6) as exact:
        memory.register_tasks(tasks)
        memory.add([Tip(rng.choice(tasks).id, f"tip {n}", f"key {n}", 0.0) for n in range(400)])
        for reader in ("train maze 3", "test maze 3"):
            readable = search_texts(exact, "key 7", 400, task=reader)
            assert search_texts(memory, "key 7", 400, task=reader) == readable
            assert memory.store.index.lists is not None
            assert exact.store.index.lists is None
            assert not any(tip.namespace.startswith("validation") for tip in memory.search(reader, "key 7", 400))
            hits = sum(search_texts(memory, f"key {text.split()[1]}", 1, task=reader) == [text] for text in readable)
            assert hits >= 0.9 * len(readable)
        memory.register_tasks([Task("train maze 3", "house", 0, "validation", {}, "maze")])
        memory.add([Tip("train maze 3", "of a game held back", "key 7", 0.0)])
        for reader in (memory, exact):
            assert "of a game held back" not in search_texts(reader, "key 7", 400, task="train maze 4")

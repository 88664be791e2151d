"""Who goes when there are too many tips, what is kept of them, and how they come back."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import TipMemory, exchange, open_memory
from trailnotes.memory.exchange import rewind_to_snapshot
from trailnotes.memory.tip_stats import TipEffect, TipExposure
from trailnotes.types import Task, Tip


class LaxConfig(MemoryConfig):
    distilled_readers: ClassVar[int] = 2


def memory_of(path: Path | None = None, **settings: object) -> TipMemory:
    return open_memory(path, LaxConfig(threshold=-1, **settings), clock=lambda: "today")


def write(memory: TipMemory, *texts: str, namespace: str = "task", **fields: object) -> None:
    memory.add([Tip(namespace, text, "a hall", 0.0, **fields) for text in texts])


def read(memory: TipMemory, tip_id: int, *gains: float | None) -> None:
    with memory.store.transaction():
        memory.store.record_exposures(TipExposure(tip_id, 1.0, gain) for gain in gains)


def found(memory: TipMemory, namespace: str = "task") -> set[str]:
    return {tip.text for tip in memory.search(namespace, "a hall", 99)}


def marks(memory: TipMemory) -> dict[int, tuple[str, str]]:
    return {tip: (mark.rule, mark.by) for tip, mark in memory.store.load_retirements().items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run's memory of three tips, of which the first has made room."""
    with memory_of(tmp_path / "memory.db", capacity=2) as memory:
        write(memory, "one", "two", "three")
    return tmp_path / "memory.db"


# --- who goes -----------------------------------------------------------------------------------------------------


def test_the_oldest_goes_and_is_marked() -> None:
    memory = memory_of(capacity=2)
    write(memory, "one", "two", "three")
    assert found(memory) == {"two", "three"}
    (mark,) = memory.store.load_retirements().values()
    assert mark == ("oldest", 4, "today", "memory.capacity = 2"), "after three writes of tips"
    assert memory.stats() == memory.stats() | {"tips": 2, "enabled": 2, "retired": 1}


def test_a_scope_shares_one_capacity_and_each_split_has_its_own() -> None:
    memory = memory_of(capacity=2, scope="family")
    house = [Task(name, "house", split=split, family="maze") for name, split in (("a", "train"), ("b", "train"))]
    held = Task("held", "house", split="test", family="maze")
    memory.register_tasks([*house, held, Task("c", "house", family="vault")])
    for name in ("a", "b", "c", "held", "never met"):
        write(memory, f"first of {name}", f"second of {name}", namespace=name)
    assert set(marks(memory)) == {1, 2}, "those of a, when b's came"
    write(memory, "third", namespace="held")
    assert found(memory, "held") == {"first of b", "second of b", "second of held", "third"}


# --- what is distilled --------------------------------------------------------------------------------------------


def test_a_named_measure_counts_once_and_nothing_is_written_without() -> None:
    memory = memory_of()
    write(memory, "one")
    before = memory.store.sequence
    memory.record_effects([])
    assert memory.store.sequence == before
    for _ in range(2):
        memory.record_effects([TipEffect(1, 2.0)], once="batch")
    assert memory.store.load_reader_stats(1)[1].measured == 1


# --- how they come back, and what their owner sees ----------------------------------------------------------------


def test_a_run_that_goes_back_has_the_marks_of_then_and_its_owner_s_wishes(path: Path, tmp_path: Path) -> None:
    with memory_of(path, capacity=2) as memory:
        memory.snapshot(tmp_path / "saved.db")
        before = memory.store._query("SELECT * FROM tips")
        write(memory, "four", "one")
        memory.record_effects([TipEffect(1, 0.0)])
        assert marks(memory).keys() == {2, 3}
        assert rewind_to_snapshot(memory, tmp_path / "saved.db", tmp_path / "late.jsonl") == 2
        assert memory.store._query("SELECT * FROM tips") == before
        exchange.enable_tips(memory.store, [1])
        write(memory, "five")
        rewind_to_snapshot(memory, tmp_path / "saved.db", tmp_path / "late.jsonl")
        assert found(memory) == {"one", "two", "three"}
        assert not marks(memory)

"""Merging memories: the join of a semilattice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes.commands import main
from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import open_memory
from trailnotes.memory.exchange import enable_tips, export_tips, open_store
from trailnotes.memory.merging import merge, merge_tips
from trailnotes.memory.retrieval import CachedEmbedder, HashingEmbedder
from trailnotes.memory.schema import EmbedderIdentity
from trailnotes.memory.store import TipStore
from trailnotes.memory.tipfile import read_tips, write_tips
from trailnotes.memory.tips import TipMemory, clean_tip
from trailnotes.types import Task, Tip

ANY = MemoryConfig(threshold=-1)
TIPS = st.lists(
    st.builds(
        Tip,
        namespace=st.sampled_from(["cellar", "attic"]),
        text=st.sampled_from(["look up", "look  up", "mind the step", "<b>go</b>", "go"]),
        key=st.sampled_from(["a damp room", "stairs"]),
        score=st.sampled_from([0.0, 0.5, 1.0]),
        max_score=st.sampled_from([1.0, 2.0]),
        action=st.sampled_from(["", "up"]),
        id=st.none() | st.integers(1, 9),
        support=st.integers(1, 4),
        step=st.integers(0, 2),
        model=st.sampled_from(["", "m"]),
        version=st.integers(0, 1),
        run=st.sampled_from(["", "a", "b"]),
        created=st.sampled_from(["", "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"]),
        imported=st.booleans(),
        enabled=st.booleans(),
    ),
    max_size=8,
)


def filled(path: Path, *tips: Tip) -> Path:
    with open_memory(path, ANY, clock=lambda: "") as memory:
        memory.add(tips)
    return path


def told(path: Path) -> list[Tip]:
    """The tips of a memory, without their ids."""
    return [replace(tip, id=None) for tip in read_tips(path)]


# --- merge


@settings(max_examples=40)
@given(TIPS, TIPS, TIPS)
def test_a_join_knows_no_order_and_no_twice(a: list[Tip], b: list[Tip], c: list[Tip]) -> None:
    assert merge_tips(a, b) == merge_tips(b, a)
    assert merge_tips(a, merge_tips(b, c)) == merge_tips(merge_tips(a, b), c) == merge_tips(a, b, c)
    once = merge_tips(a, b)
    assert merge_tips(once) == merge_tips(once, once) == merge_tips(once, a) == merge_tips(once, b) == once


@settings(max_examples=40)
@given(TIPS, TIPS)
def test_a_join_keeps_what_was_said_and_nothing_else(a: list[Tip], b: list[Tip]) -> None:
    both = merge_tips(a, b)
    said = [(tip.namespace, clean_tip(tip.text), tip.key, tip.imported) for tip in a + b]
    assert Counter((tip.namespace, tip.text, tip.key, tip.imported) for tip in both) == Counter(set(said))
    for tip in both:
        alike = [each for each, name in zip(a + b, said, strict=True)
                 if name == (tip.namespace, tip.text, tip.key, tip.imported)]  # fmt: skip
        assert (tip.score, tip.max_score) == max((each.score, each.max_score) for each in alike)
        assert tip.support == max(each.support for each in alike)
        assert tip.enabled == all(each.enabled for each in alike)
        assert tip.created == min(each.created for each in alike)


@settings(max_examples=8)
@given(TIPS, TIPS)
def test_stores_merge_as_their_tips_do(tmp_path_factory: pytest.TempPathFactory, a: list[Tip], b: list[Tip]) -> None:
    folder = tmp_path_factory.mktemp("merge")
    for name, tips in (("a.jsonl", a), ("b.jsonl", b)):
        write_tips(folder / name, [replace(tip, id=None) for tip in tips])
    merge(folder / "ab.db", [folder / "a.jsonl", folder / "b.jsonl"])
    merge(folder / "ba.db", [folder / "b.jsonl", folder / "a.jsonl"])
    merge(folder / "again.db", [folder / "ab.db", folder / "a.jsonl", folder / "ab.db"])
    assert told(folder / "ab.db") == told(folder / "ba.db") == told(folder / "again.db") == merge_tips(a, b)


def test_a_merged_memory_is_one(tmp_path: Path) -> None:
    """It is searched and trained with as any other, beyond the task, too; its sources are untouched."""
    task = Task("cellar", "maze", seed=1, family="rooms")
    other = Task("attic", "maze", seed=2, family="rooms")
    a = filled(tmp_path / "a.db", Tip("cellar", "look up", "a damp room", 1.0))
    (tmp_path / "run").mkdir()
    b = filled(tmp_path / "run/memory.db", Tip("attic", "mind the lamp", "a dusty room", 2.0, enabled=False))
    wide = MemoryConfig(threshold=-1, scope="family")
    for path in (a, b):
        with open_memory(path, wide) as memory:
            memory.register_tasks([task] if path == a else [other])
    before = [path.read_bytes() for path in (a, b)]
    assert merge(tmp_path / "both.db", [a, tmp_path / "run"]) == (2, 2)
    assert [path.read_bytes() for path in (a, b)] == before
    with open_memory(tmp_path / "both.db", wide) as memory:
        assert [tip.text for tip in memory.search("attic", "a room", 9)] == ["look up"]
        enable_tips(memory.store, [tip.id or 0 for tip in memory.store.load_tips("attic")])
        assert {tip.text for tip in memory.search("cellar", "a room", 9)} == {"look up", "mind the lamp"}
        with TipStore(a) as mine:
            assert memory.store.lineage != mine.lineage


def test_what_cannot_be_merged_leaves_nothing(tmp_path: Path) -> None:
    a, out = filled(tmp_path / "a.db", Tip("cellar", "look up", "k", 1.0)), tmp_path / "out.db"
    (tmp_path / "bad.jsonl").write_text("{\n")
    (tmp_path / "cut.db").write_bytes(a.read_bytes()[:3000])
    for source, reason in [
        ("bad.jsonl", r"bad\.jsonl has 1 malformed.*line 1"),
        ("cut.db", r"cut\.db.*damaged"),
        ("none", "cannot read .*none"),
    ]:
        with pytest.raises(MemoryStoreError, match=reason):
            merge(out, [a, tmp_path / source])
        assert not out.exists()
    with pytest.raises(MemoryStoreError, match="exists: name a new file"):
        merge(a, [a])
    with pytest.raises(MemoryStoreError, match="folder exists"):
        merge(tmp_path / "no" / "out.db", [a])


def test_another_embedder_is_asked_for_by_name(tmp_path: Path) -> None:
    narrow = HashingEmbedder(64)
    narrow.name = "narrow"
    with TipStore(tmp_path / "n.db", EmbedderIdentity("narrow", 64)) as store:
        TipMemory(store, CachedEmbedder(narrow), ANY).add([Tip("attic", "mind the lamp", "k", 1.0)])
    a = filled(tmp_path / "a.db", Tip("cellar", "look up", "k", 1.0))
    with pytest.raises(
        MemoryStoreError, match=r"hashing \(256 dimensions\), narrow \(64 dimensions\): say by --embedder"
    ):
        merge(tmp_path / "out.db", [a, tmp_path / "n.db"])
    assert merge(tmp_path / "out.db", [a, tmp_path / "n.db"], embedder="hashing").tips == 2
    with TipStore(tmp_path / "out.db") as store:
        assert store.identity == ("hashing", 256)


# --- the commands


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = filled(tmp_path / "a.db", Tip("cellar\x1b[31m", "look up", "k", 1.0), Tip("attic", "mind the lamp", "k", 1.0))
    out = tmp_path / "out.db"
    assert main(["memory", "merge", str(out), str(a), str(a)]) == 0
    assert capsys.readouterr().out == f"2 tips written to {out}, of 4 read from 2 memories\n"
    assert main(["memory", "list", str(a)]) == 0
    assert "cellar\\x1b[31m" in capsys.readouterr().out, "names from elsewhere move no cursor"
    assert main(["memory", "merge", str(out), str(a)]) == 2
    assert "exists: name a new file" in capsys.readouterr().err


def test_what_is_retired_comes_along_nowhere(tmp_path: Path) -> None:
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    for path, capacity in ((here, 1), (there, 9)):
        with open_memory(path, MemoryConfig(capacity=capacity), clock=lambda: "") as memory:
            memory.add([Tip("cellar", text, "a damp room", 1.0) for text in ("look up", "look down")])
    with open_store(here) as store:
        assert export_tips(store, tmp_path / "here.jsonl") == 1
        assert len(store.load_retirements()) == 1
    for source in (here, tmp_path / "here.jsonl"):
        assert [tip.text for tip in read_tips(source)] == ["look down"]
    assert merge(tmp_path / "alone.db", [here]).tips == 1
    assert merge(tmp_path / "both.db", [here, there]).tips == 2
    with open_store(tmp_path / "both.db") as store:
        assert store.stats()["enabled"] == 2, "one that had to make room in one of them is on where another had room"

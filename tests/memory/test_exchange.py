"""Tips belong to their owner: look, edit, move, and go back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trailnotes.config.schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import clean_tip, open_memory, reembed
from trailnotes.memory import exchange as p
from trailnotes.memory.retrieval import CachedEmbedder, HashingEmbedder
from trailnotes.memory.tipfile import read_tips
from trailnotes.memory.tips import TipMemory
from trailnotes.types import Tip

ANY = MemoryConfig(threshold=-1)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[TipMemory]:
    with open_memory(tmp_path / "memory.db", ANY, clock=lambda: "") as memory:
        memory.add([Tip("cellar", f"tip {n}", f"a damp room {n}", float(n), 2.0) for n in range(3)])
        memory.add([Tip("attic", "mind the lamp", "a dusty room", 5.0, model="m", run="r")])
        yield memory


def lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def record(**fields: object) -> dict[str, object]:
    return {"namespace": "cellar", "text": "from afar", "key": "a damp room", "score": 1, **fields}


def test_a_tip_of_ones_own(memory: TipMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    tip = p.add_tip(memory.store, "cellar", '- look "up" \n')
    assert (tip.text, tip.key, tip.score) == ("look 'up'", '- look "up" \n', 2.0)
    assert (tip.imported, tip.model) == (True, "by hand")
    assert memory.search("cellar", "q", 1)[0].id == tip.id == 5, "as good as the best, and newer"
    add, late = p.add_imported, Tip("stairs", "look down", "q", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(p, "add_imported", lambda *new: add(*new) + memory.add([late]))  # a run that writes meanwhile
        other = p.add_tip(memory.store, "stairs", "mind the gap", key="a steep stair", score=0.5, enabled=False)
    assert (other.key, other.score, other.max_score, other.enabled) == ("a steep stair", 0.5, 1.0, False)
    for text, score, message in (
        ("...", 1.0, "needs a letter"), ("up", float("inf"), "finite"), ("look 'up'", 1.0, "already"),
    ):  # fmt: skip
        with pytest.raises(MemoryStoreError, match=message):
            p.add_tip(memory.store, "cellar", text, key=tip.key, score=score)
    with pytest.raises(MemoryStoreError, match="a tip needs a task"):
        p.add_tip(memory.store, " ", "up")
    assert memory.stats()["tips"] == 7
    memory.add([Tip("well", "by hand", "q", 1.0), Tip("well", "by a run", "q", 52.0, 100.0)])
    assert memory.store.get_best_score("well") == (52.0, 100.0), "a run knows the highest score"


def test_export_is_readable_and_ordered(memory: TipMemory, tmp_path: Path) -> None:
    memory.add([Tip("cellar", "tip 0", "caf\u00e9", 9.0)])
    (path := tmp_path / "tips.jsonl").write_text("old")
    assert p.export_tips(memory.store, path) == 4
    exported = path.read_text(encoding="utf-8")
    assert "caf\u00e9" in exported
    header, *records = [json.loads(line) for line in exported.splitlines()]
    assert (header["format"], header["version"], header["tips"]) == ("trailnotes-tips", 1, 4)
    assert header["memory"] == memory.store.lineage
    assert [r["text"] for r in records] == ["tip 1", "tip 2", "mind the lamp", "tip 0"]
    assert records[3] == asdict(p.require_tip(memory.store, 1))
    assert p.export_tips(memory.store, path, "attic") == 1
    for name, message in (("memory.db/tips.jsonl", "nothing was exported"), ("memory.db", "is a memory file")):
        with pytest.raises(MemoryStoreError, match=message):
            p.export_tips(memory.store, tmp_path / name)


def test_imported_tips_are_marked_and_wait(memory: TipMemory, tmp_path: Path) -> None:
    path = lines(tmp_path / "in.jsonl", record(), record(text="another", enabled=True, imported=False, id=1, support=4))
    assert p.import_tips(memory.store, path) == (2, 0)
    assert p.import_tips(memory.store, path) == (0, 2)
    assert len(memory.search("cellar", "q", 9)) == 3
    imported = p.list_tips(memory.store, limit=2)
    assert [(tip.imported, tip.enabled, tip.support) for tip in imported] == [(True, False, 4), (True, False, 1)]
    p.enable_tips(memory.store, [tip.id for tip in imported])
    assert {tip.text for tip in memory.search("cellar", "q", 9)} == {"tip 0", "tip 1", "tip 2", "from afar", "another"}


@pytest.mark.parametrize("name", ["memory.db", ""])
def test_import_from_another_memory(memory: TipMemory, tmp_path: Path, name: str) -> None:
    """A file, or the run directory that it lies in, live or not."""
    p.import_tips(memory.store, lines(tmp_path / "in.jsonl", record()))
    assert [tip.enabled for tip in read_tips(tmp_path / name)] == [True, True, True, True, False]
    with open_memory(None, ANY, clock=lambda: "") as theirs:
        assert p.import_tips(theirs.store, tmp_path / name, enable=True) == (5, 0)
        expected = [replace(tip, imported=True, enabled=True) for tip in memory.store.load_tips()]
        assert theirs.store.load_tips() == expected


@pytest.mark.parametrize("name", ["memory.db", "tips.jsonl"])
def test_a_tip_that_was_switched_off_is_carried_nowhere(memory: TipMemory, tmp_path: Path, name: str) -> None:
    with memory.store.transaction():
        memory.store.retire([1], "oldest", "by a test")
    p.enable_tips(memory.store, [1, 2], enabled=False)
    p.export_tips(memory.store, tmp_path / "tips.jsonl")
    with open_memory(None, ANY, clock=lambda: "") as theirs:
        assert p.import_tips(theirs.store, tmp_path / name, enable=True) == (2, 0)
        assert [tip.text for tip in theirs.store.load_tips()] == ["tip 2", "mind the lamp"]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NUMBER = st.floats(-1e30, 1e30)
TIPS = st.builds(
    Tip, namespace=TEXT, text=TEXT.map(clean_tip).filter(bool), key=TEXT, score=NUMBER, max_score=NUMBER,
    action=TEXT.map(clean_tip), support=st.integers(1, 2**31 - 1), step=st.integers(0, 2**31 - 1), model=TEXT,
    version=st.integers(0, 2**31 - 1), run=TEXT, created=TEXT,
)  # fmt: skip


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TIPS, max_size=5, unique_by=lambda tip: (tip.namespace, tip.text)))
def test_jsonl_round_trip(tmp_path: Path, tips: list[Tip]) -> None:
    path = tmp_path / "tips.jsonl"
    with open_memory(None, ANY, clock=lambda: "") as mine, open_memory(None, ANY, clock=lambda: "") as theirs:
        mine.add(tips)
        assert p.export_tips(mine.store, path) == len(tips)
        assert p.import_tips(theirs.store, path, enable=True) == (len(tips), 0)
        assert [replace(tip, imported=False) for tip in theirs.store.load_tips()] == mine.store.load_tips()
        for tip in tips:
            imported, expected = theirs.search(tip.namespace, "q", 9), mine.search(tip.namespace, "q", 9)
            assert [replace(tip, imported=False) for tip in imported] == expected


def test_reembed(memory: TipMemory, tmp_path: Path) -> None:
    memory.close()
    narrow = HashingEmbedder(64)
    narrow.name = "narrow"
    assert reembed(tmp_path, "narrow", make=lambda name: CachedEmbedder(narrow)) == 4
    with closing(p.open_store(tmp_path)) as store:
        assert store.identity == ("narrow", 64)
        config = MemoryConfig(order=("similarity",), threshold=0.99)
        (nearest,) = TipMemory(store, narrow, config).search("attic", "a dusty room", 1)
    assert nearest.text == "mind the lamp"
    with pytest.raises(MemoryStoreError, match="vectors of narrow"):
        open_memory(tmp_path / "memory.db", ANY)
    assert reembed(tmp_path, "hashing") == 4
    open_memory(tmp_path / "memory.db", ANY).close()


def test_what_a_memory_has_of_its_own_is_not_imported_again(memory: TipMemory, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "memory.db")
    for path in (tmp_path, tmp_path / "memory.db", tmp_path / "." / "memory.db", tmp_path / "link.db"):
        with pytest.raises(MemoryStoreError, match="is the memory itself: name another file"):
            p.import_tips(memory.store, path)
    p.export_tips(memory.store, tmp_path / "tips.jsonl")
    p.delete_tips(memory.store, [2])
    assert p.import_tips(memory.store, tmp_path / "tips.jsonl") == (1, 3), "what was deleted comes back"
    assert sorted(tip.text for tip in p.list_tips(memory.store)) == ["mind the lamp", "tip 0", "tip 1", "tip 2"]

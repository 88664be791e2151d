"""Tips belong to their owner: look, edit, move, and go back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import clean_tip, open_memory, reembed
from trailnotes.memory import exchange as p
from trailnotes.memory import store as store_module
from trailnotes.memory.retrieval import CachedEmbedder, HashingEmbedder
from trailnotes.memory.tip_stats import TipExposure
from trailnotes.memory.tipfile import read_tips
from trailnotes.memory.tips import TipMemory
from trailnotes.types import Tip

ANY = MemoryConfig(threshold=-1)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[TipMemory]:
    with open_memory(tmp_path / "memory.db", ANY, clock=lambda: "") as memory:
        memory.add([Tip("cellar", f"tip {n}", f"a damp room {n}", float(n)) for n in range(3)])
        memory.add([Tip("attic", "mind the lamp", "a dusty room", 5.0, model="m", run="r")])
        yield memory


def lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def record(**fields: object) -> dict[str, object]:
    return {"namespace": "cellar", "text": "from afar", "key": "a damp room", "score": 1, **fields}


# --- looking and editing ------------------------------------------------------------------------------------------


def test_looking(memory: TipMemory) -> None:
    store = memory.store
    assert [tip.id for tip in p.list_tips(store)] == [4, 3, 2, 1]
    assert [tip.id for tip in p.list_tips(store, "cellar", limit=2)] == [3, 2]
    assert store.count_by_namespace() == {"attic": 1, "cellar": 3}
    assert p.require_tip(store, 4).text == "mind the lamp"
    ((nearest, similarity),) = p.search_tips(store, "cellar", "a damp room 1", 1)
    assert (nearest.id, similarity) == (2, 1.0)
    assert p.search_tips(store, "cellar", "boiled eggs", threshold=0.9) == []
    for tip_id in (9, 2**63, -(2**70)):  # SQLite has no word for the last two
        with pytest.raises(MemoryStoreError, match=rf"has no tip {tip_id}.*memory list"):
            p.require_tip(store, tip_id)


def test_a_list_reads_no_more_tips_than_it_shows(memory: TipMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = memory.store, store_module.parse_tip_row
    with store.transaction():
        store.record_exposures(
            [TipExposure(1, 1.0, 0.5), TipExposure(1, 1.0, 0.5), TipExposure(2, 1.0, 0.9), TipExposure(3, 0.0, None)]
        )
        store.retire([4], "oldest", "room")
    orders: dict[p.By, list[int]] = {
        "recency": [3, 2, 1], "score": [3, 2, 1], "shown": [1, 3, 2], "worth": [2, 1, 3],
    }  # fmt: skip
    for by, order in orders.items():
        assert [tip.id for tip in p.list_tips(store, by=by)] == order
        made: list[object] = []
        monkeypatch.setattr(store_module, "parse_tip_row", lambda row, made=made: made.append(row) or read(row))
        assert [tip.id for tip in p.list_tips(store, by=by, limit=2)] == order[:2]
        assert len(made) == 2
    assert [tip.id for tip in p.list_tips(store, retired=True)] == [4]
    assert len(p.list_tips(store, limit=2**70)) == 3


def test_an_empty_memory_is_made_once(tmp_path: Path) -> None:
    with p.create_store(tmp_path / "new.db", "hashing") as store:
        assert (store.stats()["tips"], store.identity.dim) == (0, 256)
        assert p.add_tip(store, "cellar", "mind the step").id == 1
    with pytest.raises(MemoryStoreError, match="exists: name a new file"):
        p.create_store(tmp_path / "new.db", "hashing")


def test_a_file_of_tips_is_no_damaged_memory(tmp_path: Path) -> None:
    for count in (1, 100):  # shorter than any database, and longer
        path = lines(tmp_path / "tips.jsonl", *[record(text=f"tip {number}") for number in range(count)])
        with pytest.raises(MemoryStoreError, match=r"is no memory file: "):
            p.open_store(path)


def test_a_file_is_found_by_its_run_directory(memory: TipMemory, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "memory.db"):
        with closing(p.open_store(path)) as store:
            assert store.stats()["tips"] == 4


def test_editing(memory: TipMemory) -> None:
    store = memory.store
    memory.search("cellar", "q", 1)  # a page is cached
    assert p.edit_tip(store, 3, ' turn "left" \n').text == "turn 'left'"
    assert memory.search("cellar", "q", 1)[0] == p.require_tip(store, 3)
    for tip_id, text, message in [(3, "\x00!", "needs a letter"), (9, "text", "no tip 9")]:
        with pytest.raises(MemoryStoreError, match=message):
            p.edit_tip(store, tip_id, text)


def test_similarities_stand_beside_what_is_found(memory: TipMemory) -> None:
    found = p.search_tips(memory.store, "cellar", "a damp room 1")
    key, other = HashingEmbedder().embed(["a damp room 1", "a damp room 0"])
    assert [each.tip.id for each in found] == [2, 3, 1], "the newest first among equally similar ones"
    assert [each.similarity for each in found] == pytest.approx([1.0, key @ other, key @ other], abs=1e-6)
    p.enable_tips(memory.store, [2], enabled=False)
    assert [each.tip.id for each in p.search_tips(memory.store, "cellar", "a damp room 1", 1)] == [3]


def test_unknown_names_are_refused(memory: TipMemory, tmp_path: Path) -> None:
    store = memory.store
    for ask in (
        lambda: p.list_tips(store, "celler"),
        lambda: p.search_tips(store, "celler", "q"),
        lambda: p.export_tips(store, tmp_path / "tips.jsonl", "celler"),
    ):
        with pytest.raises(MemoryStoreError, match="no tip of 'celler': it has tips of cellar, attic"):
            ask()
    with open_memory(tmp_path / "empty.db", ANY) as empty, pytest.raises(MemoryStoreError, match="no tip of 'cellar'"):
        p.list_tips(empty.store, "cellar")


def test_a_corrected_tip_may_get_a_better_score(memory: TipMemory) -> None:
    assert [tip.id for tip in memory.search("cellar", "q", 9)] == [3, 2, 1]
    assert p.edit_tip(memory.store, 1, "the key is under the mat", score=9).score == 9.0
    assert [tip.id for tip in memory.search("cellar", "q", 9)] == [1, 3, 2]
    assert p.edit_tip(memory.store, 1, score=-1).text == "the key is under the mat"
    with pytest.raises(MemoryStoreError, match="nothing to change"):
        p.edit_tip(memory.store, 1)
    with pytest.raises(MemoryStoreError, match="finite number"):
        p.edit_tip(memory.store, 1, score=float("nan"))


def test_a_tip_of_ones_own(memory: TipMemory) -> None:
    tip = p.add_tip(memory.store, "cellar", '- look "up" \n')
    assert (tip.text, tip.key, tip.score, tip.imported, tip.model) == (
        "look 'up'",
        '- look "up" \n',
        2.0,
        True,
        "by hand",
    )
    assert memory.search("cellar", "q", 1)[0].id == tip.id == 5, "as good as the best, and newer"
    other = p.add_tip(memory.store, "stairs", "mind the gap", key="a steep stair", score=0.5, enabled=False)
    assert (other.key, other.score, other.max_score, other.enabled) == ("a steep stair", 0.5, 1.0, False)
    for text, score, message in [
        ("...", 1.0, "needs a letter"),
        ("up", float("inf"), "finite"),
        ("look 'up'", 1.0, "already"),
    ]:
        with pytest.raises(MemoryStoreError, match=message):
            p.add_tip(memory.store, "cellar", text, key=tip.key, score=score)
    assert memory.stats()["tips"] == 6


def test_switching_off_and_on(memory: TipMemory) -> None:
    assert p.enable_tips(memory.store, [2, 3], enabled=False) == 2
    assert p.enable_tips(memory.store, [3], enabled=False) == 0
    assert [tip.id for tip in memory.search("cellar", "q", 9)] == [1]
    assert p.enable_tips(memory.store, [1, 2]) == 1
    assert [tip.id for tip in memory.search("cellar", "q", 9)] == [2, 1]
    with pytest.raises(MemoryStoreError, match="no tip 9"):
        p.enable_tips(memory.store, [3, 9])
    assert not p.require_tip(memory.store, 3).enabled, "all or none"


def test_all_are_switched_in_two_steps(memory: TipMemory) -> None:
    store, asked = memory.store, list[str]()
    memory.add([Tip("cellar", f"more {number}", "k", 0.0) for number in range(200)])
    assert p.enable_tips(store, [2], enabled=False) == 1
    with store.transaction():
        store.retire([3], "oldest", "room")
    before = len(store.load_owner_changes(after=0))
    memory.search("cellar", "q", 1)  # a page is cached
    store._connection.set_trace_callback(asked.append)
    assert p.enable_all(store, enabled=False) == 202
    store._connection.set_trace_callback(None)
    assert len(set(asked)) < 20  # triggers name the same ones again and again
    assert memory.search("cellar", "q", 9) == []
    assert [change.fields for change in store.load_owner_changes(after=before)] == [{"enabled": False}] * 202
    assert p.enable_all(store) == 203, "that which was off before, too"
    assert [tip.id for tip in store.load_tips() if not tip.enabled] == [3], "what is retired stays so"
    assert p.enable_all(store) == 0


def test_deleting(memory: TipMemory) -> None:
    with pytest.raises(MemoryStoreError, match="no tip 9"):
        p.delete_tips(memory.store, [1, 9])
    assert p.delete_tips(memory.store, [1, 3, 1]) == 2
    assert [tip.id for tip in memory.search("cellar", "q", 9)] == [2]


# --- export and import --------------------------------------------------------------------------------------------


def test_export_is_readable_and_ordered(memory: TipMemory, tmp_path: Path) -> None:
    memory.add([Tip("cellar", "tip 0", "caf\u00e9", 9.0)])
    path = tmp_path / "tips.jsonl"
    path.write_text("old")
    assert p.export_tips(memory.store, path) == 4
    exported = path.read_text(encoding="utf-8")
    assert "caf\u00e9" in exported
    header, *records = [json.loads(line) for line in exported.splitlines()]
    assert (header["format"], header["version"], header["tips"]) == ("trailnotes-tips", 1, 4)
    assert header["memory"] == memory.store.lineage
    assert [r["text"] for r in records] == ["tip 1", "tip 2", "mind the lamp", "tip 0"]
    assert records[3] == asdict(p.require_tip(memory.store, 1))
    assert p.export_tips(memory.store, path, "attic") == 1
    with pytest.raises(MemoryStoreError, match="nothing was exported"):
        p.export_tips(memory.store, tmp_path / "memory.db" / "tips.jsonl")


def test_a_failed_export_leaves_the_old_file(memory: TipMemory, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "tips.jsonl"
    path.write_text("old")
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(MemoryStoreError, match="No space left"):
        p.export_tips(memory.store, path)
    assert path.read_text() == "old"


def test_imported_tips_are_marked_and_wait(memory: TipMemory, tmp_path: Path) -> None:
    path = lines(tmp_path / "in.jsonl", record(), record(text="another", enabled=True, imported=False, id=1, support=4))
    assert p.import_tips(memory.store, path) == (2, 0)
    assert p.import_tips(memory.store, path) == (0, 2)
    assert len(memory.search("cellar", "q", 9)) == 3
    imported = p.list_tips(memory.store, limit=2)
    assert all(tip.imported and not tip.enabled for tip in imported)
    assert imported[0].support == 4
    p.enable_tips(memory.store, [tip.id for tip in imported])
    assert {tip.text for tip in memory.search("cellar", "q", 9)} == {"tip 0", "tip 1", "tip 2", "from afar", "another"}


def test_import_enabled_at_capacity(memory: TipMemory, tmp_path: Path) -> None:
    path = lines(tmp_path / "in.jsonl", record(text="one"), record(text="two"))
    assert p.import_tips(memory.store, path, enable=True, config=MemoryConfig(capacity=3)) == (2, 0)
    assert [tip.text for tip in p.list_tips(memory.store, "cellar")] == ["two", "one", "tip 2"]


def test_an_import_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lines(tmp_path / "in.jsonl", *(record(text=text) for text in ("one", "two", "one", "three", "four")))
    add, batches = p.add_imported, []

    def add_one_batch(memory: TipMemory, tips: list[Tip]) -> p.ImportResult:
        if batches:
            raise KeyboardInterrupt
        batches.append(tips)
        return add(memory, tips)

    with open_memory(None, ANY, clock=lambda: "") as whole, open_memory(None, ANY, clock=lambda: "") as parts:
        assert p.import_tips(whole.store, path) == (4, 1)
        monkeypatch.setattr(p, "IMPORT_BATCH", 2)
        with monkeypatch.context() as patch:
            patch.setattr(p, "add_imported", add_one_batch)
            with pytest.raises(KeyboardInterrupt):
                p.import_tips(parts.store, path)
        assert [tip.text for tip in parts.store.load_tips()] == ["one", "two"]
        assert p.import_tips(parts.store, path) == (2, 3)
        assert parts.store.load_tips() == whole.store.load_tips()


def test_a_pipe_is_refused_and_not_waited_for(memory: TipMemory, tmp_path: Path) -> None:
    """What it says could not be read again, and perhaps nobody writes to it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(MemoryStoreError, match=r"cannot read .*pipe \(it is no regular file\)"):
        p.import_tips(memory.store, pipe)
    with pytest.raises(MemoryStoreError, match="pipe"):
        p.open_store(pipe)
    assert memory.stats()["tips"] == 4


@pytest.mark.parametrize("name", ["memory.db", ""])
def test_import_from_another_memory(memory: TipMemory, tmp_path: Path, name: str) -> None:
    """A file, or the run directory that it lies in, live or not."""
    p.enable_tips(memory.store, [1], enabled=False)
    assert [tip.enabled for tip in read_tips(tmp_path / name)] == [False, True, True, True]
    with open_memory(None, ANY, clock=lambda: "") as theirs:
        assert p.import_tips(theirs.store, tmp_path / name, enable=True) == (4, 0)
        expected = [replace(tip, imported=True, enabled=True) for tip in memory.store.load_tips()]
        assert theirs.store.load_tips() == expected


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[1]", json.dumps(record())[:-5]), pytest.param("[" * 100_000, id="nested"),
        *(json.dumps(record(**fields)) for fields in (
            {"mood": "good"}, {"text": 7}, {"text": "\x00 ..."}, {"score": "high"}, {"score": True},
            {"score": float("nan")}, {"max_score": float("inf")}, {"score": 10**400}, {"version": 2**63},
            {"enabled": 1},
        )),
        json.dumps({"namespace": "cellar", "text": "t", "key": "k"}), '"\udcff"',
    ],
)  # fmt: skip
def test_malformed_lines_are_named_and_nothing_is_imported(
    memory: TipMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(p, "IMPORT_BATCH", 1)  # even what stands before it
    path = tmp_path / "in.jsonl"
    lines = [json.dumps(record()), "", line, json.dumps(record(text="last"))]
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    with pytest.raises(MemoryStoreError, match=r"in\.jsonl has 1 malformed lines.*line 3: "):
        p.import_tips(memory.store, path)
    with pytest.raises(MemoryStoreError, match="cannot read"):
        p.import_tips(memory.store, tmp_path / "missing.jsonl")
    assert memory.stats()["tips"] == 4


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NUMBER = st.floats(allow_nan=False, allow_infinity=False, width=64)
TIPS = st.builds(
    Tip,
    namespace=TEXT,
    text=TEXT.map(clean_tip).filter(bool),
    key=TEXT,
    score=NUMBER,
    max_score=NUMBER,
    action=TEXT.map(clean_tip),
    support=st.integers(1, 2**31 - 1),
    step=st.integers(0, 2**31 - 1),
    model=TEXT,
    version=st.integers(0, 2**31 - 1),
    run=TEXT,
    created=TEXT,
)


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
            found, expected = theirs.search(tip.namespace, "q", 9), mine.search(tip.namespace, "q", 9)
            assert [replace(tip, imported=False) for tip in found] == expected


# --- other embedders ----------------------------------------------------------------------------------------------


def test_reembed(memory: TipMemory, tmp_path: Path) -> None:
    memory.close()

    class Narrow(HashingEmbedder):
        def __init__(self) -> None:
            super().__init__(64)
            self.name = "narrow"

    assert reembed(tmp_path, "narrow", make=lambda name: CachedEmbedder(Narrow())) == 4
    with closing(p.open_store(tmp_path)) as store:
        assert store.identity == ("narrow", 64)
        config = MemoryConfig(order=("similarity",), threshold=0.99)
        found = TipMemory(store, Narrow(), config).search("attic", "a dusty room", 1)
    assert [tip.text for tip in found] == ["mind the lamp"]
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
    assert p.import_tips(memory.store, tmp_path / "tips.jsonl") == (0, 4)
    assert sorted(tip.text for tip in p.list_tips(memory.store)) == ["mind the lamp", "tip 0", "tip 1", "tip 2"]


def test_a_score_above_the_highest_becomes_the_highest(memory: TipMemory) -> None:
    edited = p.edit_tip(memory.store, 1, score=5)
    assert (edited.score, edited.max_score) == (5.0, 5.0) == (p.require_tip(memory.store, 1).score, 5.0)
    lower = p.edit_tip(memory.store, 1, score=0.5)
    assert (lower.score, lower.max_score) == (0.5, 5.0)
    added = p.add_tip(memory.store, "attic", "mind the step", score=7)
    assert (added.score, added.max_score) == (7.0, 7.0)

"""The LangGraph store answers as LangGraph's own does, and outlives the process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from trailnotes.config.schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import open_memory
from trailnotes.memory.exchange import delete_namespace, export_tips, import_tips
from trailnotes.memory.langgraph import TipStore
from trailnotes.types import Tip

NAMES = st.sampled_from([("a",), ("a", "b"), ("a", "c"), ("b", "c")])
KEYS = st.sampled_from(["x", "y", "z"])
VALUES = st.fixed_dictionaries({"n": st.integers(0, 3)}, optional={"text": st.sampled_from(["one door", "two", "?"])})
FILTERS = st.sampled_from([None, {"n": 1}, {"n": {"$gte": 2}}, {"text": "two"}])
CONDITIONS = st.sampled_from(
    [(), (MatchCondition("prefix", ("a", "*")),), (MatchCondition("suffix", ("c",)), MatchCondition("prefix", ("a",)))]
)
NONE = st.none()
OPS = st.one_of(
    st.builds(PutOp, NAMES, KEYS, st.one_of(VALUES, st.none()), NONE, NONE),
    st.builds(PutOp, NAMES, KEYS, VALUES, NONE, NONE),
    st.builds(GetOp, NAMES, KEYS, st.just(True)),
    st.builds(SearchOp, st.sampled_from([(), ("a",), ("a", "b")]), FILTERS, st.integers(1, 3), st.integers(0, 1), NONE),
    st.builds(ListNamespacesOp, CONDITIONS, st.sampled_from([None, 1]), st.integers(1, 3), st.integers(0, 1)),
)


def plain(result: Any) -> Any:
    """A result without its times; found items and names without their order, which a store may choose."""
    if isinstance(result, list):
        return sorted(map(repr, map(plain, result)))
    return (result.namespace, result.key, result.value) if hasattr(result, "key") else result


def listing(store: InMemoryStore, op: ListNamespacesOp) -> list[tuple[str, ...]]:
    """A page of the namespaces that have values: this store lists emptied ones, too."""
    (names,) = store.batch([op._replace(max_depth=None, limit=99, offset=0)])
    filled = {name[: op.max_depth] for name in names if any(item.namespace == name for item in store.search(name))}
    return sorted(filled)[op.offset : op.offset + op.limit]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(OPS, max_size=4), max_size=6))
def test_it_answers_as_the_store_in_memory(batches: list[list[Any]]) -> None:
    theirs = InMemoryStore()
    with open_memory(None) as memory:
        ours = TipStore(memory)
        for ops in batches:
            listings = [listing(theirs, op) if isinstance(op, ListNamespacesOp) else None for op in ops]
            for op, own, other, names in zip(ops, ours.batch(ops), theirs.batch(ops), listings, strict=True):
                if isinstance(op, SearchOp):  # pages of an order that a store may choose
                    assert len(own) == len(other)
                else:
                    assert plain(own) == plain(other if names is None else names)
        for op in (SearchOp((), None, 99), SearchOp(("a",), {"n": {"$gte": 2}}, 99)):
            (whole,) = ours.batch([op])
            assert plain(whole) == plain(theirs.batch([op])[0])
            pages = [ours.batch([op._replace(limit=2, offset=start)])[0] for start in range(0, 12, 2)]
            assert [item for page in pages for item in page] == whole
        for limits in ((None, 99, 1), (1, 99, 0), (None, 2, 0)):  # depth, limit, offset
            asked = ListNamespacesOp(None, *limits)
            assert ours.batch([asked])[0] == listing(theirs, asked)


def test_values_outlive_the_process_and_are_found_by_what_they_say(tmp_path: Path) -> None:
    with open_memory(tmp_path / "memory.db") as memory:
        store = TipStore(memory)
        store.put(("users", "7"), "likes", {"text": "the user likes green tea", "when": [1, {"a": None}]})
        store.put(("users", "7"), "hates", {"content": "loud music"})
        store.put(("users", "7"), "secret", {"text": "green tea, too"}, index=False)
        (created,) = [item.created_at for item in [store.get(("users", "7"), "likes")] if item]
    with open_memory(tmp_path / "memory.db") as memory:
        store = TipStore(memory)
        store.put(("users", "7"), "likes", {"text": "the user likes green tea a lot", "when": []})
        item = store.get(("users", "7"), "likes")
        assert item.value["when"] == []
        assert item.created_at == created < item.updated_at
        first, second, last = asyncio.run(store.asearch(("users",), query="which tea is liked", limit=3))
        assert (first.key, last.key, last.score) == ("likes", "secret", None)
        assert first.score > second.score  # type: ignore[operator]


def test_sessions_show_values_and_their_worth_is_learned() -> None:
    with open_memory(None, MemoryConfig(threshold=-1.0, top_k=1)) as memory:
        TipStore(memory).put(("door",), "key", {"text": "the red key opens it"})
        memory.session("door", "a door", show_tips=False).report(0.0)
        session = memory.session("door", "a door")
        assert "red key" in session.text
        session.report(1.0)
        (stats,) = memory.store.load_reader_stats().values()
        assert stats.worth == 0.5


def test_no_value_is_lost_to_the_capacity_of_tips() -> None:
    with open_memory(None, MemoryConfig(capacity=2)) as memory:
        store = TipStore(memory)
        for place, text in enumerate(("apples are red", "the sky is blue", "snow is white", "coal is black")):
            store.put(("facts",), str(place), {"text": text})
        assert store.search(("facts",), query="apples", limit=1)[0].key == "0"


def test_what_another_wrote_in_the_same_words_stays() -> None:
    with open_memory(None) as memory:
        memory.add([Tip("door", "knock", "a door", 0.0, model="me", imported=True)])
        store = TipStore(memory)
        for key in "ab":
            store.put(("door",), key, {"text": "knock"})
        store.put(("door",), "c", {"text": "wait"})
        for key in "abc":
            store.delete(("door",), key)
        assert [tip.text for tip in memory.store.load_tips()] == ["knock"]


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else []


@pytest.mark.parametrize(
    "value",
    [{"a": deep(100)}, {"a": object()}, {"a": {1, 2}}, {"a": 10**5000}, {"a": float("nan")}, {1: 2, "1": 3}],
    ids=["deep", "object", "set", "digits", "nan", "keys"],
)  # fmt: skip
def test_put_refuses_what_cannot_be_read_back(value: dict[str, Any]) -> None:
    with open_memory(None) as memory:
        store = TipStore(memory)
        with pytest.raises(ValueError, match="'x' in"):
            store.batch([PutOp(("a",), "y", {"text": "kept out, too"}), PutOp(("a",), "x", {"text": "b", **value})])
        assert store.search(()) == []
        assert memory.stats()["tips"] == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
NAMED = st.sampled_from(["text", "content"]) | st.text(max_size=3)


@given(st.dictionaries(NAMED, JSON, max_size=3), st.text(max_size=3))
def test_put_gives_back_or_refuses(value: dict[str, Any], key: str) -> None:
    with open_memory(None) as memory:
        store = TipStore(memory)
        try:
            store.put(("a",), key, value)
        except ValueError:
            assert memory.stats()["tips"] == 0
        else:
            (item,) = store.search(("a",), query="anything")
            assert (item.key, item.value) == (key, value)


def test_a_value_without_text_is_no_tip() -> None:
    with open_memory(None) as memory:
        TipStore(memory).put(("a",), "x", {"n": 1})
        assert memory.stats()["tips"] == 0
        (item,) = TipStore(memory).search(("a",), query="n")
        assert item.score is None


def test_export_and_import_refuse_to_lose_values(tmp_path: Path) -> None:
    with open_memory(tmp_path / "from.db") as memory, open_memory(tmp_path / "to.db") as other:
        TipStore(memory).put(("users", "7"), "likes", {"text": "tea"})
        memory.add([Tip("maze", "go left", "a hall", 1.0)])
        for name in (None, "users.7"):
            with pytest.raises(MemoryStoreError, match=r"1 values .*users\.7"):
                export_tips(memory.store, tmp_path / "tips.jsonl", name)
        with pytest.raises(MemoryStoreError, match=r"1 values .*users\.7"):
            import_tips(other.store, tmp_path / "from.db")
        assert other.stats()["tips"] == 0
        assert export_tips(memory.store, tmp_path / "tips.jsonl", "maze") == 1
        assert delete_namespace(memory.store, "users.7") == 1
        assert TipStore(memory).search(()) == []
        assert export_tips(memory.store, tmp_path / "tips.jsonl") == 1


def test_a_flat_namespace_and_a_time_to_live_are_refused() -> None:
    with open_memory(None) as memory:
        store = TipStore(memory)
        with pytest.raises(ValueError, match="'key' in abc"):
            store.put("abc", "key", {"text": "knock"})  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError, match="TTL is not supported"):
            store.put(("a",), "x", {"text": "b"}, ttl=1)
        with pytest.raises(NotImplementedError, match="retired by their worth"):
            store.batch([PutOp(("a",), "x", {"text": "b"}, ttl=1)])
        assert store.search(()) == []

"""The memory against a plain model of it: random operations by two writers of one file, one with an index, one without.

Asked for all tips, the index must find exactly what is there, whatever was written, deleted, switched, undone,
restored, closed or damaged before; asked for the nearest of some to a tip's own key, it must know where that tip lies.
"""

from __future__ import annotations

import copy
import functools
import random
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from index_workers import Directions

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import TipMemory, exchange, indexed, open_memory
from trailnotes.memory.owner import go_back
from trailnotes.memory.retrieval import Floats
from trailnotes.types import Tip

pytest.importorskip("faiss", reason="the index needs the extra index")

CAPACITY = 40
CONFIG = MemoryConfig(threshold=-0.2, exact_below=1, capacity=CAPACITY, candidates=8)
EXACT = CONFIG.model_copy(update={"index": "exact"})
NAMESPACES = ("one", "two")
WRITERS = st.integers(0, 1)


def drawn(seed: int) -> list[Tip]:
    """Up to thirty tips."""
    rng = random.Random(seed)
    names = [(f"text {rng.randrange(200)}", f"key {rng.randrange(500)}") for _ in range(rng.randrange(30))]
    return [
        Tip(rng.choice(NAMESPACES), text, key, float(rng.randrange(4)), enabled=rng.random() < 0.8)
        for text, key in names
    ]


BATCHES = st.integers(0, 10**6).map(drawn)


@functools.cache
def direction(text: str) -> Floats:
    return Directions().embed([text])[0]


@dataclass
class Model:
    """What the memory is to be: tips by id, and the age of each."""

    tips: dict[int, Tip] = field(default_factory=dict)
    ages: dict[int, int] = field(default_factory=dict)
    writes: int = 0
    last_id: int = 0
    marks: set[str] = field(default_factory=set)

    def add(self, batch: list[Tip], once: str = "") -> int:
        """As `TipMemory.add`: a text that is known counts as support and becomes the newest."""
        if once in self.marks:
            return 0
        self.marks |= {once} - {""}
        for tip in batch:
            self.writes += 1
            same = (own.id for own in self.tips.values() if (own.namespace, own.text) == (tip.namespace, tip.text))
            known = min(same, default=None)
            if known is None:
                known = self.last_id = self.last_id + 1
                self.tips[known] = replace(tip, id=known)
            else:
                old = self.tips[known]
                score = max(old.score, tip.score)
                self.tips[known] = replace(old, key=tip.key, support=old.support + 1, score=score)
            self.ages[known] = self.writes
        for namespace in {tip.namespace for tip in batch}:
            on = [own.id for own in self.tips.values() if own.namespace == namespace and own.enabled]
            for tip_id in sorted(on, key=self.ages.__getitem__)[: max(0, len(on) - CAPACITY)]:
                del self.tips[tip_id]
        return len(batch)

    def search(self, namespace: str, query: str) -> list[int | None]:
        """Ids of what is found, by score, support and age."""
        near = [
            tip for tip in self.tips.values() if tip.namespace == namespace and tip.enabled
            and direction(tip.key) @ direction(query) >= CONFIG.threshold
        ]  # fmt: skip
        return [t.id for t in sorted(near, key=lambda tip: (-tip.score, -tip.support, -self.ages[tip.id or 0]))]


class TwoWriters(RuleBasedStateMachine):
    """Two connections to one file: the first searches through the index."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "memory.db"
        self.memories = [self.opened(0), self.opened(1)]
        self.model = Model()
        self.saved: Model | None = None
        self.by_owner = 0  # changes since the snapshot

    def opened(self, writer: int) -> TipMemory:
        return open_memory(self.path, (CONFIG, EXACT)[writer], embedder=Directions(), clock=lambda: "")

    def teardown(self) -> None:
        for memory in self.memories:
            memory.close()
        self.folder.cleanup()

    @rule(writer=WRITERS, batch=BATCHES)
    def add(self, writer: int, batch: list[Tip]) -> None:
        assert self.memories[writer].add(batch) == self.model.add(batch)

    @rule(writer=WRITERS, batch=BATCHES, name=st.sampled_from("ab"))
    def add_once(self, writer: int, batch: list[Tip], name: str) -> None:
        assert self.memories[writer].add(batch, once=name) == self.model.add(batch, once=name)

    @precondition(lambda self: self.model.tips)
    @rule(writer=WRITERS, data=st.data(), enabled=st.booleans())
    def switch(self, writer: int, data: st.DataObject, enabled: bool) -> None:
        tip_id = data.draw(st.sampled_from(sorted(self.model.tips)))
        exchange.enable_tips(self.memories[writer].store, [tip_id], enabled=enabled)
        self.model.tips[tip_id] = replace(self.model.tips[tip_id], enabled=enabled)
        self.by_owner += 1

    @precondition(lambda self: self.model.tips)
    @rule(writer=WRITERS, data=st.data())
    def delete(self, writer: int, data: st.DataObject) -> None:
        tip_id = data.draw(st.sampled_from(sorted(self.model.tips)))
        exchange.delete_tips(self.memories[writer].store, [tip_id])
        del self.model.tips[tip_id]
        self.by_owner += 1

    @rule(batch=BATCHES, instead=BATCHES)
    def undo(self, batch: list[Tip], instead: list[Tip]) -> None:
        """A transaction is searched in, and fails; what comes next gets its numbers."""
        with pytest.raises(KeyboardInterrupt):
            self._interrupted(batch)
        self.add(0, instead)

    def _interrupted(self, batch: list[Tip]) -> None:
        store = self.memories[0].store
        with store.transaction():
            for tip in batch:
                store.insert(tip, direction(tip.key))
            for namespace in NAMESPACES:
                self.memories[0].search(namespace, "key 0", 3)
            raise KeyboardInterrupt

    @rule()
    def snapshot(self) -> None:
        self.memories[0].snapshot(self.path.with_name("saved.db"))
        self.saved, self.by_owner = copy.deepcopy(self.model), 0

    @precondition(lambda self: self.saved is not None)
    @rule(writer=WRITERS, instead=BATCHES)
    def restore(self, writer: int, instead: list[Tip]) -> None:
        self.memories[writer].restore(self.path.with_name("saved.db"))
        assert self.saved is not None
        self.model, self.by_owner = copy.deepcopy(self.saved), 0
        self.add(writer, instead)

    @precondition(lambda self: self.saved is not None and not self.by_owner)
    @rule(writer=WRITERS, instead=BATCHES)
    def go_back(self, writer: int, instead: list[Tip]) -> None:
        go_back(self.memories[writer], self.path.with_name("saved.db"), self.path.with_name("aside.jsonl"))
        assert self.saved is not None
        self.model = copy.deepcopy(self.saved)
        self.add(writer, instead)

    @rule(writer=WRITERS, harm=st.sampled_from(["", "remove", "cut", "change"]))
    def open_again(self, writer: int, harm: str) -> None:
        self.memories[writer].close()
        file = self.path.with_name("memory.db-index")
        if file.exists() and harm == "remove":
            file.unlink()
        elif file.exists() and harm:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content if harm == "change" else content[:-9])
        self.memories[writer] = self.opened(writer)

    @rule(namespace=st.sampled_from(NAMESPACES), query=st.sampled_from(["key 0", "key 1"]))
    def search(self, namespace: str, query: str) -> None:
        wanted = self.model.search(namespace, query)
        for memory in self.memories:
            assert [tip.id for tip in memory.search(namespace, query, 100)] == wanted
        for tip in [tip for tip in self.model.tips.values() if tip.namespace == namespace and tip.enabled]:
            assert [found.key for found, _ in self.memories[0].nearest(namespace, tip.key, 1)] == [tip.key]

    @invariant()
    def same_rows(self) -> None:
        for memory in self.memories:
            assert {tip.id: tip for tip in memory.store.tips()} == self.model.tips
            assert memory.store.sequence == self.model.writes
            for namespace in NAMESPACES:
                enabled = [tip for tip in self.model.tips.values() if tip.namespace == namespace and tip.enabled]
                assert memory.store.size(namespace) == len(enabled)


def test_two_writers_and_a_model_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed, "UNSAVED", 1)
    run_state_machine_as_test(
        TwoWriters,
        settings=settings(
            max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

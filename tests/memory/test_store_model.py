"""The memory against a plain model of it: random operations by two writers of one file.

Tips beyond the capacity are retired by any of the rules, readers are counted and measured, and the owner brings back.
A search must find exactly what is there, whatever was written, deleted, switched, undone, restored or closed before.
"""

from __future__ import annotations

import copy
import functools
import math
import random
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import TipMemory, exchange, open_memory
from trailnotes.memory.exchange import rewind_to_snapshot
from trailnotes.memory.retrieval import Floats
from trailnotes.memory.tip_stats import TipEffect, TipExposure
from trailnotes.types import Tip

CAPACITY = 40
DIM = 8


class Directions:
    """An embedder: every text has a direction of its own."""

    name = "directions"
    dim = DIM

    def embed(self, texts: Sequence[str]) -> Floats:
        """As `Embedder.embed`."""
        drawn = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIM) for text in texts]
        return np.array([vector / np.linalg.norm(vector) for vector in drawn], np.float32).reshape(-1, DIM)


class LaxConfig(MemoryConfig):
    distilled_readers: ClassVar[int] = 2


CONFIG = LaxConfig(threshold=-0.2, capacity=CAPACITY, distilled=0.5, order=("score", "support", "recency"))
RULES = ("oldest", "least_used", "least_worth")
NAMESPACES = ("one", "two")
WRITERS = st.integers(0, 1)


def drawn(seed: int) -> list[Tip]:
    """Up to thirty tips."""
    rng = random.Random(seed)
    names = [(f"text {rng.randrange(200)}", f"key {rng.randrange(500)}") for _ in range(rng.randrange(30))]
    about: dict[str, Any] = {"action": f"do {seed}", "model": f"model {seed}", "run": f"run {seed}", "step": seed % 9}
    return [
        Tip(rng.choice(NAMESPACES), text, key, float(rng.randrange(4)), enabled=rng.random() < 0.8, **about)
        for text, key in names
    ]


BATCHES = st.integers(0, 10**6).map(drawn)


@functools.cache
def direction(text: str) -> Floats:
    return Directions().embed([text])[0]


@dataclass
class Counts:
    """What is known of the readers of a tip."""

    shown: int = 0
    compared: int = 0
    gained: float = 0.0
    measured: int = 0
    lead: float = 0.0


@dataclass
class Model:
    """What the memory is to be: tips by id, the age of each, its readers, and what was retired by which rule."""

    retire: str = "oldest"
    tips: dict[int, Tip] = field(default_factory=dict)
    ages: dict[int, int] = field(default_factory=dict)
    readers: dict[int, Counts] = field(default_factory=dict)
    gone: dict[int, str] = field(default_factory=dict)  # the rule that retired a tip
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
                self.tips[known], self.readers[known] = replace(tip, id=known), Counts()
            else:
                known = self.repeat(known, tip)
            self.ages[known] = self.writes
        for namespace in dict.fromkeys(tip.namespace for tip in batch):
            self.make_room(namespace)
        return len(batch)

    def repeat(self, known: int, tip: Tip) -> int:
        """A text is written again: its row counts it, and what made room comes back."""
        old = self.tips[known]
        back = self.gone.get(known, "") not in {"", "distilled"} and tip.enabled
        if back:
            del self.gone[known]
        self.tips[known] = replace(
            old, key=tip.key, action=tip.action, support=old.support + 1,
            score=max(old.score, tip.score), enabled=old.enabled or back,
        )  # fmt: skip
        return known

    def make_room(self, namespace: str) -> None:
        """As `room.make_room`."""
        on = [tip_id for tip_id, own in self.tips.items() if own.namespace == namespace and own.enabled]
        on.sort(key=self.ages.__getitem__)
        excess, spared = len(on) - CAPACITY, CAPACITY // 4
        if excess > 0:
            if self.retire == "least_used":
                on = sorted(on[:-spared], key=lambda tip_id: (self.readers[tip_id].shown, self.ages[tip_id]))
            if self.retire == "least_worth":
                on = sorted(on[:-spared], key=lambda tip_id: (self.worth(tip_id), self.ages[tip_id]))
            self.retired(on[:excess], self.retire)

    def worth(self, tip_id: int) -> float:
        return self.readers[tip_id].gained / (4 + self.readers[tip_id].compared)

    def retired(self, ids: list[int], rule: str) -> None:
        self.writes += 1
        for tip_id in ids:
            self.tips[tip_id] = replace(self.tips[tip_id], enabled=False)
            self.gone[tip_id] = rule

    def measure(self, leads: list[TipEffect]) -> None:
        """As `TipMemory.measure`."""
        self.writes += 1
        for tip_id, nats in leads:
            counts = self.readers[tip_id]
            counts.measured += 1
            counts.lead += (nats - counts.lead) / min(counts.measured, 2)
        for tip_id in dict.fromkeys(tip_id for tip_id, _ in leads):
            known = self.readers[tip_id].measured >= 2 and math.exp(-self.readers[tip_id].lead) >= 0.5
            if known and self.tips[tip_id].enabled:
                self.retired([tip_id], "distilled")

    def search(self, namespace: str, query: str) -> list[int | None]:
        """Ids of what is found, by score, support and age."""
        near = [
            tip for tip in self.tips.values() if tip.namespace == namespace and tip.enabled
            and direction(tip.key) @ direction(query) >= CONFIG.threshold
        ]  # fmt: skip
        return [t.id for t in sorted(near, key=lambda tip: (-tip.score, -tip.support, -self.ages[tip.id or 0]))]


class TwoWriters(RuleBasedStateMachine):
    """Two connections to one file."""

    @initialize(retire=st.sampled_from(RULES))
    def begin(self, retire: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "memory.db"
        self.model = Model(retire)
        self.memories = [self.opened(), self.opened()]
        self.saved: Model | None = None
        self.by_owner = 0  # changes since the snapshot

    def opened(self) -> TipMemory:
        config = CONFIG.model_copy(update={"retire": self.model.retire})
        return open_memory(self.path, config, embedder=Directions(), clock=lambda: "")

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
        if self.model.gone.pop(tip_id, None) and enabled:
            self.model.writes += 1
            self.model.ages[tip_id] = self.model.writes
        self.by_owner += 1

    @precondition(lambda self: self.model.tips)
    @rule(writer=WRITERS, data=st.data())
    def read(self, writer: int, data: st.DataObject) -> None:
        """Episodes read tips, and gained or lost by it; of some it is known what they would have done without."""
        ids = st.lists(st.sampled_from(sorted(self.model.tips)), min_size=1, max_size=12)
        memory = self.memories[writer]
        readings = [TipExposure(tip_id, 1.0, (tip_id % 5 - 2) / 4) for tip_id in data.draw(ids)]
        with memory.store.transaction():
            memory.store.record_exposures(readings)
        self.model.writes += 1
        for tip_id, _, gained in readings:
            counts = self.model.readers[tip_id]
            counts.shown, counts.compared, counts.gained = counts.shown + 1, counts.compared + 1, counts.gained + gained
        leads = [TipEffect(tip_id, tip_id % 3 / 2) for tip_id in data.draw(ids)]
        memory.record_effects(leads)
        self.model.measure(leads)

    @precondition(lambda self: self.model.tips)
    @rule(writer=WRITERS, data=st.data())
    def delete(self, writer: int, data: st.DataObject) -> None:
        tip_id = data.draw(st.sampled_from(sorted(self.model.tips)))
        exchange.delete_tips(self.memories[writer].store, [tip_id])
        del self.model.tips[tip_id]
        self.model.gone.pop(tip_id, None)
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
        self.model, self.by_owner = copy.deepcopy(self.saved), 0
        self.add(writer, instead)

    @precondition(lambda self: self.saved is not None and not self.by_owner)
    @rule(writer=WRITERS, instead=BATCHES)
    def go_back(self, writer: int, instead: list[Tip]) -> None:
        rewind_to_snapshot(self.memories[writer], self.path.with_name("saved.db"), self.path.with_name("aside.jsonl"))
        self.model = copy.deepcopy(self.saved)
        self.add(writer, instead)

    @rule(writer=WRITERS)
    def open_again(self, writer: int) -> None:
        self.memories[writer].close()
        self.memories[writer] = self.opened()

    @rule(namespace=st.sampled_from(NAMESPACES), query=st.sampled_from(["key 0", "key 1"]))
    def search(self, namespace: str, query: str) -> None:
        wanted = self.model.search(namespace, query)
        for memory in self.memories:
            assert [tip.id for tip in memory.search(namespace, query, 100)] == wanted
        for tip in [tip for tip in self.model.tips.values() if tip.namespace == namespace and tip.enabled]:
            assert [found.key for found, _ in self.memories[0].search_nearest(namespace, tip.key, 1)] == [tip.key]

    @invariant()
    def same_rows(self) -> None:
        assert not [*self.path.parent.glob("saved.db-*")], "a snapshot is one file"
        for memory in self.memories:
            assert {tip.id: tip for tip in memory.store.load_tips()} == self.model.tips
            assert memory.store.sequence == self.model.writes
            marks = {tip_id: mark.rule for tip_id, mark in memory.store.load_retirements().items()}
            assert marks == self.model.gone
            for tip_id, found in memory.store.load_reader_stats().items():
                wanted = self.model.readers[tip_id]
                assert (found.shown, found.compared, found.gained) == (wanted.shown, wanted.compared, wanted.gained)
                assert (found.measured, found.lead) == (wanted.measured, pytest.approx(wanted.lead))
            for namespace in NAMESPACES:
                enabled = [tip for tip in self.model.tips.values() if tip.namespace == namespace and tip.enabled]
                assert memory.store.size(namespace) == len(enabled)


def test_two_writers_and_a_model_agree() -> None:
    steps = {"max_examples": 12, "stateful_step_count": 20}
    run_machine(TwoWriters, settings=settings(**steps, deadline=None, suppress_health_check=list(HealthCheck)))

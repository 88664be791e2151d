"""Scope: whose tips are found beyond the task, and that nothing of a game held back reaches another split."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptrun import Gate, Guesser, adapt_by
from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import TipMemory, open_memory
from trailnotes.memory.controls import make_prompt_memory
from trailnotes.memory.exchange import open_store
from trailnotes.memory.scope import Scope
from trailnotes.types import Task, Tip

Wider = Literal["family", "env", "all"]
SPLITS = ("train", "validation", "test")


def task(name: str, split: str = "train", family: str = "maze", env: str = "house", seed: int = 0) -> Task:
    return Task(name, env, seed, split, {}, family)


def memory_of(scope: Scope, tasks: Iterable[Task] = (), **settings: object) -> TipMemory:
    """One tip of each task, which says its id and is found by the same key."""
    memory = open_memory(None, MemoryConfig(scope=scope, threshold=-1, top_k=99).model_copy(update=settings))
    tasks = list(tasks)
    memory.register_tasks(tasks)
    memory.add([Tip(each.id, each.id, "red door", 1.0) for each in tasks])
    return memory


def test_sessions_tell_the_memory_tasks_that_no_run_has_registered() -> None:
    with memory_of("all") as memory:
        memory.session("a", "red door")
        memory.add([Tip("a", "knock twice", "red door", 1.0)])
        assert [tip.text for tip in memory.session("b", "red door").tips] == ["knock twice"]
    with memory_of("family", [task("a"), task("b")]) as memory:
        assert {tip.text for tip in memory.session("a", "red door").tips} == {"a", "b"}


def search_texts(memory: TipMemory, reader: str, query: str = "red door") -> list[str]:
    tips = [tip.text for tip in memory.search(reader, query, 99)]
    assert tips == [tip.text for tip in asyncio.run(memory.search_async(reader, query, 99))]
    return tips


HOUSEHOLD = [
    *(task("a"), task("b"), task("c", family="vault"), task("d", env="garden")),
    *(task("new", "test"), task("v", "validation")),
]


@pytest.mark.parametrize(
    ("scope", "trained", "examined"),
    [
        ("task", {"a"}, {"new"}),
        ("family", {"a", "b"}, {"a", "b", "new"}),
        ("env", {"a", "b", "c"}, {"a", "b", "c", "new"}),
        ("all", {"a", "b", "c", "d"}, {"a", "b", "c", "d", "new"}),
    ],
)
def test_what_a_scope_holds(scope: Scope, trained: set[str], examined: set[str]) -> None:
    with memory_of(scope, HOUSEHOLD) as memory:
        assert set(search_texts(memory, "a")) == trained
        assert set(search_texts(memory, "new")) == examined
        assert search_texts(memory, "never met") == []


def test_beyond_the_task_similarity_decides_unless_it_has_a_place() -> None:
    for order, texts in {
        ("score",): ["like", "alike", "other"],
        ("score", "similarity"): ["other", "like", "alike"],
    }.items():
        config = MemoryConfig(scope="family", threshold=-1, order=order)
        with open_memory(None, config) as memory:
            memory.register_tasks([task("a"), task("b")])
            memory.add([
                Tip("b", "other", "a cave", 9.0), Tip("b", "alike", "red door", 1.0), Tip("a", "like", "red door", 2.0),
            ])  # fmt: skip
            assert search_texts(memory, "a") == texts


@pytest.mark.parametrize(("repeated", "texts"), [(False, ["push", "pull", "turn"]), (True, ["push", "pull", "pull"])])
def test_equal_texts_are_found_once_and_scores_count_as_shares(repeated: bool, texts: list[str]) -> None:
    with memory_of("all", order=("score", "similarity"), repeat_shown=repeated) as memory:
        memory.register_tasks([task(name) for name in "abcde"])
        memory.add([Tip(name, "pull", "red door", 2.0, 10.0) for name in "abc"])
        memory.add([Tip("d", "push", "red door", 1.0, 1.0), Tip("e", "turn", "red door", 1.0, 10.0)])
        assert [tip.text for tip in memory.search("a", "red door", 3)] == texts


def test_a_game_of_training_that_is_also_held_back_is_alone_with_its_own() -> None:
    games = [task("a", seed=1), task("b", seed=2), task("same as b", "test", seed=2), task("c", seed=3)]
    with memory_of("all", [*games, task("c", "validation", seed=3)]) as memory:
        for reader, texts in {"a": {"a"}, "b": {"b"}, "c": {"c"}, "same as b": {"a", "b", "same as b"}}.items():
            assert set(search_texts(memory, reader)) == texts


def test_a_scope_shares_one_capacity_and_each_split_has_its_own() -> None:
    with memory_of("family", [task("a"), task("b"), task("held", "test"), task("c", family="vault")], capacity=2) as m:
        for name in ("a", "b", "c", "held", "never met"):
            m.add([Tip(name, f"{n} of {name}", "red door", 1.0) for n in ("first", "second")])
        gone = m.store.load_retirements()
        retired = {tip.text for tip in m.store.load_tips() if tip.id in gone}
        assert retired == {"a", "b", "first of a", "second of a", "held", "c"}, "each split and family keeps two"
        m.add([Tip("held", "third", "red door", 1.0)])
        assert set(search_texts(m, "held")) == {"first of b", "second of b", "second of held", "third"}


MEETINGS = st.lists(
    st.builds(
        task, st.integers(0, 14).map(str), st.sampled_from(SPLITS), st.sampled_from(["maze", "vault"]),
        st.sampled_from(["house", "garden"]), st.integers(0, 6),
    ),
    max_size=15,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(MEETINGS, st.sampled_from(["family", "env", "all"]), st.sampled_from(["own", "other"]))
def test_no_tip_about_a_game_held_back_reaches_training(
    tasks: list[Task], scope: Wider, show: Literal["own", "other"]
) -> None:
    with memory_of(scope) as memory:
        for each in tasks:  # one by one, as batches bring them
            memory.register_tasks([each])
        memory.add([Tip(each.id, each.id, "red door", 1.0) for each in tasks])
        known = {(each.id, each.split): each for each in tasks}.values()  # as it was met last
        held = {each.id for each in tasks if each.split != "train"}
        alone = {(each.seed, each.env) for each in known if each.seed and each.split != "train"}
        per_split = [(each.seed, each.env, each.split) for each in known]
        same = {each.id for each in known if (each.seed, each.env) in alone}
        unclear = {each.id for each in tasks if any(per_split.count((each.seed, each.env, s)) > 1 for s in SPLITS)}
        for reader in {each.id for each in tasks if each.split == "train"}:
            texts = {tip.text for tip in make_prompt_memory(memory, show).search(reader, "red door", 99)} - {reader}
            assert not texts & held
            assert not texts & (same - unclear)


def test_what_was_met_is_kept_and_travels_with_snapshots(tmp_path: Path) -> None:
    config = MemoryConfig(scope="family", threshold=-1)
    with open_memory(tmp_path / "memory.db", config) as memory, open_memory(tmp_path / "memory.db", config) as other:
        memory.add([Tip("b", "of b", "red door", 1.0)])
        assert (search_texts(memory, "a"), search_texts(other, "a")) == ([], [])
        assert memory.register_tasks([task("a"), task("b")])
        assert not memory.register_tasks([task("b"), task("a")])
        assert (search_texts(memory, "a"), search_texts(other, "a")) == (["of b"], ["of b"])
        other.add([Tip("b", "later", "red door", 2.0)])
        assert search_texts(memory, "a") == ["later", "of b"]
        memory.snapshot(tmp_path / "snapshot.db")
    with open_memory(None, config) as restored:
        restored.restore(tmp_path / "snapshot.db")
        assert search_texts(restored, "a") == ["later", "of b"]


class Doors(Gate):
    """The word of the examined gate is the one that the tip about the other gate guesses at."""

    @staticmethod
    def tasks(split: str, **_: Any) -> list[Task]:
        return [Task(f"gate/{split}", "test_scope:Doors", {"train": 5, "test": 1}[split], split)]


@pytest.mark.parametrize(("scope", "success"), [("task", 0.0), ("env", 1.0)])
def test_games_met_before_help_on_one_that_was_never_met(scope: Scope, success: float, tmp_path: Path) -> None:
    sections = {"env": {"name": "test_scope:Doors"}, "memory": {"scope": scope, "threshold": -1}}
    evaluated = {"warmup_split": "train", "trials": 0}
    (row,) = adapt_by(Guesser(), "empo2-tips", tmp_path, **sections, eval=evaluated)
    assert (row.mean, row.memory, row.num_tasks) == (success, True, 1)
    with closing(open_store(tmp_path)) as store:
        assert store.count_by_namespace() == {"gate/test": 1, "gate/train": 1}

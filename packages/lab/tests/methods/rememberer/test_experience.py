"""The experience table of REMEMBERER. Numbers are those of the specification, or can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trailnotes.memory.retrieval import HashingEmbedder
from trailnotes_lab.methods.rememberer.table import (
    Experience,
    ExperienceTable,
    RemembererConfig,
    compare_texts,
    prepare_text,
)

VECTOR = np.zeros((2, 4), np.float32)


def table(path: Path | None = None, **keys: Any) -> ExperienceTable:
    """Make a table by settings in which `keys` may be constants as well."""
    constants = {name: keys.pop(name) for name in [*keys] if name not in RemembererConfig.model_fields}
    kind: type[RemembererConfig] = type("Settings", (RemembererConfig,), {"__module__": __name__, **constants})
    return ExperienceTable(path, HashingEmbedder(), kind(**keys))


def episode(*rewards: float, goal: str = "g", states: str = "s{}", actions: str = "a{}") -> list[Experience]:
    return [Experience(goal, states.format(i), actions.format(i), reward) for i, reward in enumerate(rewards)]


def teach(taught: ExperienceTable, *episodes: Sequence[Experience]) -> ExperienceTable:
    with taught.transaction():
        for each in episodes:
            taught.learn(each)
    return taught


def value(taught: ExperienceTable, observation: str, action: str, goal: str = "g") -> float:
    return taught.find(goal, observation).values[action].value


# -- the vectors of the specification, section 8


def test_values_and_rewards_are_means_over_visits() -> None:
    taught = teach(table(), episode(0, 0.25, 1.0))
    assert [value(taught, f"s{i}", f"a{i}") for i in range(3)] == pytest.approx([1.25, 1.25, 1.0])
    teach(taught, episode(0.5, 0.25, 0.0))
    assert [value(taught, f"s{i}", f"a{i}") for i in range(3)] == pytest.approx([1.0, 0.75, 0.5])
    rewards = [taught.find("g", f"s{i}").values[f"a{i}"].reward for i in range(3)]
    assert rewards == [0.25, 0.25, 0.5]


def test_the_action_of_smallest_value_is_dropped() -> None:
    late = [Experience("g", "s", "patient", 0.0), Experience("g", "t", "then", 1.0)]
    early = [Experience("g", "s", "greedy", 0.2)]
    middle = [Experience("g", "s", "middle", 0.5)]
    taught = teach(table(action_capacity=2), late, early, middle)
    assert set(taught.find("g", "s").values) == {"patient", "middle"}


def test_a_full_table_stores_new_situations() -> None:
    taught = table(record_capacity=3)
    for number in range(5):  # as in the specification: capacity 3, five disjoint episodes
        teach(taught, episode(0, 1.0, states=f"room {number} place {{}}"))
        assert len(taught) <= 3
    records = list(taught.iter_nearest("g", "s0"))
    assert all(record.task == "g" for record in records)
    assert any("room 4" in record.observation for record in records)


# -- ranking


def compare(kind: str, one: str, others: Sequence[str]) -> list[float]:
    prepared = [prepare_text(kind, text, VECTOR) for text in (one, *others)]
    return compare_texts(kind, prepared[0], prepared[1:]).tolist()


words = st.text(alphabet="ab \n", max_size=12)


@given(st.lists(words, min_size=1, max_size=6), words)
def test_words_are_compared_by_jaccard(texts: list[str], query: str) -> None:
    sets = [set(text.split()) for text in texts]
    mine = set(query.split())
    expected = [len(mine & s) / len(mine | s) if mine | s else 1.0 for s in sets]
    assert compare("words", query, texts) == pytest.approx(expected)


def longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + longest_common_subsequence(a[1:], b[1:])
    return max(longest_common_subsequence(a[1:], b), longest_common_subsequence(a, b[1:]))


@given(st.lists(words, min_size=1, max_size=5), words)
def test_lines_are_compared_by_their_longest_common_subsequence(texts: list[str], query: str) -> None:
    def lines(text: str) -> list[str]:
        return [" ".join(line.split()) for line in text.splitlines() if line.strip()]

    mine = lines(query)
    expected = [
        longest_common_subsequence(mine, lines(text)) / n if (n := max(len(mine), len(lines(text)))) else 1.0
        for text in texts
    ]
    assert compare("lines", query, texts) == pytest.approx(expected)


# -- the file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "experience.db"


experiences = st.builds(
    Experience,
    task=st.sampled_from(["find", "hide it"]),
    observation=st.sampled_from([f"room {i}" for i in range(6)]) | st.text(max_size=5),
    action=st.sampled_from(["go", "stay"]) | st.text(min_size=1, max_size=5),
    reward=st.floats(-1, 1),
    history=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    admissible=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    last_reward=st.floats(-1, 1),
    total_reward=st.floats(-9, 9),
)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.lists(experiences, max_size=6), max_size=4),
    st.sampled_from([{}, {"record_capacity": 3, "action_capacity": 2}]),
)
def test_a_file_that_is_read_again_holds_what_was_learned(tmp_path_factory, episodes, chosen) -> None:
    path = tmp_path_factory.mktemp("table") / "experience.db"
    with table(path, **chosen) as taught:
        half = len(episodes) // 2
        teach(taught, *episodes[:half])
        with table(path, **chosen) as other:
            teach(other, *episodes[half:])  # a table that was read from the file goes on as this one would
        kept = [replace(record, id=0) for record in taught.iter_nearest("find", "room 1")]  # it sees the other's writes
    with table(None, **chosen) as alone:
        teach(alone, *episodes)
        assert kept == [replace(record, id=0) for record in alone.iter_nearest("find", "room 1")]


def test_a_batch_is_learned_once_or_not_at_all(path: Path) -> None:
    def batch(taught: ExperienceTable, *, fails: bool) -> None:
        with taught.transaction():
            if taught.mark_first_time("epoch-0"):
                taught.learn(episode(0, 1.0))
            if fails:
                raise RuntimeError

    with table(path) as taught:
        with pytest.raises(RuntimeError):
            batch(taught, fails=True)
        assert len(taught) == 0
        batch(taught, fails=False)
    with table(path) as again:
        batch(again, fails=False)
        assert again.stats()["updates"] == 2

"""Visits are found by their own names only, end when nobody moves, and never take more room than allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trailnotes_worlds.webshop.site.sessions import SessionStore


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_name_finds_its_own_value_and_nothing_else() -> None:
    sessions: SessionStore[str] = SessionStore(10, 60.0)
    first, second = sessions.add("a"), sessions.add("b")
    assert (sessions.find(first), sessions.find(second)) == ("a", "b")
    assert first != second
    assert len(first) >= 43  # 256 bits
    for forged in (None, "", first[:-1], first + "A", "../../etc/passwd", "\0", "é" * 5000):
        assert sessions.find(forged) is None
        sessions.remove(forged)
    assert len(sessions) == 2


def test_rest_ends_a_visit_and_a_look_keeps_it() -> None:
    clock = Clock()
    sessions: SessionStore[str] = SessionStore(10, 60.0, clock)
    kept, left = sessions.add("kept"), sessions.add("left")
    clock.now = 59.0
    assert sessions.find(kept) == "kept"
    clock.now = 60.0
    assert sessions.find(left) is None
    assert len(sessions) == 1
    clock.now = 119.0
    assert len(sessions) == 0


def test_one_too_many_sends_away_the_one_that_has_rested_longest() -> None:
    sessions: SessionStore[int] = SessionStore(2, 60.0)
    names = [sessions.add(0), sessions.add(1)]
    sessions.find(names[0])
    names.append(sessions.add(2))
    assert [sessions.find(name) for name in names] == [0, None, 2]


def test_a_name_that_was_removed_is_forgotten() -> None:
    sessions: SessionStore[int] = SessionStore(2, 60.0)
    name = sessions.add(1)
    sessions.remove(name)
    assert sessions.find(name) is None


@pytest.mark.parametrize(("limit", "idle_s"), [(0, 1.0), (1, 0.0)])
def test_limits_that_cannot_work_are_refused(limit: int, idle_s: float) -> None:
    with pytest.raises(ValueError, match="limit >= 1 and idle_s > 0"):
        SessionStore(limit, idle_s)


@given(st.lists(st.one_of(st.just("add"), st.integers(0, 9), st.floats(0, 50)), max_size=60), st.integers(1, 5))
def test_like_a_list_ordered_by_the_last_look(moves: list[object], limit: int) -> None:
    """Against the plainest model: (name, value, seen) sorted by `seen`."""
    clock = Clock()
    sessions: SessionStore[int] = SessionStore(limit, 60.0, clock)
    model: list[tuple[str, int, float]] = []
    names: list[str] = []
    for move in moves:
        model = [entry for entry in model if clock.now - entry[2] < 60.0]
        if move == "add":
            names.append(sessions.add(len(names)))
            model = [*model, (names[-1], len(names) - 1, clock.now)][-limit:]
        elif isinstance(move, float):
            clock.now += move
        elif isinstance(move, int) and move < len(names):
            held = next((entry for entry in model if entry[0] == names[move]), None)
            assert sessions.find(names[move]) == (held[1] if held else None)
            if held:
                model = [*(entry for entry in model if entry is not held), (held[0], held[1], clock.now)]
    model = [entry for entry in model if clock.now - entry[2] < 60.0]
    assert len(sessions) == len(model)

"""Attempts outside our loop, and what tips are worth by their reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from trailnotes.config.memory_schema import MemoryConfig
from trailnotes.errors import MemoryStoreError
from trailnotes.memory import TipMemory, open_memory
from trailnotes.types import Tip

HELPS, MISLEADS = "take the red key", "jump"


def memory_at(path: Path | None) -> TipMemory:
    memory = open_memory(path, MemoryConfig(threshold=-1.0, top_k=1, order=("worth",)))
    if not memory.stats()["tips"]:
        memory.add([Tip("door", HELPS, "a door", 0.0), Tip("door", MISLEADS, "a door", 0.0)])
    return memory


def worth_of(memory: TipMemory) -> dict[str, float]:
    stats = memory.store.load_reader_stats()
    return {tip.text: stats[tip.id].worth for tip in memory.store.load_tips() if tip.id}


def test_worth_by_hand() -> None:
    with memory_at(None) as memory:
        memory.session("door", "a door", show_tips=False).report(0.25)
        first = memory.session("door", "a door")
        assert [tip.text for tip in first.tips] == [MISLEADS], "of equal worth the newest"
        first.report(0.0)
        assert worth_of(memory) == {HELPS: 0.0, MISLEADS: -0.25 / 2}
        second = memory.session("door", "a door")
        assert [tip.text for tip in second.tips] == [HELPS]
        second.report(2.0, max_score=2.0)
        # earned 1, where those without it earned 0.25 and 0
        assert worth_of(memory)[HELPS] == (1 - 0.125) / 2
        assert HELPS in second.text
        assert memory.session("door", "a door", show_tips=False).text == ""


def test_a_report_may_come_from_another_process_and_comes_once(tmp_path: Path) -> None:
    with memory_at(tmp_path / "memory.db") as memory:
        session = memory.session("door", "a door")
    with memory_at(tmp_path / "memory.db") as memory:
        session.memory = memory
        session.report(1.0, success=False)
        with pytest.raises(MemoryStoreError, match="waits for its report"):
            session.report(1.0)
        (stats,) = [stats for stats in memory.store.load_reader_stats().values() if stats.shown]
        assert (stats.shown, stats.earned, stats.compared) == (1, 1.0, 0)


def test_an_author_of_ones_choice_writes_from_the_transcript() -> None:
    asked: list[str] = []

    def author(request: str) -> str:
        asked.append(request)
        return "the door wants <b>both</b> keys"

    with memory_at(None) as memory:
        memory.session("door", "a door", author=author).report(0.5, transcript="you push {the} door")
        assert "you push {the} door" in asked[0]
        assert "0.5 of 1" in asked[0]
        written = memory.store.load_tips("door")[-1]
        assert (written.text, written.score, written.key) == ("the door wants both keys", 0.5, "a door")
        memory.session("door", "a door", author=author).report(0.5)
        assert len(asked) == 1, "nothing happened that could be told"


@pytest.mark.parametrize(("score", "most"), [(float("nan"), 1.0), (1.0, 0.0), (1.0, float("inf"))])
def test_a_score_that_is_none_leaves_the_session_open(score: float, most: float) -> None:
    with memory_at(None) as memory:
        session = memory.session("door", "a door")
        with pytest.raises(ValueError, match=r"must be (finite|above 0)"):
            session.report(score, max_score=most)
        session.report(1.0)


def test_attempts_travel_with_snapshots_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trailnotes.memory.tips.KEPT_ATTEMPTS", 2)
    with memory_at(tmp_path / "memory.db") as memory:
        old, *later = [memory.session("door", "a door") for _ in range(3)]
        with pytest.raises(MemoryStoreError, match="no session"):
            old.report(1.0)
        memory.snapshot(tmp_path / "copy.db")
        with memory_at(None) as other:
            other.restore(tmp_path / "copy.db")
            for session in later:
                session.memory = other
                session.report(1.0)

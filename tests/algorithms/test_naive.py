"""The policy as it is."""

from __future__ import annotations

from pathlib import Path

from adaptrun import Guesser, adapt_by
from trailnotes.storage.files import read_jsonl


def test_it_plays_each_game_once_and_neither_reads_nor_writes_notes(tmp_path: Path) -> None:
    policy = Guesser()
    (row,) = adapt_by(policy, "naive", tmp_path)
    assert [prompt[-1].content for prompt in policy.prompts] == [f"open gate {gate}\na gate ?" for gate in (0, 1, 2, 9)]
    assert (row.mean, row.memory) == (0.25, False)
    assert not list(tmp_path.glob("phases/*.notes.jsonl"))
    assert len(list(read_jsonl(tmp_path / "metrics.jsonl"))) == 1

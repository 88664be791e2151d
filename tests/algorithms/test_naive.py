"""The policy as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from adaptrun import Gate, Guesser, adapt_by
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Observation, Task


def test_it_plays_each_game_once_and_neither_reads_nor_writes_notes(tmp_path: Path) -> None:
    policy = Guesser()
    (row,) = adapt_by(policy, "naive", tmp_path)
    assert [prompt[-1].content for prompt in policy.prompts] == [f"open gate {gate}\na gate ?" for gate in (0, 1, 2, 9)]
    assert (row.mean, row.memory) == (0.25, False)
    assert not list(tmp_path.glob("phases/*.notes.jsonl"))
    assert len(list(read_jsonl(tmp_path / "metrics.jsonl"))) == 1


def test_worked_examples_of_the_environment_are_shown_when_asked_for(tmp_path: Path) -> None:
    policy = Guesser()
    adapt_by(policy, "naive", tmp_path, env={"name": "test_naive:Briefed"}, rollout={"num_examples": 1})
    assert policy.prompts[0][-1].content == (
        'open gate 0\nexample 1 :\n- " open gate 5 "\n- " a gate ? " > " w5 "\nend of example 1 .\na gate ?'
    )


class Briefed(Gate):
    """Gates that show how another one was opened."""

    def reset(self, task: Task) -> Observation:
        example = {"instruction": "open gate 5", "turns": [["a gate ?", "w5"]]}
        return replace(super().reset(task), briefing={"examples": [example]})

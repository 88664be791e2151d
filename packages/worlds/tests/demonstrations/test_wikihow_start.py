"""The table of what a start model can do on WikiHow, for an agent whose figures are known."""

from __future__ import annotations

import asyncio
import re
import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest

from trailnotes.config.toml import load_config
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.types import Message

ROOT = Path(__file__).parents[4]
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "wikihow_start.py"))
TIP = re.compile(r'^- " (.*) " (\d) / (\d)$', re.MULTILINE)


def test_without_the_model_it_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["wikihow_start.py", "runs/start"])
    with pytest.raises(SystemExit, match=r"^wikihow_start\.py: model\.path = 'runs/start': there is no such directory"):
        runpy.run_path(str(ROOT / "examples" / "wikihow_start.py"), run_name="__main__")


def test_the_table_knows_an_obedient_agent_without_ideas() -> None:
    """It does what a tip with a full score tells, else it dances; it writes down what it did."""
    scores: set[tuple[str, str]] = set()  # that tips were shown with

    def agent(messages: Sequence[Message]) -> str:
        done = [message.content for message in messages if message.role == "assistant"]
        if messages[-1].content.endswith("note ?"):
            return " ; ".join(done)
        found = [match.groups() for match in TIP.finditer(messages[0].content)]
        scores.update((score, most) for _, score, most in found)
        told = next((text.split(" ; ") for text, score, most in found if score == most), [])
        return told[len(done)] if len(done) < len(told) else "dance"

    wide = ["--rollout.max_context_tokens", "50000", "--rollout.max_observation_tokens", "9000"]
    long = ["--memory.max_tip_tokens", "900", "--memory.max_write_tokens", "900", "--rollout.max_action_tokens", "90"]
    config = load_config(EXAMPLE["SETTINGS"], [*wide, *long])
    read = EXAMPLE["Read"](ScriptedPolicy(agent), config, 8)
    rows = dict(asyncio.run(read.rows()))
    templates = {label: rows.pop(label) for label in [*rows] if "the right one" in label}
    assert rows == {
        "goals": str(len(read.reached)),
        "actions that the app takes": "0.00",
        "reward of all that can be had, without tips": "0.00",
        "success without tips": "0.00",
        "success with the right tip": "1.00",
        "does all that it says": "1.00",
        "tells the way that it went": "1.00",
        "success with its own tip": "0.00",
    }
    assert {*templates.values()} == {"0.00, 1.00"}
    assert scores == {("3", "3"), ("0", "3")}
    assert len(read.reached) > 4

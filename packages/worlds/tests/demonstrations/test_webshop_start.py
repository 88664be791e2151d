"""The table of what a start model can do on WebShop, for an agent whose figures are known."""

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
from trailnotes_worlds.demonstrations.webshop_buyers import extract_purchase_path
from trailnotes_worlds.demonstrations.webshop_words import format_terse_tip, parse_tip_actions

ROOT = Path(__file__).parents[4]
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "webshop_start.py"))


def test_without_the_model_it_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["webshop_start.py", "runs/start"])
    with pytest.raises(SystemExit, match=r"^webshop_start\.py: model\.path = 'runs/start': there is no such directory"):
        runpy.run_path(str(ROOT / "examples" / "webshop_start.py"), run_name="__main__")


def agent(messages: Sequence[Message]) -> str:
    """Does what the tip with the full score tells, else dances; writes down what it did."""
    done = [message.content for message in messages if message.role == "assistant"]
    if messages[-1].content.endswith("note ?"):
        return format_terse_tip(extract_purchase_path([action for action in done if action != "dance"]), ())
    tip = re.search(r'^- " (.*) " 1 / 1$', messages[0].content, re.MULTILINE)
    told = parse_tip_actions(tip[1]) if tip else ()
    return told[len(done)] if len(done) < len(told) else "dance"


def test_the_table_knows_an_obedient_agent_without_ideas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It scores nothing but by the right tip, and its own tips lead nowhere again."""
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path))
    wide = ["--rollout.max_context_tokens", "50000", "--rollout.max_observation_tokens", "9000"]
    long = ["--memory.max_tip_tokens", "900", "--memory.max_write_tokens", "900", "--rollout.max_action_tokens", "90"]
    config = load_config(EXAMPLE["SETTINGS"], [*wide, *long, "--rollout.max_steps", "8"])
    examined = EXAMPLE["Examined"](ScriptedPolicy(agent), config, 8)
    assert dict(zip(EXAMPLE["LABELS"], asyncio.run(examined.column()), strict=True)) == {
        "goals": str(len(examined.right)),
        "actions that the shop takes": "0.00",
        "episodes that buy": "0.00",
        "score without tips": "0.00",
        "full score without tips": "0.00",
        "score with the right tip": "1.00",
        "does all that it says": "1.00",
        "score with the right tip and those of failures": "1.00",
        "does all that the right one says": "1.00",
        "tells the way that it went": "1.00",
        "score with its own tip": "0.00",
    }
    assert len(examined.right) > 4

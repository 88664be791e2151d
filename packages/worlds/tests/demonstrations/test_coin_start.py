"""The table of what a start model can do in the game coin, for an agent whose figures are known."""

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
from trailnotes_worlds.demonstrations.coin import TAKE, parse_room

ROOT = Path(__file__).parents[4]
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "coin_start.py"))


def agent(messages: Sequence[Message]) -> str:
    """Does what the tip with the full score tells, else dances; writes that it has seen the kitchen."""
    if messages[-1].content.endswith("note ?"):
        return "no coin in kitchen"
    tip = re.search(r'^- " (.*) " 1 / 1$', messages[0].content, re.MULTILINE)
    way = dict(re.findall(r"([a-z ]+?) (north|south|east|west) , ", tip[1])) if tip else {}
    room, _ = parse_room(messages[-1].content)
    if tip and tip[1].endswith(f"coin in {room}"):
        return TAKE
    return f"move {way[room]}" if room in way else "dance"


def test_the_table_knows_an_obedient_agent_without_ideas() -> None:
    pytest.importorskip("textworld_express", reason="needs the extra textworld-express")
    wide = ["--rollout.max_context_tokens", "50000", "--rollout.max_observation_tokens", "9000"]
    long = ["--memory.max_tip_tokens", "900", "--memory.max_write_tokens", "900", "--rollout.max_action_tokens", "90"]
    config = load_config(EXAMPLE["SETTINGS"], [*wide, *long])
    examined = EXAMPLE["Examined"](ScriptedPolicy(agent), config, 8)
    assert dict(zip(EXAMPLE["LABELS"], asyncio.run(examined.column()), strict=True)) == {
        "houses": str(len(examined.right)),
        "actions that the game takes": "0.00",
        "coins found without tips": "0.00",
        "coins found with the right tip": "1.00",
        "goes the way that it tells": "1.00",
        "coins found with the right tip and those of failures": "1.00",
        "coins found with tips of failures": "0.00",
        "writes what a good writer would, after a success": "-",
        "writes what a good writer would, after a failure": "1.00",
        "coins found with its own tip": "0.00",
    }
    assert len(examined.right) > 5

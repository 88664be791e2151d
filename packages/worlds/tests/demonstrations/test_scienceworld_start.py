"""The table of what a start model can do on ScienceWorld, for an agent whose figures are known."""

from __future__ import annotations

import asyncio
import random
import re
import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest

from trailnotes.config.toml import load_config
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.types import Message
from trailnotes_worlds.demonstrations.scienceworld_english import format_attempt_tip, parse_listed_actions

ROOT = Path(__file__).parents[4]
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "scienceworld_start.py"))


def agent(messages: Sequence[Message]) -> str:
    """Does what the tip with the full score tells, else dances; writes down what it did."""
    done = [message.content for message in messages if message.role == "assistant"]
    if ended := re.search(r"ended with a score of (\S+) of", messages[-1].content):
        return format_attempt_tip(done, float(ended[1]), random.Random(0))
    tip = re.search(r'"(.*)" \(score 100 of 100\)', messages[1].content)
    told = parse_listed_actions(tip[1]) if tip else ()
    return told[len(done)] if len(done) < len(told) else "dance"


@pytest.mark.slow
def test_the_table_knows_an_obedient_agent_without_ideas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It scores nothing but by the right tip, and its own tips lead nowhere again."""
    monkeypatch.setenv("TRAILNOTES_CACHE", str(tmp_path))
    wide = ["--rollout.max_context_tokens", "50000", "--rollout.max_observation_tokens", "9000"]
    long = ["--memory.max_tip_tokens", "900", "--memory.max_write_tokens", "900", "--rollout.max_action_tokens", "90"]
    task = ["--env.options", '{task = "lifespan-shortest-lived"}', "--env.max_envs", "1", "--rollout.max_steps", "4"]
    config = load_config(EXAMPLE["SETTINGS"], ["--warmstart.variations", "1", *wide, *long, *task])
    column = asyncio.run(EXAMPLE["Examined"](ScriptedPolicy(agent), config).column())
    assert dict(zip(EXAMPLE["LABELS"], column, strict=True)) == {
        "variations": "1",
        "answers with an action of the game": "0.00",
        "return without tips": "0",
        "full score without tips": "0.00",
        "return with the right tip": "100",
        "share of the gold score": "1.00",
        "does all that it says": "1.00",
        "return with the right tip and those of failures": "100",
        "does all that the right one says": "1.00",
        "tells all that it did": "1.00",
        "names the actions that scored, of episodes that did": "1.00",
        "return with its own tip": "0",
        "does all that its own tip says": "1.00",
    }

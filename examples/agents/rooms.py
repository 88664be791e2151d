"""What the agents of this folder share: a house to search, its memory, and a session of the gateway."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from trailnotes import open_memory
from trailnotes.client import AgentSession

TASK = "Where is the key? Look into rooms, and answer with the name of the room alone."
Solve = Callable[[str, str, str, str], str]
"""From a question, the address of a model, a key for it and its name to the agent's answer."""


def look(room: str) -> str:
    """Look into a room of the house."""
    return "There is a key!" if room == "attic" else f"The {room} holds dust."


def play(solve: Solve, session: AgentSession) -> float:
    """Train or evaluate: the gateway has started this agent, and adds the tips by itself."""
    return float("attic" in solve(TASK, session.base_url, session.api_key, session.model))


def remember(solve: Solve) -> None:
    """Use a model of your own, OPENAI_MODEL at OPENAI_BASE_URL: this memory learns from each run which tips help."""
    address, key, model = (os.environ[f"OPENAI_{name}"] for name in ("BASE_URL", "API_KEY", "MODEL"))
    with open_memory(sys.argv[1] if len(sys.argv) > 1 else "memory.db") as memory:
        session = memory.session("house", TASK)
        said = solve(f"{session.text}\n{TASK}".strip(), address, key, model)
        session.report(float("attic" in said))
        print(said)

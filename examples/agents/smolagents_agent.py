"""An agent of smolagents: python smolagents_agent.py, or env.options.agent = "smolagents_agent:play"."""

from __future__ import annotations

from functools import partial

import rooms
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool


@tool
def look(room: str) -> str:
    """Look into a room of the house.

    Args:
        room: its name.
    """
    return rooms.look(room)


def solve(question: str, base_url: str, api_key: str, model: str) -> str:
    """Run an agent that calls tools, of which its answer is one."""
    # The gateway cannot force a call, which smolagents asks for unless it is told otherwise.
    chat = OpenAIModel(model_id=model, api_base=base_url, api_key=api_key, tool_choice="auto")
    return str(ToolCallingAgent(tools=[look], model=chat, verbosity_level=LogLevel.OFF).run(question))


play = partial(rooms.play, solve)

if __name__ == "__main__":
    rooms.remember(solve)

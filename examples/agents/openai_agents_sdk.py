"""An agent of the OpenAI Agents SDK: python openai_agents_sdk.py, or env.options.agent = "openai_agents_sdk:play"."""

from __future__ import annotations

import asyncio
from functools import partial

import rooms
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)  # which would send every run to OpenAI


def solve(question: str, base_url: str, api_key: str, model: str) -> str:
    """Run the SDK's own loop."""

    async def run() -> str:
        async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            agent = Agent(
                name="searcher",
                model=OpenAIChatCompletionsModel(model=model, openai_client=client),
                tools=[function_tool(rooms.look)],
            )
            return str((await Runner.run(agent, question)).final_output)

    return asyncio.run(run())


play = partial(rooms.play, solve)

if __name__ == "__main__":
    rooms.remember(solve)

"""An agent of PydanticAI: python pydantic_ai_agent.py, or env.options.agent = "pydantic_ai_agent:play"."""

from __future__ import annotations

import asyncio
from functools import partial

import rooms
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def solve(question: str, base_url: str, api_key: str, model: str) -> str:
    """Run the agent with one tool."""

    async def run() -> str:
        async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            chat = OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client))
            return (await Agent(chat, tools=[rooms.look]).run(question)).output

    return asyncio.run(run())


play = partial(rooms.play, solve)

if __name__ == "__main__":
    rooms.remember(solve)

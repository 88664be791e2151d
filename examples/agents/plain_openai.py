"""An agent of the OpenAI client: python plain_openai.py, or env.options.agent = "plain_openai:play"."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import openai
import rooms

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "description": rooms.look.__doc__,
        "parameters": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
    },
}


def solve(question: str, base_url: str, api_key: str, model: str) -> str:
    """Call the model until it calls no tool."""
    messages: list[Any] = [{"role": "user", "content": question}]
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        while True:
            said = client.chat.completions.create(model=model, messages=messages, tools=[TOOL]).choices[0].message
            messages.append(said)
            if not said.tool_calls:
                return said.content or ""
            for call in said.tool_calls:
                seen = rooms.look(**json.loads(call.function.arguments))  # type: ignore[union-attr]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})


play = partial(rooms.play, solve)

if __name__ == "__main__":
    rooms.remember(solve)

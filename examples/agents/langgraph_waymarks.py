"""A LangGraph agent that plays Waymarks: `trailnotes train waymarks.toml` in this folder trains it.

First `python langgraph_waymarks.py tasks.jsonl` writes the list of tasks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from trailnotes import make_env
from trailnotes.client import AgentSession
from trailnotes.envs import list_env_tasks
from trailnotes.storage.files import task_to_json
from trailnotes.types import Task

OPTIONS = {"families": 12, "new_families": 12, "new_validation": 4}


class State(TypedDict):
    """What passes along the edges."""

    messages: Annotated[list[Any], add_messages]
    observation: Any


def play(session: AgentSession) -> dict[str, Any]:
    """Play one game; the model behind `session` decides."""
    env = make_env("waymarks-simulator", **OPTIONS)
    first = env.reset(Task(**session.task["options"]["game"]))
    model = ChatOpenAI(base_url=session.base_url, api_key=session.api_key, model=session.model)

    def think(state: State) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def act(state: State) -> dict[str, Any]:
        observation = env.step(state["messages"][-1].text.strip())
        return {"messages": [("user", observation.text)], "observation": observation}

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_edge("think", "act")
    graph.add_conditional_edges("act", lambda state: END if state["observation"].done else "think")
    begin = {"messages": [("user", first.instruction), ("user", first.text)], "observation": first}
    last = graph.compile().invoke(begin, {"recursion_limit": 100})["observation"]
    return {"score": last.score, "max_score": last.max_score, "success": last.success, "text": last.text}


if __name__ == "__main__":
    tasks = [task for split in ("train", "validation", "test") for task in list_env_tasks("waymarks", split, OPTIONS)]
    lines = [json.dumps({"id": task.id, "split": task.split, "game": task_to_json(task)}) for task in tasks]
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")

"""A LangGraph agent: python langgraph_agent.py, or env.options.agent = "langgraph_agent:play"."""

from __future__ import annotations

from functools import partial

import rooms
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def solve(question: str, base_url: str, api_key: str, model: str) -> str:
    """Run a graph of a model and its tools; for a store over the memory see `trailnotes.memory.langgraph`."""
    tools = [tool(rooms.look)]
    chat = ChatOpenAI(base_url=base_url, api_key=api_key, model=model).bind_tools(tools)  # type: ignore[arg-type]

    def think(state: MessagesState) -> MessagesState:
        return {"messages": [chat.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    last = graph.compile().invoke({"messages": [("user", question)]})["messages"][-1]
    return str(last.text)


play = partial(rooms.play, solve)

if __name__ == "__main__":
    rooms.remember(solve)

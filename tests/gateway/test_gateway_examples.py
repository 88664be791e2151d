"""The agents of examples/agents, each behind the gateway and with a memory, against a model that follows a script."""

from __future__ import annotations

import gc
import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from test_gateway_agents import agent_config, play

from trailnotes.client import AgentSession
from trailnotes.memory import open_memory
from trailnotes.types import Message, Tip

FOLDER = Path(__file__).parents[2] / "examples" / "agents"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in {"rooms", "langgraph_waymarks"})


def search(messages: Sequence[Message]) -> str:
    """Look into the attic, and answer by the tool or the words that the agent expects."""
    assert "Where is the key?" in messages[1 if messages[0].role == "system" else 0].content
    if "There is a key!" not in messages[-1].content:
        return '<tool_call>{"name": "look", "arguments": {"room": "attic"}}</tool_call>'
    if "final_answer" in messages[0].content:
        return '<tool_call>{"name": "final_answer", "arguments": {"answer": "attic"}}</tool_call>'
    return "attic"


@pytest.fixture(autouse=True)
def _collect_clients() -> Iterator[None]:
    """Frameworks leave their clients to the garbage collector, with open connections."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_plays_behind_the_gateway_and_remembers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    example = importlib.import_module(name)
    tip = Tip("one", "look into the attic", "Where is the key?", 0.0)
    with open_memory(tmp_path / "memory.db") as memory:
        memory.add([Tip("house", tip.text, tip.key, 0.0)])

    def use_memory(session: AgentSession) -> float:
        monkeypatch.setenv("OPENAI_BASE_URL", session.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", session.api_key)
        monkeypatch.setenv("OPENAI_MODEL", session.model)
        monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "memory.db")])
        importlib.import_module("rooms").remember(example.solve)
        return 0.0

    config = agent_config(tmp_path)
    config = config.model_copy(update={"memory": config.memory.model_copy(update={"threshold": -1.0})})
    trained, remembered = play(config, example.play, use_memory, script=search, tips=[tip])
    assert trained.score == 1.0
    assert [len(step.tips) for step in trained.steps] == [1, 0], "the gateway shows the tip"
    assert '"look into the attic"' in remembered.steps[0].observation.text, "the agent shows the tip itself"
    assert "attic" in capsys.readouterr().out
    with open_memory(tmp_path / "memory.db") as memory:
        (stats,) = memory.store.load_reader_stats().values()
        assert (stats.shown, stats.earned) == (1, 1.0)

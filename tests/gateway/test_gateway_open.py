"""Sessions that agents begin by themselves: what has been reported is kept, and no name begins two."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_gateway_agents import agent_config, echo

from trailnotes.gateway.requests import RequestRefused, parse_chat_call
from trailnotes.gateway.session import Report
from trailnotes.memory import open_memory
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.runs.serving import OpenGateway
from trailnotes.storage.files import read_jsonl

CALL = parse_chat_call({"messages": [{"role": "user", "content": "a"}]})


class OneAtATime(ScriptedPolicy):
    """Refuses an episode that is open, as the engines do."""

    def open_episode(self, episode: str) -> None:
        assert episode not in self.open_episodes
        super().open_episode(episode)


def test_what_was_reported_before_the_end_is_kept_and_each_has_a_tip(tmp_path: Path) -> None:
    config = agent_config(tmp_path)

    async def run() -> tuple[int, set[str]]:
        with open_memory(None, config.memory) as memory:
            policy = OneAtATime(echo)
            gateway = OpenGateway(policy, memory, config, tmp_path / "episodes.jsonl", 0.0)
            sessions = [gateway.find("", f"task {number}") for number in range(20)]
            await asyncio.gather(*(session.ask(CALL) for session in sessions))
            for session in sessions[:-1]:
                session.report(Report(score=1.0, truncated=session is sessions[0]))
            await gateway.close()
            written = [tip for number in range(20) for tip in memory.search(f"task {number}", "a", 5)]
            return len(written), policy.open_episodes

    assert asyncio.run(run()) == (19, set())
    outcomes = [line["outcome"] for line in read_jsonl(tmp_path / "episodes.jsonl")]
    assert sorted(outcomes) == ["error", *["terminated"] * 18, "truncated"]


def test_a_name_is_of_one_session(tmp_path: Path) -> None:
    config = agent_config(tmp_path)

    async def run() -> None:
        gateway: Any = OpenGateway(ScriptedPolicy(echo), None, config, tmp_path / "episodes.jsonl", 0.0)
        session = gateway.find("mine", "coffee")
        assert gateway.find("mine") is gateway.find("mine", "coffee") is session
        with pytest.raises(RequestRefused, match="plays 'coffee'"):
            gateway.find("mine", "tea")
        with pytest.raises(RequestRefused, match="no /"):
            gateway.find("a/b", "tea")
        await session.ask(CALL)
        session.report(Report(score=1.0))
        await gateway.close()
        with pytest.raises(RequestRefused, match="it is over"):
            gateway.find("mine", "coffee")

    asyncio.run(run())

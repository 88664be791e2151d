"""The official client of the protocol against the real command, over stdio and over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trailnotes.config.schema import MemoryConfig
from trailnotes.memory import open_memory
from trailnotes.memory.exchange import open_store
from trailnotes.types import Tip

mcp = pytest.importorskip("mcp", reason="needs the extra mcp")
httpx2 = pytest.importorskip("httpx2")
types = pytest.importorskip("mcp_types")

from mcp.client.streamable_http import streamable_http_client  # noqa: E402

from trailnotes.memory.mcp import MAX_BODY_BYTES  # noqa: E402

COMMAND = ["-m", "trailnotes", "memory", "serve"]
CLIENT = types.Implementation(name="somebody", version="1")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with open_memory(tmp_path / "memory.db", MemoryConfig()) as memory:
        memory.add([Tip("maze/1", "go left at the well", "a yard with a well", 1.0)])
    return tmp_path


def started(*words: object) -> mcp.StdioServerParameters:
    env = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return mcp.StdioServerParameters(command=sys.executable, args=[*COMMAND, *map(str, words)], env=env)


async def call(client: Any, name: str, **arguments: Any) -> tuple[bool, str]:
    """Whether a call was done, and its text."""
    result = await client.call_tool(name, arguments)
    (content,) = result.content
    if not result.is_error:
        assert json.loads(content.text) == result.structured_content
    return not result.is_error, content.text


async def test_an_agent_searches_adds_and_reads_back(place: Path) -> None:
    async with mcp.Client(started(place, "--write"), client_info=CLIENT) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["list_tasks", "search_tips", "read_tip", "add_tip", "memory_open", "memory_report"]
        assert "similar" in tools["search_tips"].description
        assert tools["search_tips"].annotations.read_only_hint
        assert not tools["add_tip"].annotations.read_only_hint
        assert "search_tips" in client.instructions
        done, text = await call(client, "search_tips", task="maze/1", query="the well in the yard")
        assert done
        assert "go left at the well" in text
        done, text = await call(client, "add_tip", task="maze/1", text="mind the step", state="a dark stair")
        assert done
        done, text = await call(client, "read_tip", id=json.loads(text)["id"])
        assert (json.loads(text)["text"], json.loads(text)["model"]) == ("mind the step", "mcp: somebody")
        done, text = await call(client, "search_tips", task="maze/9", query="q")
        assert not done
        assert "maze/9" in text
        assert str(place) not in text
    with open_store(place) as store:
        assert [tip.imported for tip in store.load_tips("maze/1")] == [False, True]


async def test_without_write_nothing_is_added(place: Path) -> None:
    """In the protocol of before 2026, too, as most agents speak it."""
    async with mcp.Client(started(place), client_info=CLIENT, mode="legacy") as client:
        assert "add_tip" not in {tool.name for tool in (await client.list_tools()).tools}
        done, text = await call(client, "add_tip", task="maze/1", text="mind the step")
        assert not done
        assert "Unknown tool" in text
    with open_store(place) as store:
        assert store.sequence == 1


TOKEN = "hush-hush"


@contextmanager
def served(*words: object) -> Iterator[str]:
    """Address of a server that knows `TOKEN`, and never says it."""
    env = os.environ | {"TRAILNOTES_MCP_TOKEN": TOKEN}
    command = [sys.executable, *COMMAND, *map(str, words), "--port", "0"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("ready: http://127.0.0.1:"), process.stderr.read()
            yield line.split()[1]
        finally:
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert TOKEN not in line + output + errors


async def test_over_http_the_token_opens(place: Path) -> None:
    known = {"authorization": f"Bearer {TOKEN}"}
    with served(place, "--write") as url:
        async with (
            httpx2.AsyncClient(headers=known) as http,
            mcp.Client(streamable_http_client(url, http_client=http), client_info=CLIENT) as client,
        ):
            done, text = await call(client, "add_tip", task="maze/1", text="mind the step")
            assert done, text
            done, text = await call(client, "search_tips", task="maze/1", query="mind the step")
            assert json.loads(text)["tips"][0]["text"] == "mind the step"
        with httpx2.Client() as http:
            for headers in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": TOKEN}):
                refused = http.post(url, json={}, headers=headers)
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                assert TOKEN not in refused.text
            assert http.post(url, json={}, headers=known | {"host": "evil.example"}).status_code == 421
            assert http.post(url, json={}, headers=known | {"origin": "http://evil.example"}).status_code == 403
            assert http.post(url, content=b"x" * (MAX_BODY_BYTES + 1), headers=known).status_code == 413
            assert http.post(url, content=b"{", headers=known).status_code in {400, 406}
    with open_store(place) as store:
        assert [tip.model for tip in store.load_tips()] == ["", "mcp: somebody"]

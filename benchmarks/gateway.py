"""What the gateway adds to each answer while many agents ask at once, and whether anything is lost.

Agents in a process of their own play episodes of some turns, with a conversation that grows, and report a score; the
policy answers after a fixed time, as an engine would. The same agents ask the policy alone behind the same web server:
the difference is what the gateway adds. All answers and reports must be in the file of episodes at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
import uvicorn
from shared import finish, make_parser, print_table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from trailnotes.config.schema import Config, MemoryConfig
from trailnotes.memory import TipMemory, open_memory
from trailnotes.policies.scripted import ScriptedPolicy
from trailnotes.runs.loop import run_to_end
from trailnotes.runs.serving import EPISODES_FILE, OpenGateway, serve_agents
from trailnotes.storage.files import read_jsonl
from trailnotes.types import Completion, Message, Sampling
from trailnotes.web.serving import build_server_config, format_url, open_listener

Ready = Callable[[str], None]
TEXT = "You are in a hall with two doors. " * 8


class TimedPolicy(ScriptedPolicy):
    """Answers after `seconds`, and says in the answer how long that took."""

    def __init__(self, seconds: float) -> None:
        super().__init__(lambda _: "")
        self._seconds = seconds

    async def generate(self, messages: Sequence[Message], sampling: Sampling, episode: str) -> Completion:
        """Sample nothing, and wait."""
        begun = time.perf_counter()
        completion = await super().generate(messages, sampling, episode)
        await asyncio.sleep(self._seconds * random.uniform(0.5, 1.5))
        text = f"open door {time.perf_counter() - begun:.6f}"
        ids = tuple(text.encode())
        return Completion(completion.prompt_ids, ids, (0.0,) * len(ids), text)


class Connection:
    """A kept connection, by bare HTTP: what a client's library costs is no cost of the gateway's."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def post(self, path: str, value: object) -> Any:
        """Send a value, and return that of the answer."""
        body = json.dumps(value).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: {self._address.netloc}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        said = await self._reader.readuntil(b"\r\n\r\n")
        (length,) = (int(line[15:]) for line in said.split(b"\r\n") if line.startswith(b"content-length:"))
        answer = json.loads(await self._reader.readexactly(length))
        assert said.startswith(b"HTTP/1.1 200"), answer
        return answer


async def run_agents(url: str, num: int, seconds: float, turns: int) -> None:
    """Play until the time is over; print the seconds that the gateway added to each answer, and all reports."""
    end, added, reports = time.monotonic() + seconds, list[float](), 0

    async def play(number: int) -> None:
        nonlocal reports
        episode = 0
        async with Connection(url) as gateway:
            while time.monotonic() < end:
                path = (await gateway.post("/sessions", {"task": f"task-{number % 10}"}))["path"]
                messages = [{"role": "user", "content": TEXT}]
                for _ in range(turns):
                    begun = time.perf_counter()
                    answer = await gateway.post(f"{path}/v1/chat/completions", {"messages": messages})
                    waited = time.perf_counter() - begun
                    said = answer["choices"][0]["message"]["content"]
                    added.append(waited - float(said.split()[-1]))
                    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": TEXT}]
                episode += 1
                await gateway.post(f"{path}/report", {"score": (number + episode) % 2})
                reports += 1

    await asyncio.gather(*(play(number) for number in range(num)))
    print(json.dumps({"added": added, "reports": reports}))


async def serve_gateway(policy: TimedPolicy, memory: TipMemory, path: Path, turns: int, ready: Ready) -> None:
    """Serve agents as `trailnotes gateway` does."""
    rollout = {"max_context_tokens": 500_000, "max_steps": turns + 1, "stop": ()}
    config = Config(rollout=rollout, algorithm={"name": "empo2-tips"})
    gateway = OpenGateway(policy, memory, config, path, 0.25)
    await serve_agents(gateway, open_listener("127.0.0.1", 0), ready, token="", public=False)


async def serve_directly(policy: TimedPolicy, ready: Ready) -> None:
    """Serve the policy alone, with the same web server: no session, tip, memory or record."""

    async def chat(request: Request) -> JSONResponse:
        messages = [Message(said["role"], said["content"]) for said in (await request.json())["messages"]]
        completion = await policy.generate(messages, Sampling(), "")
        return JSONResponse({"choices": [{"message": {"role": "assistant", "content": completion.text}}]})

    async def begin(request: Request) -> JSONResponse:
        await request.body()
        return JSONResponse({"path": ""})

    door = open_listener("127.0.0.1", 0)
    routes = [("/v1/chat/completions", chat), ("/sessions", begin), ("/report", begin)]
    app = Starlette(routes=[Route(path, handler, methods=["POST"]) for path, handler in routes])
    server = uvicorn.Server(build_server_config(app))
    ready(format_url(door))
    await server.serve(sockets=[door])


async def play_against(serve: Callable[[Ready], Coroutine[Any, Any, None]], load: Sequence[str]) -> dict[str, Any]:
    """Have another process play against a server; return what its agents saw."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(ready.set_result))
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        await serving  # raises what kept it from starting
    command = [sys.executable, __file__, "--url", ready.result(), *load]
    playing = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await playing.communicate()
    await asyncio.sleep(2)  # the last reports are being written
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    seen: dict[str, Any] = json.loads(said)
    return seen


def measure(agents: int, seconds: float, turns: int, sampling: float) -> dict[str, Any]:
    """Serve agents that another process plays: the policy alone, and the gateway before it."""
    load = [f"--agents={agents}", f"--seconds={seconds}", f"--turns={turns}"]
    policy = TimedPolicy(sampling)
    alone = run_to_end(play_against(partial(serve_directly, policy), load))
    with tempfile.TemporaryDirectory() as folder, open_memory(Path(folder) / "memory.db", MemoryConfig()) as memory:
        path = Path(folder) / EPISODES_FILE
        seen = run_to_end(play_against(partial(serve_gateway, policy, memory, path, turns), load))
        episodes = list(read_jsonl(path))
    waits = {"policy alone": alone, "gateway": seen}
    return {
        "agents": agents, "seconds": seconds, "sampling": sampling,
        "answers": len(seen["added"]), "answers_kept": sum(len(episode["steps"]) for episode in episodes),
        "reports": seen["reports"], "reports_kept": sum(e["outcome"] == "terminated" for e in episodes),
        "milliseconds": {
            name: {f"p{q}": 1000 * float(np.quantile(side["added"], q / 100)) for q in (50, 95, 99)}
            for name, side in waits.items()
        },
    }  # fmt: skip


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    title = f"{result['agents']} agents for {result['seconds']:g} s, {result['sampling']:g} s of sampling an answer"
    figures: dict[str, dict[str, float]] = result["milliseconds"]
    alone, gateway = figures.values()
    figures["the gateway adds"] = {name: gateway[name] - alone[name] for name in gateway}
    rows = [[name, *(f"{value:.2f}" for value in row.values())] for name, row in figures.items()]
    print_table(title, ("wait beside sampling, ms", "median", "95 %", "99 %"), rows)
    print(
        f"{result['answers_kept']:,} of {result['answers']:,} answers and {result['reports_kept']:,} of "
        f"{result['reports']:,} reports are kept"
    )


def main() -> None:
    """Measure, or be the agents of one who does."""
    parser = make_parser(__doc__, "5 agents for 5 s")
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--sampling", type=float, default=0.5, help="seconds that the policy takes for an answer")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.url:
        asyncio.run(run_agents(args.url, args.agents, args.seconds, args.turns))
        return
    agents, seconds = (5, 5.0) if args.quick else (args.agents, args.seconds)
    finish(measure(agents, seconds, args.turns, args.sampling), report, args.json)


if __name__ == "__main__":
    main()

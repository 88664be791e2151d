"""A proxy on the loopback between a client and a real server, which counts what passes and breaks what it is told to.

Nothing here answers in the place of a model: faults are what networks, gateways and rate limiters do to an answer.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

CHAT = "/chat/completions"


@dataclass
class Asked:
    """A chat request, as the proxy saw it."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    usage: tuple[int, int] = (0, 0)  # of the answer that the real server gave


@dataclass(frozen=True)
class Reply:
    """An answer of HTTP. With `cut`, the connection is closed after so many bytes of a body announced whole."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None


Fault = Callable[["Proxy", Asked], Awaitable[Reply]]


def refusal(status: int, message: str = "no", headers: Mapping[str, str] | None = None, **facts: Any) -> Fault:
    """The request never reaches the server."""

    async def fault(proxy: Proxy, asked: Asked) -> Reply:
        body = json.dumps({"error": {"message": message, "type": "proxy", **facts}}).encode()
        return Reply(body, status, headers or {})

    return fault


def changed(change: Callable[[dict[str, Any]], Any]) -> Fault:
    """The server's answer, but for what `change` does to it; strings go out as they are."""

    async def fault(proxy: Proxy, asked: Asked) -> Reply:
        answer = change(json.loads((await proxy.ask(asked)).body))
        return Reply(answer.encode() if isinstance(answer, str) else json.dumps(answer).encode())

    return fault


async def cut_body(proxy: Proxy, asked: Asked) -> Reply:
    """The connection breaks in the middle of the server's answer."""
    answer = await proxy.ask(asked)
    return Reply(answer.body, cut=len(answer.body) // 2)


async def cut_quietly(proxy: Proxy, asked: Asked) -> Reply:
    """Half of the server's answer, announced as if it were all."""
    answer = await proxy.ask(asked)
    return Reply(answer.body[: len(answer.body) // 2])


async def hang(proxy: Proxy, asked: Asked) -> Reply:
    """The server's answer never comes."""
    await proxy.ask(asked)
    await asyncio.sleep(3600)
    raise AssertionError


class Proxy:
    """What passed, and what is to happen next. Lives in a thread of its own; see `proxying`."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self.host, self.port, self.path = parts.hostname or "", parts.port or 80, parts.path
        self.url = ""
        self.asked: list[Asked] = []
        self.faults: list[Fault | None] = []  # for the next requests, one each
        self.always: Fault | None = None  # for all others
        self.key = ""  # what is asked of a client
        self.delay = 0.0  # seconds before an answer
        self.under_way = self.most_under_way = self.probes = 0

    @property
    def counts(self) -> Counter[str]:
        """How often each request was made."""
        return Counter(json.dumps(asked.body, sort_keys=True) for asked in self.asked)

    @property
    def tokens(self) -> int:
        """What the real server counted, answers that did not get through among them."""
        return sum(sum(asked.usage) for asked in self.asked)

    def wait_for(self, num: int, seconds: float = 60.0) -> None:
        """Until so many requests were made."""
        until = time.monotonic() + seconds
        while len(self.asked) < num:
            assert time.monotonic() < until, f"only {len(self.asked)} requests"
            time.sleep(0.005)

    async def ask(self, asked: Asked) -> Reply:
        """The real server's answer."""
        reply = await asyncio.to_thread(self._forward, json.dumps(asked.body).encode())
        with suppress(ValueError, KeyError):
            usage = json.loads(reply.body)["usage"]
            asked.usage = usage["prompt_tokens"], usage["completion_tokens"]
        return reply

    def _forward(self, body: bytes) -> Reply:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request("POST", self.path + CHAT, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return Reply(answer.read(), answer.status)
        finally:
            connection.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._request(reader, writer):
                pass
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request. False where the connection is not to be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:]) if k}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            given = headers.get("authorization", "")
            return await _send(writer, Reply(json.dumps({"error": {"message": f"bad key {given}"}}).encode(), 401))
        if not head[0].split()[1].endswith(CHAT):
            self.probes += 1
            return await _send(writer, Reply(b"{}", 404))
        asked = Asked(json.loads(body), headers)
        self.asked.append(asked)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self._answer(asked, reader, writer)
        finally:
            self.under_way -= 1

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(self.delay)
        fault = self.faults.pop(0) if self.faults else self.always
        if fault is None:
            return await _send(writer, await self.ask(asked))
        gone = asyncio.ensure_future(reader.read(1))  # the client hangs up on one that does not answer
        answer = asyncio.ensure_future(fault(self, asked))
        await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, answer):
            task.cancel()
        await asyncio.gather(gone, answer, return_exceptions=True)
        if not answer.cancelled():
            reply = answer.result()  # unannounced, the end of the connection might meet the client's next request
            await _send(writer, replace(reply, headers={**reply.headers, "Connection": "close"}))
        return False


async def _send(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    writer.write(_head(reply) + reply.body[: reply.cut])
    await writer.drain()
    return reply.cut is None


def _head(reply: Reply) -> bytes:
    phrase = HTTPStatus(reply.status).phrase
    headers = {"Content-Type": "application/json", "Content-Length": str(len(reply.body)), **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


@contextmanager
def proxying(target: str) -> Iterator[Proxy]:
    """A proxy before the API at `target`, until the end of the block."""
    proxy, ready = Proxy(target), threading.Event()
    stop: list[Callable[[], object]] = []

    async def live() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        ready.set()
        await done.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    assert ready.wait(10)
    try:
        yield proxy
    finally:
        stop[0]()
        thread.join()

"""The socket behind every site of ours, and visitors that do not finish what they began."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from trailnotes.web import serving
from trailnotes.web.serving import open_listener

HEAD = b"GET / HTTP/1.1\r\nHost: here\r\n"
WEBSOCKET = HEAD + (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def test_the_second_part_of_an_answer_does_not_wait_for_word_of_the_first() -> None:
    with open_listener("127.0.0.1", 0) as door, socket.create_connection(door.getsockname()):
        visitor, _ = door.accept()
        with visitor:
            assert visitor.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a socket option of Linux")
def test_a_visitor_that_reads_nothing_is_left_to_the_kernel() -> None:
    with open_listener("127.0.0.1", 0) as door, socket.create_connection(door.getsockname()):
        visitor, _ = door.accept()
        with visitor:
            assert visitor.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == serving.UNREAD_TIMEOUT_MS


class Loop(asyncio.SelectorEventLoop):
    """Whose clock a test sets forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class Site:
    """A site in the test's own loop: it reads a request to its end, then answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
        else:
            while (await receive()).get("more_body"):
                pass
        self.asked.set()
        await self.go.wait()
        if scope["type"] == "websocket":
            await send({"type": "websocket.send", "text": "ok"})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def open_site(site: Site) -> AsyncIterator[Callable[[bytes], Awaitable[asyncio.StreamReader]]]:
    """Serve it; yields what connects to it and says something, and returns when the site has noticed."""
    servers: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, open_listener("127.0.0.1", 0) as door:
        patch.setattr(serving._NotifyingServer, "run", lambda self, sockets: servers.append(self))
        serving.serve(site, door, most_ws_bytes=100)
        (server,) = servers
        ready, writers = asyncio.Event(), []
        server._ready = ready.set
        serves = asyncio.create_task(server.serve(sockets=[door]))
        await ready.wait()

        async def visit(says: bytes) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection(*door.getsockname())
            writers.append(writer)
            writer.write(says)
            here, known = writer.get_extra_info("sockname"), server.server_state.connections
            while all(each.client != here for each in known):  # noqa: ASYNC110 - uvicorn tells nobody
                await asyncio.sleep(0)
            return reader

        try:
            yield visit
        finally:
            for writer in writers:
                writer.close()
            server.should_exit = True
            await serves


async def last_words(reader: asyncio.StreamReader) -> bytes:
    """All that is said until the other side hangs up."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), 30)
    return b""


def run(test: Callable[[Loop], Awaitable[None]]) -> None:
    loop = Loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test(loop))  # type: ignore[arg-type]


@pytest.mark.parametrize("says", [b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\nhalf"])
def test_a_request_that_is_never_finished_ends_with_its_limit(says: bytes) -> None:
    async def test(loop: Loop) -> None:
        site = Site()
        site.go.set()
        async with open_site(site) as visit:
            reader = await visit(says)
            loop.ahead += serving.REQUEST_TIMEOUT_S
            assert await last_words(reader) == b""

    run(test)


def test_the_next_request_over_a_connection_has_its_limit_too() -> None:
    async def test(loop: Loop) -> None:
        site = Site()
        site.go.set()
        async with open_site(site) as visit:
            reader = await visit(HEAD + b"\r\n" + HEAD)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            loop.ahead += serving.REQUEST_TIMEOUT_S
            assert await last_words(reader) == b""

    run(test)


@pytest.mark.parametrize("says", [HEAD + b"\r\n", HEAD + b"Content-Length: 4\r\n\r\nbody", WEBSOCKET])
def test_an_answer_and_a_websocket_may_take_longer(says: bytes) -> None:
    async def test(loop: Loop) -> None:
        site = Site()
        async with open_site(site) as visit:
            reader = await visit(says)
            await site.asked.wait()
            loop.ahead += serving.REQUEST_TIMEOUT_S + 1
            await asyncio.sleep(0.01)  # what is due is done
            site.go.set()
            assert await asyncio.wait_for(reader.readuntil(b"ok"), 30)

    run(test)


def test_unfinished_requests_give_way_to_others_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_UNFINISHED", 3)

    async def test(_: Loop) -> None:
        site = Site()
        async with open_site(site) as visit:
            kept = await visit(HEAD + b"\r\n")
            await site.asked.wait()  # it counts no more
            first, second, *_rest = [await visit(HEAD) for _ in range(3)]
            site.go.set()
            reader = await visit(HEAD + b"\r\n")
            assert await reader.readuntil(b"ok")
            assert await last_words(first) == b""
            assert await kept.readuntil(b"ok")
            assert not second.at_eof()

    run(test)

"""Serves a site on a port: on this machine only, unless its caller says otherwise."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trailnotes.errors import ConfigError, Interrupted
from trailnotes.web.loopback import is_loopback

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import ASGIApp

MAX_CONNECTIONS = 2_000  # at once; one more is told to come back
MAX_UNFINISHED = 256  # connections whose visitor has not sent a whole request; one more, and the oldest gives way
REQUEST_TIMEOUT_S = 20.0  # for a whole request, from its connection or from the answer before it
UNREAD_TIMEOUT_MS = 60_000  # in which a visitor takes something of what it is sent


def open_listener(host: str, port: int, *, refusal: str = "") -> socket.socket:
    """Open a listening socket; port 0 takes a free one.

    `refusal` is the error's text where the address is open to other machines; "" allows that.

    Raises:
        ConfigError: the address is refused, the port is invalid, or they cannot be had.
    """
    if refusal and not is_loopback(host):
        raise ConfigError(f"--host {host} {refusal}")
    if not 0 <= port <= 65_535:
        raise ConfigError(f"--port {port} is none: name one up to 65535, or 0, which takes a free one")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        door = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        text = f"nothing can listen at {host}:{port} ({reason}): name another --port (0 takes a free one) or --host"
        raise ConfigError(text) from error
    # What is accepted here inherits it. An answer goes out in two parts, head and body, and the second would wait 40 ms
    # for the visitor's word that the first has come: asyncio sees to it only for sockets that name their protocol.
    door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux the kernel hangs up on a visitor that reads nothing
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_TIMEOUT_MS)
    return door


def format_host(door: socket.socket) -> str:
    """Format the address of a socket as Host headers write it: IPv6 in brackets."""
    host = str(door.getsockname()[0])
    return f"[{host}]" if ":" in host else host


def format_url(door: socket.socket) -> str:
    """Format the URL that a person types into a browser."""
    return f"http://{format_host(door)}:{door.getsockname()[1]}"


def serve(
    app: ASGIApp,
    door: socket.socket,
    ready: Callable[[], None] = lambda: None,
    *,
    lifespan: bool = False,
    most_ws_bytes: int = 0,
    goodbye: str = "",
) -> None:
    """Serve until this process is interrupted, finishing requests under way.

    `ready` is called once, when the first visitor may come; `most_ws_bytes` bounds a WebSocket message, 0 allows none.
    Ctrl-C prints `goodbye` if there is one, and raises otherwise.
    """
    config = build_server_config(app, lifespan=lifespan, most_ws_bytes=most_ws_bytes)
    try:
        _NotifyingServer(config, ready).run(sockets=[door])
    except KeyboardInterrupt as stop:
        if not goodbye or isinstance(stop, Interrupted):  # SIGTERM or SIGHUP: the exit code tells its sender
            raise
        print(goodbye)


def build_server_config(app: ASGIApp, *, lifespan: bool = False, most_ws_bytes: int = 0) -> uvicorn.Config:
    """Build the settings of a server, of which the arguments are those of `serve`."""
    return uvicorn.Config(
        app,
        access_log=False,
        log_level="error",  # below it, a line for each request that is none
        lifespan="on" if lifespan else "off",
        proxy_headers=False,
        http=_GuardedConnection,
        ws="websockets-sansio" if most_ws_bytes else "none",
        ws_max_size=max(1, most_ws_bytes),
        ws_per_message_deflate=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=5,
        server_header=False,
    )


class _NotifyingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


class _GuardedConnection(H11Protocol):
    """A connection that closes if a request takes too long, or holds the place of others; uvicorn waits forever."""

    limit: asyncio.TimerHandle | None = None  # while the rest of a request is waited for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()
        unfinished = [each for each in self.connections if isinstance(each, _GuardedConnection) and each.limit]
        if len(unfinished) > MAX_UNFINISHED:
            min(unfinished, key=lambda each: each.limit.when() if each.limit else 0.0).hang_up()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._start_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self.conn.their_state not in {h11.IDLE, h11.SEND_BODY} or self.transport.get_protocol() is not self:
            self._cancel_timer()  # all of it is here, or it is a WebSocket now
        elif self.limit is None:
            self.limit = self.loop.call_later(REQUEST_TIMEOUT_S, self.hang_up)

    def _cancel_timer(self) -> None:
        if self.limit:
            self.limit.cancel()
            self.limit = None

    def hang_up(self) -> None:
        """End the connection and its unsent answer."""
        self._cancel_timer()
        self.transport.abort()

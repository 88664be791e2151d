"""Serves a site on a port: on this machine only, unless its caller says otherwise."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from trailnotes.errors import ConfigError, Interrupted
from trailnotes.web.loopback import is_loopback

MAX_CONNECTIONS = 2_000  # at once; one more gets status 503


def open_listener(host: str, port: int, *, refusal: str = "") -> socket.socket:
    """Open a listening socket; port 0 takes a free one.

    `refusal` is the error's text where the address is open to other machines; "" allows that.
    """
    if refusal and not is_loopback(host):
        raise ConfigError(f"--host {host} {refusal}")
    if not 0 <= port <= 65_535:
        raise ConfigError(f"--port must be 0 to 65535, got {port}; 0 takes a free one")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        text = f"nothing can listen at {host}:{port} ({reason}): name another --port (0 takes a free one) or --host"
        raise ConfigError(text) from error
    # Accepted connections inherit it. Without it the body of an answer waits 40 ms until its head is acknowledged;
    # asyncio sets it only for sockets that name their protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def format_host(listener: socket.socket) -> str:
    host = str(listener.getsockname()[0])
    return f"[{host}]" if ":" in host else host


def format_url(listener: socket.socket) -> str:
    return f"http://{format_host(listener)}:{listener.getsockname()[1]}"


def serve(
    app: ASGIApp,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
    *,
    lifespan: bool = False,
    most_ws_bytes: int = 0,
    exit_message: str = "",
) -> None:
    """Serve until this process is interrupted, finishing requests under way.

    `ready` is called once, when the first visitor may come; `most_ws_bytes` bounds a WebSocket message, 0 allows none.
    Ctrl-C prints `exit_message` if there is one, and raises otherwise.
    """
    server = uvicorn.Server(build_server_config(app, lifespan=lifespan, most_ws_bytes=most_ws_bytes))
    start = server.startup

    async def start_and_notify(sockets: list[socket.socket] | None = None) -> None:
        await start(sockets)
        ready()

    server.startup = start_and_notify  # type: ignore[method-assign]
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt as stop:
        if not exit_message or isinstance(stop, Interrupted):  # SIGTERM or SIGHUP: the exit code tells its sender
            raise
        print(exit_message)


def _raise_interrupts(app: ASGIApp) -> ASGIApp:
    """Let a signal that interrupts a request end the event loop: uvicorn only logs it, and serves on."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except KeyboardInterrupt as stop:
            asyncio.get_running_loop().call_soon(_raise, stop)
            await asyncio.Event().wait()  # until the loop ends

    return run


def _raise(error: BaseException) -> None:
    raise error


def build_server_config(app: ASGIApp, *, lifespan: bool = False, most_ws_bytes: int = 0) -> uvicorn.Config:
    return uvicorn.Config(
        _raise_interrupts(app),
        access_log=False,
        log_level="error",  # below it, a line for each request that is none
        lifespan="on" if lifespan else "off",
        proxy_headers=False,
        http="h11",
        ws="websockets-sansio" if most_ws_bytes else "none",
        ws_max_size=max(1, most_ws_bytes),
        ws_per_message_deflate=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=5,
        server_header=False,
    )

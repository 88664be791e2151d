"""A site on a port: on this machine only, unless whoever starts it says otherwise."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING

from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp

CONNECTIONS = 2_000  # at once; one more is told to come back


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listening(host: str, port: int, *, refusal: str = "") -> socket.socket:
    """A socket that listens there.

    Args:
        host: name or address.
        port: 0 takes a free one.
        refusal: what is said where the address is open to other machines; "" lets it be.

    Raises:
        ConfigError: the address is open to others and that is refused, or it cannot be had.
    """
    if refusal and not is_loopback(host):
        raise ConfigError(f"--host {host} {refusal}")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except (OSError, OverflowError) as error:
        number = (error.errno or 0) if isinstance(error, OSError) else 0
        reason = os.strerror(number) if number > 0 else str(error)
        raise ConfigError(
            f"nothing can listen at {host}:{port} ({reason}): name another --port (0 takes a free one) or --host"
        ) from error


def address_of(door: socket.socket) -> str:
    """What a person types into a browser."""
    host, port = door.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: ASGIApp, door: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Answer until this process is interrupted; requests under way are finished first.

    Args:
        app: the application.
        door: a socket that listens.
        ready: called once, when the first visitor may come.
    """
    import uvicorn

    class Server(uvicorn.Server):
        """Says when it listens."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        lifespan="off",
        proxy_headers=False,
        ws="none",
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    Server(config).run(sockets=[door])

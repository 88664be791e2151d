"""A WebSocket server that answers by a script of the test: by the OpenEnv protocol, or against it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

Script = Callable[[ServerConnection, dict[str, Any]], None]
"""Answers one message on a connection."""

ACTION = {
    "properties": {"metadata": {"type": "object"}, "message": {"type": "string"}, "depth": {"type": "integer"}},
    "required": ["message"],
}
PAGES: dict[str, Any] = {
    "/schema": {"action": ACTION},
    "/metadata": {"name": "count", "description": "Count to three."},
}


def observation(text: str = "", reward: object = None, done: object = False, **fields: Any) -> str:
    """An answer of the protocol."""
    return json.dumps(
        {"type": "observation", "data": {"observation": {"said": text, **fields}, "reward": reward, "done": done}}
    )


def counting(connection: ServerConnection, message: dict[str, Any]) -> None:
    """A game of the seed: three actions and it is over; the last one is worth the seed's parity."""
    data = message["data"]
    if message["type"] == "reset":
        connection.seed, connection.left = data["seed"], 3  # type: ignore[attr-defined]
        connection.send(observation(f"seed {data['seed']}", hint=None))
        return
    connection.left -= 1  # type: ignore[attr-defined]
    over = connection.left == 0  # type: ignore[attr-defined]
    connection.send(observation(data["message"], float(over and connection.seed % 2), over))  # type: ignore[attr-defined]


@contextmanager
def serving(script: Script = counting, pages: dict[str, Any] | None = None, port: int = 0) -> Iterator[str]:
    """Serve until the end of the block; yields the address."""
    known = PAGES if pages is None else pages

    def page(_: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ws":
            return None
        if request.path == "/moved/ws":
            return Response(302, "Found", Headers({"Location": f"{known['elsewhere']}/ws", "Content-Length": "0"}), b"")
        found = request.path in known
        body = known[request.path] if found else {}
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status = HTTPStatus.OK if found else HTTPStatus.NOT_FOUND
        headers = Headers({"Content-Length": str(len(raw)), "Connection": "close"})
        return Response(status.value, status.phrase, headers, raw)

    def handle(connection: ServerConnection) -> None:
        try:
            for text in connection:
                message = json.loads(text)
                if message["type"] == "close":
                    return
                script(connection, message)
        except ConnectionClosed:
            pass

    with serve(handle, "127.0.0.1", port, process_request=page, close_timeout=0.2, ping_interval=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()

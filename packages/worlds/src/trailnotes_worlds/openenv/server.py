"""OpenEnv server of any environment, for TRL, verifiers, SkyRL and other clients of the protocol."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from trailnotes.web.guard import SecurityMiddleware, is_cross_site, parse_host_name
from trailnotes_worlds.openenv.sessions import SCHEMAS, ServedTasks, ServerSession, make_error_reply

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp
    from starlette.websockets import WebSocket

    from trailnotes.envs.workers.pool import EnvPool

MAX_MESSAGE_BYTES: Final = 1 << 20  # of one request
_CLOSE_TRY_AGAIN: Final = 1013  # WebSocket close codes (RFC 6455 and the IANA registry)
_CLOSE_GOING_AWAY: Final = 1001


@dataclass(frozen=True)
class ServerSettings:
    """Name and limits of a server."""

    name: str  # of the environment
    description: str  # in one line
    names: frozenset[str] | None  # hosts that it answers to; None for any
    sessions: int = 64  # at once
    idle_s: float = 600.0  # without a request, after which a session is ended


class OpenEnvService:
    """Route handlers of a server. All state is in its sessions."""

    def __init__(self, pool: EnvPool, games: ServedTasks, settings: ServerSettings) -> None:
        self.settings, self._pool, self._games, self._open = settings, pool, games, 0
        self._about = {"description": settings.description, "version": version("trailnotes")}

    async def session(self, websocket: WebSocket) -> None:
        """Serve one connection, from its first message to its last."""
        if not self._is_same_origin(websocket.headers):
            await websocket.close()  # before it is accepted: the answer is a plain 403
            return
        await websocket.accept()
        with suppress(WebSocketDisconnect):
            if self._open >= self.settings.sessions:
                taken = {"active_sessions": self._open, "max_sessions": self.settings.sessions}
                reply = make_error_reply("CAPACITY_REACHED", "all sessions of this server are taken", **taken)
                await websocket.send_text(json.dumps(reply))
                await websocket.close(_CLOSE_TRY_AGAIN)
                return
            self._open += 1
            visitor = ServerSession(self._pool, self._games)
            try:
                await self._serve(websocket, visitor)
            finally:
                self._open -= 1
                await visitor.release_env()

    async def _serve(self, websocket: WebSocket, visitor: ServerSession) -> None:
        while True:
            try:
                message = await asyncio.wait_for(websocket.receive(), self.settings.idle_s)
            except TimeoutError:
                reply = make_error_reply("SESSION_ERROR", "the session was idle for too long")
                await websocket.send_text(json.dumps(reply))
                await websocket.close(_CLOSE_GOING_AWAY)
                return
            if message["type"] == "websocket.disconnect":
                return
            answer = await visitor.handle_message(message.get("text"))
            if answer is None:
                with suppress(RuntimeError):  # the client may have closed by now
                    await websocket.close()
                return
            await websocket.send_text(json.dumps(answer))

    def _is_same_origin(self, headers: Headers) -> bool:
        """Browsers open WebSockets to any server for any page: only pages of this server's own address may."""
        host, names = headers.get("host", ""), self.settings.names
        mine = names is None or parse_host_name(host) in names
        return mine and not is_cross_site(host, headers.get("origin"), headers.get("sec-fetch-site"))

    async def health(self, _: Request) -> JSONResponse:
        return JSONResponse({"status": "healthy"})

    async def metadata(self, _: Request) -> JSONResponse:
        served = {"num_tasks": len(self._games.tasks), "splits": list(self._games.tasks_by_split)}
        about = {"name": self.settings.name, **self._about}
        return JSONResponse({**about, **served, "max_sessions": self.settings.sessions})

    async def schema(self, _: Request) -> JSONResponse:
        return JSONResponse(SCHEMAS)

    async def openapi(self, _: Request) -> JSONResponse:
        """Describe the HTTP pages of this server. OpenAPI cannot describe ``/ws``, which plays the episodes."""
        paths = {path: {method.lower(): {"summary": summary}} for path, method, summary in _PAGES}
        return JSONResponse({"openapi": "3.1.0", "info": {"title": self.settings.name, **self._about}, "paths": paths})

    async def mcp(self, _: Request) -> JSONResponse:
        error = {"code": -32601, "message": "this environment has no tools: play it over /ws"}
        return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error})


_PAGES: Final = (
    ("/health", "GET", "Whether the server runs"),
    ("/metadata", "GET", "What it serves"),
    ("/schema", "GET", "JSON schemas of actions, observations and states"),
    ("/mcp", "POST", "Tools: there are none"),
)


def make_app(pool: EnvPool, games: ServedTasks, settings: ServerSettings) -> ASGIApp:
    service = OpenEnvService(pool, games, settings)
    routes = [Route(path, getattr(service, path[1:]), methods=[method]) for path, method, _ in _PAGES]
    routes.append(Route("/openapi.json", service.openapi))
    app = Starlette(routes=[*routes, WebSocketRoute("/ws", service.session)])
    return SecurityMiddleware(app, settings.names, lambda status, text: JSONResponse({"detail": text}, status))

"""An environment of ours behind the OpenEnv protocol, for TRL, verifiers, SkyRL and whoever else speaks it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from trailnotes.web.guard import Guard, from_elsewhere, name_of
from trailnotes_worlds.openenv.sessions import ACTION, OBSERVATION, STATE, Games, Visitor, refusal

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp
    from starlette.websockets import WebSocket

    from trailnotes.envs.workers.pool import EnvPool

MOST_BYTES: Final = 1 << 20  # of one request
_TRY_AGAIN: Final = 1013  # WebSocket close codes (RFC 6455 and the IANA registry)
_AWAY: Final = 1001


@dataclass(frozen=True)
class Settings:
    """What is served, and to how many."""

    name: str  # of the environment
    description: str  # in one line
    names: frozenset[str] | None  # hosts that it answers to; None for any
    sessions: int = 64  # at once
    idle_s: float = 600.0  # without a request, after which a session is ended


class Service:
    """The routes of a server. All that changes is in its sessions.

    Args:
        pool: lends environments to sessions.
        games: what can be played.
        settings: name and limits.
    """

    def __init__(self, pool: EnvPool, games: Games, settings: Settings) -> None:
        self.settings = settings
        self._pool, self._games = pool, games
        self._open = 0

    async def session(self, websocket: WebSocket) -> None:
        """One connection, from its first message to its last."""
        if not self._lets_in(websocket.headers):
            await websocket.close()  # before it is accepted: the answer is a plain 403
            return
        await websocket.accept()
        with suppress(WebSocketDisconnect, TimeoutError):  # TimeoutError: of a visitor who does not read
            if self._open >= self.settings.sessions:
                taken = {"active_sessions": self._open, "max_sessions": self.settings.sessions}
                text = "all sessions of this server are taken"
                await websocket.send_text(json.dumps(refusal("CAPACITY_REACHED", text, **taken)))
                await websocket.close(_TRY_AGAIN)
                return
            self._open += 1
            visitor = Visitor(self._pool, self._games)
            try:
                await self._serve(websocket, visitor)
            finally:
                self._open -= 1
                await visitor.leave()

    async def _serve(self, websocket: WebSocket, visitor: Visitor) -> None:
        while True:
            try:
                message = await asyncio.wait_for(websocket.receive(), self.settings.idle_s)
            except TimeoutError:
                await websocket.send_text(json.dumps(refusal("SESSION_ERROR", "the session was idle for too long")))
                await websocket.close(_AWAY)
                return
            if message["type"] == "websocket.disconnect":
                return
            answer = await visitor.answer(message.get("text"))
            if answer is None:
                with suppress(RuntimeError):  # who says that it closes may have closed
                    await websocket.close()
                return
            await asyncio.wait_for(websocket.send_text(json.dumps(answer)), self.settings.idle_s)

    def _lets_in(self, headers: Headers) -> bool:
        """Browsers open WebSockets to any server for any page: only pages of this server's own address may."""
        host = headers.get("host", "")
        names = self.settings.names
        mine = names is None or name_of(host) in names
        return mine and not from_elsewhere(host, headers.get("origin"), headers.get("sec-fetch-site"))

    async def health(self, _: Request) -> JSONResponse:
        """That it runs."""
        return JSONResponse({"status": "healthy"})

    async def metadata(self, _: Request) -> JSONResponse:
        """What it serves."""
        about = {"name": self.settings.name, "description": self.settings.description, "version": _version()}
        served = {"num_tasks": len(self._games.tasks), "splits": list(self._games.splits)}
        return JSONResponse({**about, **served, "max_sessions": self.settings.sessions})

    async def schema(self, _: Request) -> JSONResponse:
        """JSON schemas of actions, observations and states."""
        return JSONResponse({"action": ACTION, "observation": OBSERVATION, "state": STATE})

    async def openapi(self, _: Request) -> JSONResponse:
        """The pages of this server. Episodes are played over ``/ws`` alone, which OpenAPI has no words for."""
        info = {"title": self.settings.name, "version": _version(), "description": self.settings.description}
        paths = {path: {method.lower(): {"summary": summary}} for path, method, summary in _PAGES}
        return JSONResponse({"openapi": "3.1.0", "info": info, "paths": paths})

    async def mcp(self, _: Request) -> JSONResponse:
        """There are no tools here; JSON-RPC has a word for that."""
        error = {"code": -32601, "message": "this environment has no tools: play it over /ws"}
        return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error})


_PAGES: Final = (
    ("/health", "GET", "Whether the server runs"),
    ("/metadata", "GET", "What it serves"),
    ("/schema", "GET", "JSON schemas of actions, observations and states"),
    ("/mcp", "POST", "Tools: there are none"),
)


def make_app(pool: EnvPool, games: Games, settings: Settings) -> ASGIApp:
    """The application that `web.serving.serve` serves."""
    service = Service(pool, games, settings)
    pages: dict[str, Any] = {"/health": service.health, "/metadata": service.metadata, "/schema": service.schema}
    pages |= {"/mcp": service.mcp, "/openapi.json": service.openapi}
    posted = {path for path, method, _ in _PAGES if method == "POST"}
    routes = [Route(path, page, methods=["POST" if path in posted else "GET"]) for path, page in pages.items()]
    app = Starlette(routes=[*routes, WebSocketRoute("/ws", service.session)])
    return Guard(app, settings.names, lambda status, text: JSONResponse({"detail": text}, status))


def _version() -> str:
    return version("trailnotes")

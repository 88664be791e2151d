"""OpenEnv server of any environment, for TRL, verifiers, SkyRL and other clients of the protocol."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from trailnotes.envs.workers.pool import EnvPool, Lease
from trailnotes.errors import EnvError, TrailnotesError
from trailnotes.storage.files import parse_json
from trailnotes.types import Observation, Task
from trailnotes.web.guard import SecurityMiddleware, is_cross_site, parse_host_name
from trailnotes_worlds.third_party import FIRST_SEED

Reply = dict[str, Any]

_KINDS: Final = ("reset", "step", "state", "close")

SCHEMAS: Final = parse_json(Path(__file__).with_name("schemas.json").read_text(encoding="utf-8"))


class _ProtocolError(Exception):
    """Request that the server answers with an error; the session goes on."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code  # of the protocol


@dataclass(frozen=True)
class ServedTasks:
    """Tasks that a server offers, in the environment's order, of one split or several."""

    tasks: Sequence[Task]

    @cached_property
    def tasks_by_split(self) -> Mapping[str, Sequence[Task]]:
        splits = dict.fromkeys(task.split for task in self.tasks)
        return {split: [task for task in self.tasks if task.split == split] for split in splits}

    def choose_task(self, data: Mapping[str, Any]) -> Task:
        """Choose the task that a reset asks for: by its id, by a seed, or at random.

        A seed counts through the tasks of a single split. Of several splits, each has the seeds that `OpenEnvClient`
        gives it (`FIRST_SEED`), and a random task is one of training.
        """
        wanted, seed = data.get("task"), data.get("seed")
        if wanted is not None:
            for task in self.tasks:
                if task.id == wanted:
                    return task
            text = f"there is no task {str(wanted)[:100]!r} among the {len(self.tasks)} that are served"
            raise _ProtocolError("VALIDATION_ERROR", text)
        if seed is None:
            return random.SystemRandom().choice(self.tasks_by_split.get("train", self.tasks))
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise _ProtocolError("VALIDATION_ERROR", "seed must be a whole number from 0 on")
        if len(self.tasks_by_split) == 1:
            return self.tasks[seed % len(self.tasks)]
        split = max((name for name, first in FIRST_SEED.items() if first <= seed), key=FIRST_SEED.__getitem__)
        if split not in self.tasks_by_split:
            text = f"seed {seed} is of split {split}, which is not served: there are {', '.join(self.tasks_by_split)}"
            raise _ProtocolError("VALIDATION_ERROR", text)
        return self.tasks_by_split[split][(seed - FIRST_SEED[split]) % len(self.tasks_by_split[split])]


class ServerSession:
    """One session with an environment of its own, one request at a time."""

    def __init__(self, pool: EnvPool, games: ServedTasks) -> None:
        self._pool, self._games = pool, games
        self._borrowed = AsyncExitStack()
        self._lease: Lease | None = None
        self._task: Task | None = None
        self._playing = False
        self._episode, self._steps = "", 0

    async def handle_message(self, text: str | None) -> Reply | None:
        """Answer one message (None: bytes); None if the message ends the session."""
        try:
            kind, data = _parse_message(text)
            if kind == "close":
                return None
            if kind == "reset":
                return await self._reset(data)
            return await self._step(data) if kind == "step" else self._state()
        except _ProtocolError as refused:
            return make_error_reply(refused.code, str(refused))
        except EnvError as error:
            await self.release_env()  # an environment that failed is of no use; the next reset gets another
            return make_error_reply("EXECUTION_ERROR", str(error))
        except TrailnotesError as error:
            await self.release_env()
            return make_error_reply("FACTORY_ERROR", str(error))

    async def release_env(self) -> None:
        self._playing, self._lease = False, None
        await self._borrowed.aclose()

    async def _reset(self, data: Mapping[str, Any]) -> Reply:
        task = self._games.choose_task(data)
        if self._lease is None:
            self._lease = await self._borrowed.enter_async_context(self._pool.lease())
        self._playing = False
        observation = await self._lease.reset(task)
        name = data.get("episode_id")
        self._episode = name[:255] if isinstance(name, str) and name else str(uuid4())
        self._task, self._steps, self._playing = task, 0, True
        return self._make_reply(observation, reward=None)

    async def _step(self, data: Mapping[str, Any]) -> Reply:
        action = data.get("action")
        if not isinstance(action, str) or set(data) - {"action", "metadata"}:
            raise _ProtocolError("VALIDATION_ERROR", 'an action is {"action": TEXT}')
        if self._lease is None or not self._playing:
            raise _ProtocolError("EXECUTION_ERROR", "no episode is under way: send a reset first")
        observation = await self._lease.step(action)
        self._steps += 1
        self._playing = not observation.done
        return self._make_reply(observation, reward=observation.reward)

    def _state(self) -> Reply:
        task = self._task.id if self._task else None
        return {"type": "state", "data": {"episode_id": self._episode or None, "step_count": self._steps, "task": task}}

    def _make_reply(self, observation: Observation, reward: float | None) -> Reply:
        assert self._task is not None
        names = ("text", "instruction", "actions", "success", "truncated", "score", "max_score")
        seen = {name: getattr(observation, name) for name in names} | {"task": self._task.id}
        return {"type": "observation", "data": {"observation": seen, "reward": reward, "done": observation.done}}


def _parse_message(text: str | None) -> tuple[str, dict[str, Any]]:
    try:
        message = parse_json(text or "")
    except ValueError:
        raise _ProtocolError("INVALID_JSON", "a message is a JSON text") from None
    if not isinstance(message, dict) or message.get("type") not in _KINDS:
        raise _ProtocolError("UNKNOWN_TYPE", f"the type of a message is one of {', '.join(_KINDS)}")
    data = message.get("data", {})
    if not isinstance(data, dict):
        raise _ProtocolError("VALIDATION_ERROR", "the data of a message is a JSON object")
    return message["type"], data


def make_error_reply(code: str, message: str, **more: Any) -> Reply:
    """Build an error of the protocol; `errors` lists the message as the official server does."""
    errors = {"errors": [{"msg": message}]} if code == "VALIDATION_ERROR" else {}
    return {"type": "error", "data": {"message": message, "code": code, **errors, **more}}


MAX_MESSAGE_BYTES: Final = 1 << 20  # of one request
_CLOSE_TRY_AGAIN: Final = 1013  # WebSocket close codes (RFC 6455 and the IANA registry)
_CLOSE_GOING_AWAY: Final = 1001


@dataclass(frozen=True)
class ServerSettings:
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

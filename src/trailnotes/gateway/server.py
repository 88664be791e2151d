"""The web server of a gateway: the model's address for agents, one session by path or header."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trailnotes.gateway import requests
from trailnotes.gateway.requests import MODEL, MODEL_FAILED, ModelCall, ModelReply, RequestRefused
from trailnotes.gateway.session import Session, parse_report
from trailnotes.storage.files import encode_line, parse_json, task_to_json
from trailnotes.web.guard import LOOPBACK_NAMES, BearerMiddleware, SecurityMiddleware
from trailnotes.web.serving import build_server_config, format_host, format_url

FindSession = Callable[[str, str], Session]
Handler = Callable[[Request], Awaitable[Response]]
MAX_BODY_BYTES: Final = 4 * 1024 * 1024  # of a request: several times what the longest context holds
HEADER: Final = "x-trailnotes-session"
TASK_HEADER: Final = "x-trailnotes-task"
TRAINED_HEADER: Final = "x-trailnotes-train"  # 0: the answer to this request is not trained
_MODEL_CARD: Final = {"id": MODEL, "object": "model", "created": 0, "owned_by": "trailnotes"}
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")  # may be half a character


class GatewayServer:
    """Serves sessions in the running event loop, which is theirs, until it is stopped.

    Args:
        find: finds the session of a key and a task (or ""); a gateway that is open to all begins one if there is none.
            It raises `RequestRefused` where there is no such session, or no room for one more.
        listener: an open socket.
        find_default: finds the session of requests that name none, by their task (or ""); None: they are refused.
        token: is asked of every request; "" asks none.
        public: answer to any host name.
    """

    def __init__(
        self, find: FindSession, listener: socket.socket, *, token: str = "", public: bool = False,
        find_default: Callable[[str], Session] | None = None,
    ) -> None:  # fmt: skip
        self.url, self._listener = format_url(listener), listener
        self.loop = asyncio.get_running_loop()
        names = None if public else LOOPBACK_NAMES | {format_host(listener)}
        layers = [Middleware(SecurityMiddleware, names=names, refuse=_refuse)]
        layers += [Middleware(BearerMiddleware, token=token, refuse=_refuse)] if token else []
        self._find_session, self._find_default = find, find_default
        site = Starlette(
            routes=self._list_routes(), middleware=layers,
            exception_handlers=dict.fromkeys((HTTPException, RequestRefused, ClientDisconnect), _answer_error),
        )  # fmt: skip
        config = build_server_config(site)
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer, without uvicorn's own main loop, which would take over the signals of the process."""
        await self._server.startup(sockets=[self._listener])
        self._serving = self.loop.create_task(self._serve())

    async def _serve(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:  # at the latest when the loop ends and cancels its tasks: afterwards no connection can be closed
            self._hang_up()

    def _hang_up(self) -> None:
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.shutdown()
            connection.transport.abort()  # one whose answer is not out yet

    def stop(self) -> None:
        """Stop answering; a second call is harmless."""
        if self._serving and not self.loop.is_closed():
            self._hang_up()
        self._listener.close()

    def _list_routes(self) -> list[Route]:
        table: list[tuple[str, str, Handler]] = [
            ("POST", "/sessions", self._open),
            ("GET", "/sessions/{session}", self._show),
            ("POST", "/sessions/{session}/report", self._report),
        ]
        for prefix in ("", "/sessions/{session}"):
            table += [
                ("POST", f"{prefix}/v1/chat/completions", self._chat),
                ("POST", f"{prefix}/v1/responses", self._respond),
                ("GET", f"{prefix}/v1/models", self._list_models),
                ("GET", f"{prefix}/v1/models/{MODEL}", self._show_model),
            ]
        return [Route(path, handler, methods=[method]) for method, path, handler in table]

    async def _chat(self, request: Request) -> Response:
        call = requests.parse_chat_call(await _read_json(request))
        replies = await self._ask(request, call)
        if call.stream:
            return StreamingResponse(requests.iter_chat_events(replies), media_type="text/event-stream")
        return JSONResponse(requests.build_chat_answer(replies))

    async def _respond(self, request: Request) -> Response:
        call = requests.parse_responses_call(await _read_json(request))
        (reply,) = await self._ask(request, call)
        return JSONResponse(requests.build_responses_answer(reply))

    async def _ask(self, request: Request, call: ModelCall) -> list[ModelReply]:
        """Have a session answer, unless the client leaves before."""
        answering = asyncio.ensure_future(self._answer(request, call))
        leaving = asyncio.ensure_future(request.receive())  # the body has been read: what comes is the end
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ClientDisconnect
            return answering.result()
        finally:
            answering.cancel()
            leaving.cancel()

    async def _answer(self, request: Request, call: ModelCall) -> list[ModelReply]:
        again = request.headers.get("x-stainless-retry-count", "0") != "0"
        trained = request.headers.get(TRAINED_HEADER, "1").lower() not in {"0", "false", "no"}
        replies: list[ModelReply] = []
        while len(replies) < call.num_answers:
            session = self._find(request)
            try:
                replies.append(await session.ask(call, again=again, trained=trained, number=len(replies)))
            except RequestRefused as refusal:  # the next session of a client that names none answers
                if refusal.code != "episode_over" or not session.num_answered or _get_key(request):
                    raise
        return replies

    async def _open(self, request: Request) -> Response:
        task = (await _read_json(request)).get("task")
        if not isinstance(task, str) or not task:
            raise RequestRefused('a session needs a task: send {"task": "ID"}')
        session = self._find_session("", task)
        return JSONResponse({"session": session.key, "path": f"/sessions/{session.key}"})

    async def _show(self, request: Request) -> Response:
        return Response(encode_line(task_to_json(self._find(request).task)), media_type="application/json")

    async def _report(self, request: Request) -> Response:
        report = parse_report(await _read_json(request))
        session = self._find(request)
        session.report(report)
        if report.done and session.kept and (refusal := await asyncio.shield(session.kept)):
            raise refusal
        return JSONResponse({"done": report.done})

    async def _list_models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_MODEL_CARD]})

    async def _show_model(self, _request: Request) -> Response:
        return JSONResponse(_MODEL_CARD)

    def _find(self, request: Request) -> Session:
        key = _get_key(request)
        if not key and self._find_default:
            return self._find_default(request.headers.get(TASK_HEADER, ""))
        if not key:
            raise RequestRefused(f"which session? Name it in the header {HEADER}, or use /sessions/NAME/v1", 404)
        return self._find_session(key, request.headers.get(TASK_HEADER, ""))


def _get_key(request: Request) -> str:
    """Return the name of the session that a request names, "" for none."""
    return str(request.path_params.get("session") or request.headers.get(HEADER, ""))


def _refuse(status: int, text: str) -> Response:
    return JSONResponse(RequestRefused(text, status).to_json(), status)


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestRefused):
        headers = {"x-should-retry": "false"} if error.code == MODEL_FAILED else None  # to clients of OpenAI
        return JSONResponse(error.to_json(), error.status, headers)
    if isinstance(error, HTTPException):  # no route serves it
        called = f"{request.method} {request.url.path}"
        return _refuse(error.status_code, f"there is no {called} here: the base URL of a client ends in /v1")
    return Response(status_code=400)  # its client has gone


async def _read_json(request: Request) -> dict[str, Any]:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise RequestRefused(f"a request has at most {MAX_BODY_BYTES:,} bytes", 413, "too_large")
    try:
        value = parse_json(bytes(body))
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestRefused("the body has half of a surrogate pair, which is no text") from None
    except ValueError:
        raise RequestRefused("the body is no JSON") from None
    if not isinstance(value, dict):
        raise RequestRefused("the body must be a JSON object")
    return value

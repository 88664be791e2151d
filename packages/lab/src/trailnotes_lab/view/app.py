"""The ASGI application of `trailnotes view`: pages behind a token."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from trailnotes.errors import TrailnotesError
from trailnotes.web.guard import CONTENT_SECURITY_POLICY, LOOPBACK_NAMES, SecurityMiddleware
from trailnotes_lab.view.drawing import ASSETS, render_template
from trailnotes_lab.view.pages import render_page
from trailnotes_lab.view.window import PageNotFound, Query, Window

SCRIPT_POLICY: Final = f"{CONTENT_SECURITY_POLICY}; script-src 'self'; connect-src 'self'"
NO_TOKEN: Final = "Open the address that the command has printed: it contains the token."  # noqa: S105
CACHE_HEADERS: Final = {"cache-control": "private, max-age=31536000, immutable"}


def make_app(window: Window, token: str) -> ASGIApp:
    """Make the application of a window; `token` comes as ``?token=``, and is a cookie from then on."""
    cookie = f"trailnotes-view-{hashlib.blake2b(token.encode(), digest_size=4).hexdigest()}"

    def is_token(given: str) -> bool:
        return hmac.compare_digest(given.encode(), token.encode())

    async def handle_request(request: Request) -> Response:
        path = request.url.path
        if is_token(request.query_params.get("token", "")):
            answer = RedirectResponse(f"/{quote(path.lstrip('/'))}", 303, {"cache-control": "no-store"})
            answer.set_cookie(cookie, token, httponly=True, samesite="lax", path="/")
            return answer
        if not is_token(request.cookies.get(cookie, "")):
            raise HTTPException(403, NO_TOKEN)
        if path in ASSETS:
            kind, text = ASSETS[path]
            return Response(text, headers=CACHE_HEADERS, media_type=kind)
        return await run_in_threadpool(_render, window, path, parse_qs(request.url.query))

    app = Starlette(
        routes=[Route("/{path:path}", handle_request, methods=["GET", "HEAD"])],
        exception_handlers={HTTPException: _handle_error, Exception: _handle_error},
    )
    return SecurityMiddleware(app, LOOPBACK_NAMES, _make_error, SCRIPT_POLICY)


def _render(window: Window, path: str, query: Query) -> Response:
    try:
        with window.lock:
            return _make_response(render_page(window, path, query))
    except (TrailnotesError, OSError) as error:
        return _make_error(404 if isinstance(error, PageNotFound) else 409, str(error))


async def _handle_error(_request: Request, error: Exception) -> Response:
    status, text = 500, "The terminal says more about this error."
    if isinstance(error, HTTPException):
        status, text = error.status_code, error.detail
    return _make_error(status, text)


def _make_error(status: int, text: str) -> Response:
    page = render_template("error", heading=f"Error {status}", text=text, live=False, way=[])
    return _make_response(page, status)


def _make_response(text: str, status: int = 200) -> Response:
    return Response(text, status, {"cache-control": "no-store"}, "text/html; charset=utf-8")

"""The ASGI application of `trailnotes view`: a token, pages, and forms only with --write."""

from __future__ import annotations

import hashlib
import hmac
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from trailnotes.errors import MemoryStoreError, TrailnotesError
from trailnotes.memory.exchange import delete_tips, edit_tip, enable_tips
from trailnotes.web.forms import read_form
from trailnotes.web.guard import CONTENT_SECURITY_POLICY, LOOPBACK_NAMES, SecurityMiddleware
from trailnotes_lab.view import tips
from trailnotes_lab.view.drawing import ASSETS
from trailnotes_lab.view.pages import render_page
from trailnotes_lab.view.places import MAX_FOLDERS
from trailnotes_lab.view.window import PageNotFound, Window, render_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from trailnotes.memory.store import TipStore

MAX_FORM_BYTES: Final = 65_536  # bytes
SCRIPT_POLICY: Final = f"{CONTENT_SECURITY_POLICY}; script-src 'self'; connect-src 'self'"
NO_TOKEN: Final = "Open the address that the command has printed: it holds the token that this window asks for."  # noqa: S105
CACHE_HEADERS: Final = {"cache-control": "private, max-age=31536000, immutable"}


def make_app(window: Window, token: str) -> ASGIApp:
    """Make the application of a window; `token` is asked for as ``?token=``, and is a cookie from then on."""
    app = Starlette(
        routes=[Route("/{path:path}", ViewHandlers(window, token).handle_request, methods=["GET", "HEAD", "POST"])],
        exception_handlers={HTTPException: _handle_error, Exception: _handle_error},
    )

    def refuse(status: int, text: str) -> Response:
        return _make_response(render_error(status, text), status)

    return SecurityMiddleware(app, LOOPBACK_NAMES, refuse, SCRIPT_POLICY)


class ViewHandlers:
    """The request handlers of one window."""

    def __init__(self, window: Window, token: str) -> None:
        self.window, self.token = window, token
        self.cookie = f"trailnotes-view-{hashlib.blake2b(token.encode(), digest_size=4).hexdigest()}"

    async def handle_request(self, request: Request) -> Response:
        """Answer any request of the window."""
        path = request.url.path
        if (given := request.query_params.get("token")) is not None and self._is_token(given):
            answer = RedirectResponse(f"/{quote(path.lstrip('/'))}", 303, {"cache-control": "no-store"})
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="lax", path="/")
            return answer
        if not self._is_token(request.cookies.get(self.cookie, "")):
            raise HTTPException(403, NO_TOKEN)
        if path in ASSETS:
            kind, text = ASSETS[path]
            return Response(text, headers=CACHE_HEADERS, media_type=kind)
        if request.method == "POST":
            return await self._handle_change(request)
        try:
            query = parse_qs(request.url.query, max_num_fields=MAX_FOLDERS)
        except ValueError:
            raise HTTPException(400, f"An address of the window has {MAX_FOLDERS:,} fields at most.") from None
        found = await run_in_threadpool(self.window.render, render_page, path, query)
        return _make_response(found.text, found.status)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    async def _handle_change(self, request: Request) -> Response:
        """A form of a tip's page leads to the page of the changed tip."""
        if not self.window.write:
            raise HTTPException(405, "This window only looks: start it with --write to change tips.")
        match request.url.path.split("/"):
            case ["", "run", slug, "tips", number, verb] if number.isascii() and number.isdigit() and verb in CHANGES:
                fields = await read_form(request, "The window", MAX_FORM_BYTES, 16)
                try:
                    place = self.window.place("run", slug)
                    file, tip_id = place.path / "memory.db", int(number[:12])
                    act = CHANGES[verb](tip_id, fields)
                    await run_in_threadpool(tips.apply_change, file, tip_id, fields.get("seen", ""), act)
                except PageNotFound as error:
                    raise HTTPException(404, str(error)) from error
                except (TrailnotesError, OSError) as error:
                    raise HTTPException(409, str(error)) from error
                there = f"/run/{quote(slug)}/tips" + ("" if verb == "delete" else f"/{int(number[:12])}")
                return RedirectResponse(f"{there}?said={verb}", 303, {"cache-control": "no-store"})
        raise HTTPException(404, "there is no form of this address")


def _parse_edit(tip_id: int, fields: Mapping[str, str]) -> Callable[[TipStore], object]:
    try:
        score = float(fields.get("score", ""))
    except ValueError:
        raise MemoryStoreError(f"a tip's score must be a number, got {fields.get('score', '')[:40]!r}") from None
    return lambda store: edit_tip(store, tip_id, fields.get("text", ""), score=score)


CHANGES: Final[Mapping[str, Callable[[int, Mapping[str, str]], Callable[[TipStore], object]]]] = {
    "edit": _parse_edit,
    "switch": lambda tip_id, fields: partial(enable_tips, ids=[tip_id], enabled=fields.get("to") == "on"),
    "delete": lambda tip_id, _: partial(delete_tips, ids=[tip_id]),
}


async def _handle_error(_request: Request, error: Exception) -> Response:
    status, text = 500, "This is a fault of the window; the terminal says more."
    if isinstance(error, HTTPException):
        status, text = error.status_code, error.detail
    return _make_response(render_error(status, text), status)


def _make_response(text: str, status: int = 200) -> Response:
    return Response(text, status, {"cache-control": "no-store"}, "text/html; charset=utf-8")

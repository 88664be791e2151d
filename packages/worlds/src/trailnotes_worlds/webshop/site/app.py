"""Web site of the shop as an ASGI application: a few paths, forms that act, and pages of the state of a visit.

A redirect answers each form, so that a reload does not act again. Each form holds the step of the visit at which its
page was drawn: a form from a page that is no longer current (a second click, another tab, the back button) does
nothing, and the next page says so.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from trailnotes.errors import TrailnotesError
from trailnotes.web.forms import read_form
from trailnotes.web.guard import SecurityMiddleware
from trailnotes_worlds.webshop.site.drawing import ICON, STYLE, VERSION, render_template
from trailnotes_worlds.webshop.site.sessions import SessionStore

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from trailnotes.types import Task
    from trailnotes_worlds.webshop.site.visits import ShopService, ShopVisit

logger = logging.getLogger(__name__)

MAX_FORM_BYTES: Final = 16_384  # bytes
MAX_QUERY_CHARS: Final = 400  # characters that the search bar takes; an agent says no more in one action
ERROR_HEADINGS: Final = {
    400: "That cannot be read", 403: "Not from here", 404: "No such page", 405: "Not that way",
    408: "That took too long", 413: "That is too much", 415: "Not a form", 421: "Not by that name",
    500: "Something went wrong", 503: "The shop is closed",
}  # fmt: skip
STALE_FORM_NOTICE: Final = (
    "That button was on a page that is no longer current, so nothing was done. This is where you are."
)
EXPIRED_NOTICE: Final = "Your visit has ended, since nothing happened for a while. Begin again whenever you like."
_ASSETS: Final = {"/shop.css": (STYLE, "text/css; charset=utf-8"), "/icon.svg": (ICON, "image/svg+xml")}
_CACHE_HEADERS: Final = {"cache-control": "public, max-age=31536000, immutable"}
UNRECORDED_NOTICE: Final = "This purchase could not be recorded; the terminal of the shop says why."


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """Settings of one site."""

    cookie: str = "trailnotes-shop"
    names: frozenset[str] | None = None  # hosts that it answers to; None for any
    most_visits: int = 10_000
    idle_s: float = 3600.0
    only: int | None = None  # the one goal that is played, by its place in the split; None: the visitor's choice
    clock: Callable[[], float] = time.monotonic


class Recorder(Protocol):
    """Recorder of purchases, called in a thread, and never twice at once."""

    def line(self, task: Task, actions: Sequence[str]) -> Mapping[str, Any]:
        """Make the record of a visit that has ended in a purchase. Raises `TrailnotesError`."""
        ...

    def write(self, line: Mapping[str, Any]) -> None:
        """Write a record, whole or not at all. Raises `TrailnotesError`."""
        ...


class ShopSite:
    """Route handlers of one site. All state is in its sessions.

    Args:
        floor: the shop, its goals and its rules.
        settings: names and limits.
        recorder: records the visits that end in a purchase; None records none.
    """

    def __init__(self, floor: ShopService, settings: SiteSettings, recorder: Recorder | None = None) -> None:
        self.floor, self.settings = floor, settings
        self.sessions: SessionStore[ShopVisit] = SessionStore(settings.most_visits, settings.idle_s, settings.clock)
        self._recorder = recorder
        self._recording = asyncio.Lock()

    async def welcome(self, request: Request) -> Response:
        """Show the entrance. It begins no visit: a robot that only looks takes no session."""
        return self._render_welcome(visiting=self._find_visit(request) is not None)

    async def shop(self, request: Request) -> Response:
        """Show the current page of the visit."""
        visit = self._find_visit(request)
        if visit is None:
            return self._redirect("/")
        notice, visit.notice = visit.notice, ""
        values: dict[str, Any] = {"page": self.floor.build_page(visit), "step": visit.step}
        values["instruction"] = visit.instruction
        return _render_page("shop", **values, notice=notice, longest=MAX_QUERY_CHARS)

    async def score(self, request: Request) -> Response:
        """Show the score of the purchase, which the text environment gives to the learner alone."""
        visit = self._find_visit(request)
        if visit is None:
            return self._redirect("/")
        score = self.floor.score(visit)
        if score is None:
            return self._redirect("/shop")
        notice, visit.notice = visit.notice, ""
        instruction, only = visit.instruction, self.settings.only is not None
        return _render_page("score", score=score, step=visit.step, instruction=instruction, only=only, notice=notice)

    async def begin(self, request: Request) -> Response:
        """Begin a new visit in place of the one before."""
        form = await read_form(request, "The shop", MAX_FORM_BYTES, 8)
        goal = self.settings.only
        if goal is None and "goal" in form:
            goal = _parse_number(form["goal"])
            if goal is None or not goal < len(self.floor.tasks):
                text = f"Goals have numbers from 0 to {len(self.floor.tasks) - 1}."
                return self._render_welcome(visiting=self._find_visit(request) is not None, notice=text, status=400)
        visit = self.floor.start_visit(secrets.randbelow(len(self.floor.tasks)) if goal is None else goal)
        self.sessions.remove(request.cookies.get(self.settings.cookie))
        answer = self._redirect("/shop")
        answer.set_cookie(self.settings.cookie, self.sessions.add(visit), httponly=True, samesite="strict")
        return answer

    async def act(self, request: Request) -> Response:
        """Take one step of the visit."""
        form = await read_form(request, "The shop", MAX_FORM_BYTES, 8)
        visit = self._find_visit(request)
        if visit is None:
            return self._render_welcome(visiting=False, notice=EXPIRED_NOTICE, status=403)
        action = f"search[{form['query']}]" if "query" in form else form.get("action", "")
        if _parse_number(form.get("at", "")) != visit.step:
            visit.notice = STALE_FORM_NOTICE
            return self._redirect("/shop")
        if self.floor.act(visit, action) and visit.has_bought:
            await self._record_visit(visit)
        return self._redirect("/shop")

    async def _record_visit(self, visit: ShopVisit) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        try:
            async with self._recording:
                # Replaying a visit would block the other visitors.
                await run_in_threadpool(lambda: recorder.write(recorder.line(visit.task, visit.actions)))
        except TrailnotesError as error:
            logger.warning("a purchase was not recorded: %s", error)
            visit.notice = UNRECORDED_NOTICE
        except Exception:
            visit.notice = UNRECORDED_NOTICE
            raise

    async def asset(self, request: Request) -> Response:
        """Return the style sheet, whose address changes with it, or the icon of the browser's tab."""
        text, media_type = _ASSETS[request.url.path]
        return Response(text, headers=_CACHE_HEADERS, media_type=media_type)

    async def handle_error(self, request: Request, error: Exception) -> Response:
        """Show an error as a page; internal details go to the terminal, not to the visitor."""
        if isinstance(error, HTTPException):
            home = "/" if self._find_visit(request) is None else "/shop"
            return make_error_page(error.status_code, error.detail, dict(error.headers or {}), home)
        if isinstance(error, TrailnotesError):
            logger.warning("%s", error)
            return make_error_page(503, "The shop's catalogue cannot be read any more; its terminal says why.")
        return make_error_page(500, "The shop has made a mistake; its terminal says which.")

    def _find_visit(self, request: Request) -> ShopVisit | None:
        return self.sessions.find(request.cookies.get(self.settings.cookie))

    def _redirect(self, path: str) -> Response:
        return RedirectResponse(path, status_code=303, headers={"cache-control": "no-store"})

    def _render_welcome(self, *, visiting: bool, notice: str = "", status: int = 200) -> Response:
        floor, only = self.floor, self.settings.only is not None
        return _render_page(
            "welcome", status, only=only, goals=len(floor.tasks), products=len(floor.shop.shelves), split=floor.split,
            compat=floor.shop.rules.compat, visiting=visiting, recorded=self._recorder is not None, notice=notice,
        )  # fmt: skip


def make_app(floor: ShopService, settings: SiteSettings | None = None, recorder: Recorder | None = None) -> ASGIApp:
    """Build the application of a site. Raises `ValueError` for limits that cannot work."""
    settings = settings or SiteSettings()
    site = ShopSite(floor, settings, recorder)
    routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("/", "GET", site.welcome), ("/shop", "GET", site.shop), ("/score", "GET", site.score),
        ("/begin", "POST", site.begin), ("/act", "POST", site.act),
        *((path, "GET", site.asset) for path in _ASSETS),
    ]  # fmt: skip
    app = Starlette(
        routes=[Route(path, endpoint, methods=[method]) for path, method, endpoint in routes],
        exception_handlers=dict.fromkeys((HTTPException, TrailnotesError, Exception), site.handle_error),
    )
    app.router.redirect_slashes = False
    return SecurityMiddleware(app, settings.names, make_error_page)


def make_error_page(status: int, text: str, headers: dict[str, str] | None = None, way: str = "/") -> Response:
    """Make a page that says what is wrong, with a link to go on."""
    heading = ERROR_HEADINGS.get(status, "That did not work")
    if status == 404:
        text = "The shop has no page of this address."
    if status == 405:
        text = "This address is used by the shop's own forms."
    answer = _render_page("error", status, heading=heading, text=text, way=way)
    answer.headers.update(headers or {})
    return answer


def _render_page(template: str, status: int = 200, **values: Any) -> Response:
    text = render_template(template, version=VERSION, **values)
    return Response(text, status, {"cache-control": "no-store"}, "text/html; charset=utf-8")


def _parse_number(text: str) -> int | None:
    """Parse a number of the shop's own forms, from 0 up; None for anything else."""
    return int(text) if len(text) <= 9 and text.isascii() and text.isdigit() else None

"""Middleware before every page: allowed host names, cross-site forms, security headers.

Host names are checked so that no other page reaches a local server by DNS rebinding.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy of a site without scripts."""

SECURITY_HEADERS: Final = {  # of every answer; a "no-referrer" policy would send forms with the origin "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
CROSS_SITE_MESSAGE: Final = "This form was sent by a page of another site, so nothing was done."
WRONG_HOST_MESSAGE: Final = "This site answers to the address that its command has printed."
NO_TOKEN_MESSAGE: Final = "Say the token of this site in the header Authorization: Bearer TOKEN."  # noqa: S105


def parse_host_name(host: str) -> str:
    """Parse the name in a Host header, in lower case and without its port."""
    end = host.rfind("]") + 1  # colons before it are of an IPv6 address
    return (host[:end] + host[end:].partition(":")[0]).lower()


def is_cross_site(host: str, origin: str | None, site: str | None) -> bool:
    """Tell whether a form comes from another site's page; a client without Origin is no browser."""
    if origin is not None:
        return origin.lower() not in {f"http://{host}".lower(), f"https://{host}".lower()}
    return site not in {None, "same-origin", "none"}


class SecurityMiddleware:
    """Middleware that adds security headers and refuses foreign hosts (`names`; None: any) and cross-site forms.

    `refuse` makes the answer of a refusal from its status and a text.
    """

    def __init__(
        self,
        app: ASGIApp,
        names: frozenset[str] | None,
        refuse: Callable[[int, str], ASGIApp],
        policy: str = CONTENT_SECURITY_POLICY,
    ) -> None:
        self.app, self.names, self.refuse = app, names, refuse
        headers = {"content-security-policy": policy, **SECURITY_HEADERS}
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        headers, answer = Headers(scope=scope), self.app
        host = headers.get("host", "")
        if self.names is not None and parse_host_name(host) not in self.names:
            answer = self.refuse(421, WRONG_HOST_MESSAGE)
        elif scope["method"] == "POST" and is_cross_site(host, headers.get("origin"), headers.get("sec-fetch-site")):
            answer = self.refuse(403, CROSS_SITE_MESSAGE)
        await answer(scope, receive, sending)


class BearerMiddleware:
    """Middleware that requires a bearer token. `refuse` makes the answer of a refusal."""

    def __init__(self, app: ASGIApp, token: str, refuse: Callable[[int, str], ASGIApp]) -> None:
        self.app, self.refuse = app, refuse
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self.app
        if scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode()
            if not hmac.compare_digest(given, self._wanted):
                answer = self.refuse(401, NO_TOKEN_MESSAGE)
        await answer(scope, receive, send)

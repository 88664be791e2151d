"""Middleware before every page: allowed host names, cross-site forms, security headers.

Host names are checked so that no other page reaches a local server by DNS rebinding.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy of a site without scripts."""

CROSS_SITE_MESSAGE: Final = "This form was sent by a page of another site, so nothing was done."
WRONG_HOST_MESSAGE: Final = "This site answers to the address that its command has printed."
NO_TOKEN_MESSAGE: Final = "Say the token of this site in the header Authorization: Bearer TOKEN."  # noqa: S105


def build_security_headers(policy: str = CONTENT_SECURITY_POLICY) -> dict[str, str]:
    """Build the headers of every answer. A "no-referrer" policy would send forms with the origin "null"."""
    return {
        "content-security-policy": policy,
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "referrer-policy": "same-origin",
        "x-content-type-options": "nosniff",
    }


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
        self._headers = [(name.encode(), value.encode()) for name, value in build_security_headers(policy).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it; anything but HTTP passes."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        answer = self._find_refusal(scope) or self.app
        await answer(scope, receive, sending)

    def _find_refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.names is not None and parse_host_name(host) not in self.names:
            return self.refuse(421, WRONG_HOST_MESSAGE)
        if scope["method"] == "POST" and is_cross_site(host, headers.get("origin"), headers.get("sec-fetch-site")):
            return self.refuse(403, CROSS_SITE_MESSAGE)
        return None


class BearerMiddleware:
    """Middleware that requires a bearer token. `refuse` makes the answer of a refusal."""

    def __init__(self, app: ASGIApp, token: str, refuse: Callable[[int, str], ASGIApp]) -> None:
        self.app, self.refuse = app, refuse
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it; anything but HTTP passes."""
        answer = self.app
        if scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode()
            if not hmac.compare_digest(given, self._wanted):
                answer = self.refuse(401, NO_TOKEN_MESSAGE)
        await answer(scope, receive, send)

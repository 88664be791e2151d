"""Client side of one OpenEnv session: addresses, requests and answers, each within a time limit."""

from __future__ import annotations

import inspect
import io
import json
import os
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from trailnotes.envs.base import format_error, sanitize_text
from trailnotes.errors import ConfigError, EnvError
from trailnotes.storage.files import parse_json
from trailnotes.web.loopback import is_loopback

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

_SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_MAX_PAGE_BYTES: Final = 1 << 20  # bytes of a page that describes a server
_MAX_MESSAGE_CHARS: Final = 300  # characters of a server's own words in an error
_CLOSE_TIMEOUT_S: Final = 1.0  # to say goodbye

CAPACITY_REACHED: Final = "CAPACITY_REACHED"
SESSION_ERROR: Final = "SESSION_ERROR"
VALIDATION_ERROR: Final = "VALIDATION_ERROR"


class ConnectionLostError(EnvError):
    """Connection lost or refused; another attempt may succeed."""


class RequestRefusedError(EnvError):
    """Error answer of a server, with the protocol's `code` and all of its `data`."""

    def __init__(self, text: str, code: str, data: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.code, self.data = code, data


@dataclass(frozen=True)
class ServerAddress:
    """Address of a server. Its `name` is for messages and task ids, and holds no secret."""

    base: str  # "http://host:port/path" or https, without a slash at its end

    @classmethod
    def parse_url(cls, url: object) -> ServerAddress:
        """Parse ``http://host:port/path``, or the same with https, ws or wss.

        Raises:
            ConfigError: it is no such URL, or holds a password or query, which logs would show.
        """
        if not isinstance(url, str):
            raise ConfigError(f"env.options.url must be a text, not {type(url).__name__}")
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"env.options.url cannot be read ({error}): write http://HOST:PORT") from error
        if parts.username or parts.password or parts.query or parts.fragment:
            fix = "name the environment variable of a token in env.options.token_env"
            raise ConfigError(f"env.options.url must hold no name, password or query, since it is logged: {fix}")
        if parts.scheme not in _SCHEMES or not host:
            raise ConfigError(f"env.options.url = {url!r} is no address of a server: write http://HOST:PORT")
        place = f"[{host}]" if ":" in host else host
        return cls(f"{_SCHEMES[parts.scheme]}://{place}{f':{port}' if port else ''}{parts.path.rstrip('/')}")

    @property
    def name(self) -> str:
        """Host, port and path of the server."""
        return self.base.partition("://")[2]

    @property
    def socket(self) -> str:
        """URL of the WebSocket for sessions."""
        return f"ws{self.base.removeprefix('http')}/ws"

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, and needs no proxy."""
        return is_loopback(urlsplit(self.base).hostname or "")


def build_headers(token_env: str) -> dict[str, str]:
    """Build the headers that authorize a request. Raises `ConfigError` if the variable holds no token."""
    if not token_env:
        return {}
    token = os.environ.get(token_env, "").strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"env.options.token_env: the environment variable {token_env} holds no token; export it")
    return {"Authorization": f"Bearer {token}"}


class ClientSession:
    """Connection to ``/ws``, opened at once.

    Args:
        address: of the server.
        headers: of the request that opens it.
        timeout: seconds that one call may take, as the user has set it.
        left: seconds left of them to connect.
        most_bytes: of one answer.

    Raises:
        ConnectionLostError: no server answers, or it speaks no WebSocket.
        EnvError: the server refuses the connection for good.
    """

    def __init__(
        self, address: ServerAddress, headers: Mapping[str, str], timeout: float, left: float, most_bytes: int
    ) -> None:
        from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
        from websockets.sync.client import connect

        self._address, self._timeout = address, timeout
        self._open = ExitStack()
        try:
            self._socket: ClientConnection = self._open.enter_context(
                _disable_redirects(connect)(
                    address.socket, additional_headers=headers, open_timeout=left, close_timeout=_CLOSE_TIMEOUT_S,
                    max_size=most_bytes, ping_interval=None, compression=None,
                    proxy=None if address.is_local else True,
                )
            )  # fmt: skip
            self._set_send_timeout(left)
        except (OSError, EOFError, InvalidHandshake, InvalidURI, ValueError) as error:
            self._open.close()
            lasting = isinstance(error, InvalidStatus) and 300 <= error.response.status_code < 500
            why = f"no OpenEnv server can be reached at {address.name} ({format_error(error)})"
            raise (EnvError if lasting else ConnectionLostError)(f"{why}: is env.options.url right?") from error

    def _set_send_timeout(self, most: float) -> None:
        """Limit the seconds for which a server that reads nothing can hold up a request."""
        seconds = struct.pack("ll", int(most), max(int(most % 1 * 1e6), 1))  # all 0 would be no limit
        with suppress(OSError):  # the server has hung up by now: the first request finds its last words
            self._socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    def send_request(self, kind: str, data: Mapping[str, Any], left: float) -> dict[str, Any]:
        """Send a request, and return the data of the observation that answers it within `left` seconds.

        Raises:
            ConnectionLostError: the connection is lost.
            RequestRefusedError: the answer is an error.
            EnvError: there is no answer in time, or it is not the protocol's.
        """
        from websockets.exceptions import ConnectionClosed

        until = time.monotonic() + left
        try:
            if (early := self._receive(0.0)) is not None:
                self._parse_answer(early)  # an error that came with the connection says more than that it is unasked
                raise EnvError(f"{self._address.name} has sent an answer that nothing was asked for")
            self._set_send_timeout(left)
            self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = self._receive(max(until - time.monotonic(), 0.0))
        except (ConnectionClosed, OSError) as error:
            words = None
            with suppress(Exception):  # it is closed: there are none
                words = self._receive(0.0)
            if words is not None:
                self._parse_answer(words)
            why = format_error(error.__cause__ or error)  # the reason behind websockets' own if there is one
            raise ConnectionLostError(f"{self._address.name} has closed the connection ({why})") from error
        if answer is None:
            raise EnvError(f"{self._address.name} did not answer within env.options.timeout = {self._timeout:g} s")
        return self._parse_answer(answer)

    def close(self) -> None:
        """End the session, without errors or a long wait."""
        self._set_send_timeout(_CLOSE_TIMEOUT_S)
        with suppress(Exception):
            self._socket.send(json.dumps({"type": "close"}))
        with suppress(Exception):
            self._open.close()

    def _receive(self, timeout: float) -> str | bytes | None:
        try:
            return self._socket.recv(timeout=timeout)
        except TimeoutError:
            return None

    def _parse_answer(self, text: str | bytes) -> dict[str, Any]:
        name = self._address.name
        if not isinstance(text, str):
            raise EnvError(f"{name} answered with bytes: OpenEnv speaks JSON texts")
        try:
            answer = parse_json(text)
        except ValueError as error:
            raise EnvError(f"{name} answered with something that is no JSON: {format_error(error)}") from error
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            raise EnvError(f"{name} answered outside the protocol: {text[:100]!r}")
        if answer.get("type") == "error":
            code = sanitize_text(str(data.get("code", "UNKNOWN")), 40)
            said = sanitize_text(str(data.get("message", "")), _MAX_MESSAGE_CHARS)
            raise RequestRefusedError(f"{name} answered with an error ({code}): {said}", code, data)
        if answer.get("type") != "observation":
            raise EnvError(f"{name} answered a request with {str(answer.get('type'))[:40]!r}, not an observation")
        return data


def _disable_redirects(connect: Any) -> Callable[..., AbstractContextManager[ClientConnection]]:
    """Wrap the `connect` of websockets, which follows redirects since version 17, so that it follows none."""
    if "legacy" not in inspect.signature(connect).parameters:
        return cast("Callable[..., AbstractContextManager[ClientConnection]]", connect)

    def staying(*arguments: Any, **options: Any) -> Any:
        connecting = connect(*arguments, legacy=False, **options)
        connecting.process_redirect = lambda error: error
        return connecting

    return staying


class _DeadlineStream(io.RawIOBase):
    """Stream of a socket with a deadline: a socket limits each read only, and a server may send single bytes."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._socket, self._until = connection, until
        self._reader = connection.makefile("rb", buffering=0)  # keeps it open

    def makefile(self, _: str) -> io.BufferedReader:
        """Return a buffered reader, as `HTTPResponse` asks a socket to."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("it has not come in time")
        self._socket.settimeout(left)
        return self._reader.readinto(buffer)

    def close(self) -> None:
        self._reader.close()
        super().close()


def fetch_page(address: ServerAddress, path: str, headers: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """Fetch the JSON object at a path of the server; {} if there is none, since such pages are optional."""
    until = time.monotonic() + timeout

    class Answer(HTTPResponse):
        def __init__(self, sock: socket.socket, **options: Any) -> None:
            super().__init__(cast("socket.socket", _DeadlineStream(sock, until)), **options)

    class Opening(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
        def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
            def connected(*arguments: Any, **more: Any) -> HTTPConnection:
                connection: HTTPConnection = http_class(*arguments, **more)
                connection.response_class = Answer
                return connection

            return super().do_open(connected, req, **options)

    class Staying(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None  # the headers are for this server

    handlers: list[urllib.request.BaseHandler] = [Opening(), Staying()]
    if address.is_local:
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(f"{address.base}{path}", headers=dict(headers))  # noqa: S310 - http(s) by `of`
    body = b""
    try:
        with opener.open(request, timeout=timeout) as response:
            while (part := response.read1(1 << 16)) and len(body) <= _MAX_PAGE_BYTES:
                body += part
        page = parse_json(body)
    except (OSError, HTTPException, ValueError):
        return {}
    return page if isinstance(page, dict) else {}

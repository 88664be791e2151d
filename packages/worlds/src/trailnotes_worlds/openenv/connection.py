"""Client side of one OpenEnv session: addresses, requests and answers.

The official package has a client, too. This module does without it, because it imports all of that package, reopens a
connection that is lost in the middle of an episode without a reset, and reports errors without their code.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from trailnotes.errors import ConfigError, EnvError, format_error, sanitize_text
from trailnotes.storage.files import parse_json
from trailnotes.web.loopback import is_loopback

MAX_MESSAGE_BYTES: Final = 16 << 20  # of one answer
_SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_MAX_PAGE_BYTES: Final = 1 << 20  # bytes of a page that describes a server
_MAX_MESSAGE_CHARS: Final = 300  # characters of a server's own words in an error
_CLOSE_TIMEOUT_S: Final = 1.0

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
    def parse_url(cls, url: str) -> ServerAddress:
        """Parse ``http://host:port/path``, or the same with https, ws or wss."""
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
        return self.base.partition("://")[2]

    @property
    def socket(self) -> str:
        return f"ws{self.base.removeprefix('http')}/ws"

    @property
    def is_local(self) -> bool:
        return is_loopback(urlsplit(self.base).hostname or "")


def build_headers(token_env: str) -> dict[str, str]:
    """Build the headers that authorize a request. Raises `ConfigError` if the variable holds no token."""
    if not token_env:
        return {}
    token = os.environ.get(token_env, "").strip()
    if not token:
        raise ConfigError(f"env.options.token_env: the environment variable {token_env} holds no token; export it")
    return {"Authorization": f"Bearer {token}"}


class ClientSession:
    """Connection to ``/ws``, opened at once within `timeout` seconds."""

    def __init__(self, address: ServerAddress, headers: Mapping[str, str], timeout: float) -> None:
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect

        self._name = address.name
        try:
            self._socket = connect(
                address.socket, additional_headers=headers, open_timeout=timeout, close_timeout=_CLOSE_TIMEOUT_S,
                max_size=MAX_MESSAGE_BYTES, ping_interval=None, compression=None,
                proxy=None if address.is_local else True,
            )  # fmt: skip
        except (OSError, EOFError, InvalidHandshake) as error:
            lasting = isinstance(error, InvalidStatus) and 300 <= error.response.status_code < 500
            why = f"no OpenEnv server can be reached at {self._name} ({format_error(error)})"
            raise (EnvError if lasting else ConnectionLostError)(f"{why}: is env.options.url right?") from error

    def send_request(self, kind: str, data: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        try:
            with suppress(ConnectionClosed):  # a server that ends a session sends its reason first
                self._socket.send(json.dumps({"type": kind, "data": data}))
            text = self._socket.recv(timeout=timeout)
        except TimeoutError as error:
            raise EnvError(f"{self._name} did not answer within env.options.timeout") from error
        except (ConnectionClosed, OSError) as error:
            why = format_error(error.__cause__ or error)  # the reason behind websockets' own if there is one
            raise ConnectionLostError(f"{self._name} has closed the connection ({why})") from error
        return self._parse_answer(text)

    def close(self) -> None:
        with suppress(Exception):
            self._socket.send(json.dumps({"type": "close"}))
        self._socket.close()

    def _parse_answer(self, text: str | bytes) -> dict[str, Any]:
        try:
            answer = parse_json(text)
        except ValueError as error:
            raise EnvError(f"{self._name} answered with something that is no JSON: {format_error(error)}") from error
        match answer:
            case {"type": str(kind), "data": dict(data)}:
                pass
            case _:
                raise EnvError(f"{self._name} answered outside the protocol: {text[:100]!r}")
        if kind == "error":
            code = sanitize_text(str(data.get("code", "UNKNOWN")), 40)
            message = sanitize_text(str(data.get("message", "")), _MAX_MESSAGE_CHARS)
            raise RequestRefusedError(f"{self._name} answered with an error ({code}): {message}", code, data)
        if kind != "observation":
            raise EnvError(f"{self._name} answered a request with {kind[:40]!r}, not an observation")
        return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # the headers are for this server


def fetch_page(address: ServerAddress, path: str, headers: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """Fetch the JSON object at a path of the server; {} if there is none, since such pages are optional.

    Raises:
        EnvError: the server fails, and does not say whether there is one.
    """
    opener = urllib.request.build_opener(_NoRedirects(), urllib.request.ProxyHandler({} if address.is_local else None))
    request = urllib.request.Request(f"{address.base}{path}", headers=dict(headers))  # noqa: S310 - http(s) alone
    try:
        with opener.open(request, timeout=timeout) as response:
            page = parse_json(response.read(_MAX_PAGE_BYTES))
    except urllib.error.HTTPError as error:
        if error.code < 500:
            return {}
        raise EnvError(f"{address.name} answered {path} with status {error.code}") from None
    except ValueError:
        return {}
    except (OSError, HTTPException) as error:
        raise EnvError(f"{address.name} did not answer {path}: {error}") from None
    return page if isinstance(page, dict) else {}

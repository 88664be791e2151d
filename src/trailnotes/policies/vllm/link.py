"""Connections of a policy to its engines, here or at an address, each with a thread that notices when an engine hangs.

The thread is not bound to an event loop, so that several may ask an engine, and it is watched while the learner blocks
a loop.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trailnotes.config.model_schema import ENGINE_TOKEN_VARIABLE, EngineConfig
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.policies.vllm.worker import wire
from trailnotes.web.loopback import is_loopback

TICK = 1.0  # seconds between two looks at the clock
STOP_LIMIT = 20.0  # seconds to end by itself


class EngineLostError(Exception):
    """Loss of an engine; the text says how it ended."""


@dataclass(frozen=True, slots=True)
class CompletionUpdate:
    """News of a completion: new tokens, and how it ended if it did."""

    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    reason: str | None = None
    cached: int = 0  # tokens of the prompt whose keys were in the engine's cache
    error: Exception | None = None


Listener = Callable[[CompletionUpdate], None]  # called from the link's thread


class EngineConnection:
    """Connection to one engine, after the handshake if there is one.

    Args:
        connection: the socket.
        label: its name in messages.
        start_timeout: seconds until it must be ready.
        timeout: seconds without progress in its work, or without any sign of life, until it counts as hung.
        buried: called once when it is lost, with the reason as far as it is known here; returns the whole reason.
    """

    def __init__(
        self, connection: socket.socket, label: str, *, start_timeout: float, timeout: float,
        buried: Callable[[str], str],
    ) -> None:  # fmt: skip
        self.label = label
        self.is_local = connection.family == socket.AF_UNIX  # it sees our files
        self.failure = ""  # why it is lost; "" while it lives
        self.about: dict[str, Any] = {}
        self._connection, self._buried = connection, buried
        self._start_timeout, self._timeout = start_timeout, timeout
        self._ready: Future[None] = Future()
        self._lost: Future[str] = Future()
        self._guard, self._writing = threading.Lock(), threading.Lock()
        self._listeners: dict[int, Listener] = {}
        self._calls: dict[int, Future[Any]] = {}
        self._number = self._steps = 0
        self._working = False  # by its own word, for whomever
        self._born = self._heard = self._moved = time.monotonic()
        connection.setblocking(True)
        self._ear = select.poll()
        self._ear.register(connection, select.POLLIN)
        threading.Thread(target=self._read_loop, name=f"{label} reader", daemon=True).start()

    def wait_until_ready(self) -> None:
        """Block until the engine can be asked. Raises `PolicyError` if it refuses its settings; `EngineLostError`."""
        self._ready.result()

    def wait_until_lost(self) -> str:
        """Block as long as the engine lives, and say how it ended."""
        return self._lost.result()

    def generate(self, ids: Sequence[int], sampling: dict[str, Any], listener: Listener) -> int:
        """Ask for a completion, and return its number. The listener receives all news of it, the engine's loss too."""
        with self._guard:
            number = self._next_request_id()
            if not self.failure:
                self._listeners[number] = listener
        if self.failure:
            listener(CompletionUpdate(error=EngineLostError(self.failure)))
        else:
            self._send(["generate", number, list(ids), sampling])
        return number

    def abort(self, number: int) -> None:
        """Stop waiting for a completion."""
        with self._guard:
            known = self._listeners.pop(number, None)
        if known:
            self._send(["abort", number])

    def call(self, name: str, argument: Any, payload: Path | None = None) -> Any:
        """Ask, and block until the answer comes. Raises `PolicyError` if the engine refuses, or `EngineLostError`."""
        answer: Future[Any] = Future()
        with self._guard:
            number = self._next_request_id()
            if self.failure:
                raise EngineLostError(self.failure)
            self._calls[number] = answer
        self._send([name, number, argument], payload)
        return answer.result()

    def close(self) -> None:
        """End an engine that is our child process, and hang up on another. Twice is fine."""
        if self.is_local and self._ready.done():  # one that starts does not listen yet
            self._send(["end"])
            with suppress(TimeoutError):
                self._lost.result(STOP_LIMIT)
        self._mark_lost("was closed")

    def _next_request_id(self) -> int:
        if not self._listeners and not self._calls:
            self._moved = time.monotonic()
        self._number += 1
        return self._number

    def _send(self, message: list[Any], payload: Path | None = None) -> None:
        with self._writing, suppress(OSError):
            if payload is None:
                self._connection.sendall(wire.encode_frame(message))
                return
            with payload.open("rb") as file:
                self._connection.sendall(wire.encode_frame(message, payload.stat().st_size))
                self._connection.sendfile(file)

    def _read_loop(self) -> None:
        try:
            while (found := wire.read_frame(self._read_bytes)) is not None:
                self._heard = time.monotonic()
                self._handle_message(found[0])
                if not self._ear.poll(0):  # else what counts as progress may wait to be read
                    self._check_timeouts(self._heard)  # whoever only says that it lives hangs all the same
            self._mark_lost("")
        except OSError:  # reset by an end that is no more
            self._mark_lost("")
        except (TypeError, ValueError, wire.WireError, EngineLostError) as error:  # what is no message of ours
            self._mark_lost(str(error))
        finally:
            self._connection.close()

    def _read_bytes(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not self._ear.poll(TICK * 1000):
                self._check_timeouts(
                    time.monotonic()
                )  # only when there is nothing to read: this process may have been away
                continue
            part = self._connection.recv(min(size - len(data), wire.CHUNK_SIZE))
            if not part:
                break
            data += part
        return data

    def _check_timeouts(self, now: float) -> None:
        if not self._ready.done():
            if now - self._born > self._start_timeout:
                raise EngineLostError(f"did not start within engine.start_timeout = {self._start_timeout:g} s")
        elif now - self._heard > self._timeout:
            raise EngineLostError(f"gave no sign of life for engine.timeout = {self._timeout:g} s")
        elif (self._listeners or self._calls or self._working) and now - self._moved > self._timeout:
            raise EngineLostError(f"hangs: no token for engine.timeout = {self._timeout:g} s")

    def _handle_message(self, message: list[Any]) -> None:
        match message:
            case ["alive", int(steps), bool(working)]:
                if (steps, working) != (self._steps, self._working):
                    self._moved = time.monotonic()
                self._steps, self._working = steps, working
            case ["tokens", list(parts)]:
                self._moved = time.monotonic()
                for number, ids, logprobs, reason, cached in parts:
                    self._notify_listener(number, CompletionUpdate(ids, logprobs, reason, cached), last=bool(reason))
            case ["done", int(number), value]:
                self._calls.pop(number, Future()).set_result(value)
            case ["failed", int(number), str(text)]:
                error = PolicyError(f"{self.label}: {text}")
                self._notify_listener(number, CompletionUpdate(error=error), last=True)
                self._calls.pop(number, Future()).set_exception(error)
            case ["ready", dict(about)] if not self._ready.done():
                self.about = about
                self._moved = time.monotonic()
                self._ready.set_result(None)
            case ["refused", str(text)] if not self._ready.done():
                self._ready.set_exception(PolicyError(text))
            case _:
                raise EngineLostError(f"says what this side does not understand ({str(message[0])[:40]!r})")

    def _notify_listener(self, number: int, news: CompletionUpdate, *, last: bool) -> None:
        with self._guard:
            listener = self._listeners.pop(number, None) if last else self._listeners.get(number)
        if listener:
            listener(news)

    def _mark_lost(self, why: str) -> None:
        with self._guard:
            if self.failure:
                return
            self.failure = f"{self.label} {why or 'is gone'}"
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self.failure = f"{self.label} {self._buried(why)}"
        with self._guard:
            listeners, self._listeners = list(self._listeners.values()), {}
            calls, self._calls = list(self._calls.values()), {}
        for listener in listeners:
            listener(CompletionUpdate(error=EngineLostError(self.failure)))
        for answer in calls:
            answer.set_exception(EngineLostError(self.failure))
        if not self._ready.done():
            self._ready.set_exception(EngineLostError(self.failure))
        self._lost.set_result(self.failure)


MIN_TOKEN = 16  # characters
PORT = 7465  # of `trailnotes engine serve`
RETRY_PAUSE = 1.0  # seconds between two tries to reach an engine that is being started anew

AddressLookup = Callable[[], tuple[str, int]]
ModelRequirement = tuple[str, int]  # fingerprint of the model, rank of its adapters


def parse_address(url: str) -> tuple[str, int]:
    """Parse host and port of ``tcp://host:port`` or ``host``. Raises `ConfigError`."""
    try:
        parts = urlsplit(url if "://" in url else f"tcp://{url}")
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        host = None
    if not host or parts.scheme != "tcp" or parts.path not in {"", "/"}:
        raise ConfigError(
            f"engine.urls: {url!r} is no address of an engine: write tcp://host:port, as trailnotes engine serve does"
        )
    return host, port


def get_token(host: str) -> str:
    """Read the shared token from the environment; "" within this machine if there is none.

    Raises:
        ConfigError: `host` is another machine, or reached by others, and there is no token of sufficient length.
    """
    token = os.environ.get(ENGINE_TOKEN_VARIABLE, "").strip()
    if (token or not is_loopback(host)) and len(token) < MIN_TOKEN:
        raise ConfigError(
            f"between machines an engine needs a token that both sides know: set {ENGINE_TOKEN_VARIABLE} to the same "
            f'{MIN_TOKEN} characters or more on both: python -c "import secrets; print(secrets.token_hex())" makes some'
        )
    return token


def connect_engine(
    where: AddressLookup, engine: EngineConfig, expected: ModelRequirement, again: bool, *, token: str | None = None
) -> EngineConnection:
    """Connect to a running engine, which may still have to load its model.

    `where` returns its machine and port before each try. `again` says that it may be restarting. Without a `token` the
    one of the environment counts.

    Raises:
        PolicyError: no engine answers there, or it does not know the token or the expected model.
        ConfigError: there is no token.
    """
    deadline = time.monotonic() + (engine.start_timeout if again else 0.0)
    while True:
        host, port = where()
        try:
            connection = _open_connection(host, port, get_token(host) if token is None else token)
        except wire.WireError as error:
            if isinstance(error, wire.BusyError) and time.monotonic() < deadline:  # perhaps still with us
                time.sleep(RETRY_PAUSE)
                continue
            fix = f": set {ENGINE_TOKEN_VARIABLE} to the same on both sides" if "token" in str(error) else ""
            raise PolicyError(f"engine.urls: {host}:{port} {error}{fix}") from error
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(RETRY_PAUSE)
                continue
            raise PolicyError(
                f"engine.urls: {host}:{port} does not answer ({error.strerror or error}): start an engine there with "
                "trailnotes engine serve, or correct the address"
            ) from error
        break
    link = EngineConnection(
        connection, f"engine {host}:{port}", start_timeout=engine.start_timeout, timeout=engine.timeout,
        buried=lambda why: why or "hung up",
    )  # fmt: skip
    with suppress(EngineLostError):  # whoever asks it next is told
        link.wait_until_ready()
        _validate_model(link, expected)
    return link


def _open_connection(host: str, port: int, token: str) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=wire.HANDSHAKE_TIMEOUT)
    try:
        wire.handshake_as_policy(connection, token)
    except BaseException:
        connection.close()
        raise
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _validate_model(link: EngineConnection, expected: ModelRequirement) -> None:
    fingerprint, rank = expected
    if link.about["fingerprint"] != fingerprint:
        link.close()
        raise PolicyError(f"{link.label} was started with a model of another shape: start it with this run's config")
    if bool(link.about["lora_rank"]) != bool(rank) or link.about["lora_rank"] < rank:
        link.close()
        raise PolicyError(
            f"{link.label} was started for adapters of rank {link.about['lora_rank']} (0 = none), and this run needs "
            f"{rank}: start it with this run's config"
        )

"""An engine that somebody started on another machine, or on this one: `trailnotes engine serve`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from trailnotes.config.model_schema import ENGINE_TOKEN_VARIABLE as TOKEN
from trailnotes.config.model_schema import EngineConfig
from trailnotes.errors import ConfigError, PolicyError
from trailnotes.policies.vllm.link import EngineConnection, EngineLostError
from trailnotes.policies.vllm.worker import wire
from trailnotes.web.loopback import is_loopback

MIN_TOKEN = 16  # characters
PORT = 7465  # of `trailnotes engine serve`
RETRY_PAUSE = 1.0  # seconds between two tries to reach an engine that is being started anew

AddressLookup = Callable[[], tuple[str, int]]
ModelRequirement = tuple[str, int]  # fingerprint of the model, rank of its adapters


def parse_address(url: str) -> tuple[str, int]:
    """Host and port of ``tcp://host:port`` or ``host``. Raises `ConfigError`."""
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
    """The token between two sides, from the environment alone; "" within this machine if there is none.

    Raises:
        ConfigError: `host` is another machine, or reached by others, and there is no token worth the name.
    """
    token = os.environ.get(TOKEN, "").strip()
    if (token or not is_loopback(host)) and len(token) < MIN_TOKEN:
        raise ConfigError(
            f"between machines an engine needs a token that both sides know: set {TOKEN} to the same {MIN_TOKEN} "
            'characters or more on both (python -c "import secrets; print(secrets.token_hex())" makes some)'
        )
    return token


def connect_engine(
    where: AddressLookup, engine: EngineConfig, expected: ModelRequirement, again: bool, *, token: str | None = None
) -> EngineConnection:
    """The link to a running engine, which may still have to load its model.

    Args:
        where: tells its machine, and the port that it listens at; asked before each try.
        engine: settings.
        expected: the model that it must have.
        again: it was reached before, and whoever serves it may be starting it anew.
        token: that both sides know; None: the one of the environment.

    Raises:
        PolicyError: nobody answers there, something else does, or it does not know the token.
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
            raise PolicyError(f"engine.urls: {host}:{port} {error}{_suggest_fix(str(error))}") from error
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
        connection,
        f"engine {host}:{port}",
        start_timeout=engine.start_timeout,
        timeout=engine.timeout,
        buried=lambda why: why or "hung up",
    )
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
    """Refuse an engine that was started with another model."""
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


def _suggest_fix(text: str) -> str:
    return f": set {TOKEN} to the same on both sides" if "token" in text else ""

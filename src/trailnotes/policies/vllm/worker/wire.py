"""What a policy and its engines say to each other: framed JSON, with raw bytes behind it where weights travel.

A frame is 4 bytes with the length of the JSON, 8 bytes with that of the raw bytes, both big-endian, then the two.
Nothing is ever unpickled. Messages are lists; the first item says which:

====================================================  ==========================================================
to the engine                                          from the engine
====================================================  ==========================================================
``start, settings``: once, before anything else        ``ready, about`` or ``refused, text``
``generate, number, ids, sampling``                    ``tokens, [[number, ids, logprobs, reason, cached], ...]``
``abort, number``: no answer
``load, number, what`` with a safetensors file,        ``done, number, value`` or ``failed, number, text``
``score, number, {rows, temperature}``
``sleep, number, null`` and ``wake, number, null``
``end``                                                ``alive, steps, working``: every now and then
====================================================  ==========================================================

Over TCP the two first prove to each other that they know the same token, which itself never travels. What follows is
not encrypted: between machines it needs a network that one trusts, or a tunnel.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Callable

PROTOCOL = 1
HEADER = struct.Struct("!IQ")
MAX_JSON = 1 << 28  # bytes; more is no message of ours
CHUNK_SIZE = 1 << 20
WEIGHTS_SUFFIX = ".safetensors"  # ends the name of a file that has come with a message
MAX_LINE = 200  # bytes of a line in the handshake, at most
HANDSHAKE_TIMEOUT = 20.0  # seconds for the handshake

_HELLO = "TRAILNOTES-ENGINE"


class WireError(Exception):
    """Violation of the protocol by the other side; the text is one line."""


class BusyError(WireError):
    """Refusal of an engine that serves another policy, or has not noticed yet that it left."""


def encode_frame(message: object, payload: int = 0) -> bytes:
    """Encode the head of a frame and its JSON; `payload` raw bytes must follow."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return HEADER.pack(len(body), payload) + body


def read_frame(read: Callable[[int], bytes]) -> tuple[list[object], int] | None:
    """Read the next message and the number of raw bytes that follow; None at the end of the stream.

    Raises:
        WireError: it is no message.
    """
    header = read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    size, payload = HEADER.unpack(header)
    if size > MAX_JSON:
        raise WireError(f"a message of {size} bytes: that is no engine of Trailnotes")
    body = read(size)
    if len(body) < size:
        return None
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError("a message that is no JSON: that is no engine of Trailnotes") from error
    if not isinstance(message, list) or not message:
        raise WireError("a message without a name: that is no engine of Trailnotes")
    return message, payload


def handshake_as_engine(connection: socket.socket, token: str, busy: Callable[[], bool]) -> bool:
    """Shake hands on a fresh TCP connection as the engine; return whether to serve it.

    Raises:
        OSError: the other side hangs up, or takes more than `HANDSHAKE_TIMEOUT`.
    """
    until = time.monotonic() + HANDSHAKE_TIMEOUT
    words = _read_line(connection, until).split()
    if len(words) != 3 or words[0] != _HELLO:
        return False
    nonce = secrets.token_hex(16)
    connection.sendall(f"{_HELLO} {PROTOCOL} {nonce}\n".encode())
    if words[1] != str(PROTOCOL):
        return False
    if not _is_equal(_read_line(connection, until), _compute_proof(token, "client", words[2], nonce)):
        connection.sendall(b"token\n")
        return False
    if busy():
        connection.sendall(b"busy\n")
        return False
    connection.sendall(f"welcome {_compute_proof(token, 'engine', words[2], nonce)}\n".encode())
    connection.settimeout(None)
    return True


def handshake_as_policy(connection: socket.socket, token: str) -> None:
    """Shake hands on a fresh TCP connection as the policy.

    Raises:
        WireError: the address is no engine's, has another version, or knows another token.
        OSError: it does not answer, or takes more than `HANDSHAKE_TIMEOUT`.
    """
    until = time.monotonic() + HANDSHAKE_TIMEOUT
    mine = secrets.token_hex(16)
    connection.sendall(f"{_HELLO} {PROTOCOL} {mine}\n".encode())
    line = _read_line(connection, until)
    words = line.split()
    if len(words) != 3 or words[0] != _HELLO:
        said = f" (it says {line[:60]!r})" if line and line.isprintable() else ""
        raise WireError(f"is no engine of Trailnotes{said}")
    if words[1] != str(PROTOCOL):
        raise WireError(
            f"speaks protocol {words[1][:9]}, this side {PROTOCOL}: install the same version of Trailnotes on both"
        )
    connection.sendall(_compute_proof(token, "client", mine, words[2]).encode() + b"\n")
    answer = _read_line(connection, until)
    if answer == "token":
        raise WireError("knows another token")
    if answer == "busy":
        raise BusyError("serves another run: an engine has the weights of one")
    if not _is_equal(answer, f"welcome {_compute_proof(token, 'engine', mine, words[2])}"):
        raise WireError("does not know the token: it is no engine of yours")
    connection.settimeout(None)


def _compute_proof(token: str, who: str, client: str, engine: str) -> str:
    return hmac.new(token.encode(), f"{who} {client} {engine}".encode(), hashlib.sha256).hexdigest()


def _is_equal(said: str, expected: str) -> bool:
    return hmac.compare_digest(said.encode(), expected.encode())


def _read_line(connection: socket.socket, until: float) -> str:
    """Read at most `MAX_LINE` bytes up to the end of a line, until a moment of the monotonic clock.

    The limit of a socket is one for each byte, and what is no handshake is read in part only.
    """
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_LINE:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        byte = connection.recv(1)
        if not byte:
            break
        data += byte
    return data.decode("ascii", "replace").strip()

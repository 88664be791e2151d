"""Protocol of a pool and its workers: length-prefixed JSON, never pickle.

A frame is four bytes of length, big-endian, and that many bytes of ASCII JSON (so that lone surrogates survive). An
empty frame is a heartbeat. Requests are ``[operation, slot, argument]``, answers ``["ok", observation | null]`` or
``["error", type, text]``, in order.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from trailnotes.errors import ConfigError, EnvError, MissingExtraError, TrailnotesError
from trailnotes.types import Observation, Task

HEADER = struct.Struct("!I")
HEARTBEAT = HEADER.pack(0)

_ERRORS = {kind.__name__: kind for kind in (EnvError, ConfigError, MissingExtraError)}
_TASK = tuple(field.name for field in fields(Task))
_OBSERVATION = tuple(field.name for field in fields(Observation))


def encode(message: object) -> bytes:
    """Encode one frame; raises `TypeError` or `ValueError` for what JSON cannot hold."""
    body = json.dumps(message, separators=(",", ":"), default=_to_plain).encode("ascii")
    return HEADER.pack(len(body)) + body


def read_frame(read: Callable[[int], bytes]) -> Any:
    """Read the next message; None at the end of the stream."""
    header = read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    body = read(size)
    return json.loads(body) if len(body) == size else None


class FrameDecoder:
    """A decoder of a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield all messages complete with `data`; heartbeats are skipped."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= HEADER.size:
                (size,) = HEADER.unpack_from(buffer, start)
                end = start + HEADER.size + size
                if len(buffer) < end:
                    break
                body = bytes(buffer[start + HEADER.size : end])
                start = end
                if body:
                    yield json.loads(body)
        finally:
            del buffer[:start]


def pack(value: Task | Observation | str | None) -> Any:
    """Pack a task or an observation as its fields in order."""
    if isinstance(value, Task):
        return [getattr(value, name) for name in _TASK]
    if isinstance(value, Observation):
        return [getattr(value, name) for name in _OBSERVATION]
    return value


def unpack_task(values: list[Any]) -> Task:
    return Task(*values)


def unpack_observation(values: list[Any]) -> Observation:
    """Unpack an observation; lists inside `info` stay lists."""
    named = dict(zip(_OBSERVATION, values, strict=True))
    if named["actions"] is not None:
        named["actions"] = tuple(named["actions"])
    return Observation(**named)


def pack_error(error: TrailnotesError) -> list[str]:
    return ["error", type(error).__name__, str(error)]


def unpack_error(kind: str, text: str) -> TrailnotesError:
    """Unpack the error to raise on the other side."""
    return _ERRORS.get(kind, EnvError)(text)


def _to_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")

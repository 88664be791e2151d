"""What comes in over the wire, before anything reads it: no more than a bound, not packed, and without the key."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from trailnotes.endpoint.faults import RetryableError

MAX_BODY_BYTES: Final = 64 * 2**20  # bytes of an answer; a batch of vectors has a few MB
MIN_SECRET_CHARS: Final = (
    12  # shorter keys ("EMPTY", "ollama") are placeholders, and words that an answer may well have
)
IDENTITY_HEADERS: Final = {"Accept-Encoding": "identity"}  # header of each request: what is packed has no bound


def make_response_hook(key: str) -> Callable[[Any], None]:
    """Make the hook of a client that takes the key out of each body, and refuses one beyond bounds.

    Returns:
        What is called with a response whose body is not read yet. It raises `RetryableError`.
    """

    def hook(response: Any) -> None:
        body = _BodyBuffer(response, key)
        for piece in response.stream:
            body.add(piece)
        response.stream.close()
        body.restore_redacted()

    return hook


def make_async_response_hook(key: str) -> Callable[[Any], Awaitable[None]]:
    """Make the same for a client of an event loop. See `guard`."""

    async def hook(response: Any) -> None:
        body = _BodyBuffer(response, key)
        async for piece in response.stream:
            body.add(piece)
        await response.stream.aclose()
        body.restore_redacted()

    return hook


class _BodyBuffer:
    """The bytes of a response, as they come."""

    def __init__(self, response: Any, key: str) -> None:
        packed = response.headers.get("content-encoding", "identity").strip().lower()
        if packed not in {"", "identity"}:
            raise RetryableError(
                "an answer that is packed, which was not asked for: turn off compression there", billed=True
            )
        self._response, self._key, self._bytes = response, key, bytearray()

    def add(self, piece: bytes) -> None:
        self._bytes += piece
        if len(self._bytes) > MAX_BODY_BYTES:
            raise RetryableError(f"an answer of more than {MAX_BODY_BYTES:,} bytes", billed=True)

    def restore_redacted(self) -> None:
        """Let the client read what was read here, but for the key: before it is parsed, cut, shown or kept."""
        from httpx2 import ByteStream

        body = bytes(self._bytes)
        if len(self._key) >= MIN_SECRET_CHARS:
            body = re.sub("".join(map(_build_json_pattern, self._key)).encode(), b"[key]", body, flags=re.IGNORECASE)
        self._response.stream = ByteStream(body)


def _build_json_pattern(letter: str) -> str:
    """A pattern of what JSON may write for it."""
    escaped = r"\\?" if letter == "/" else r"\\" if letter in '"\\' else ""
    return rf"(?:{escaped}{re.escape(letter)}|\\u00{ord(letter):02x})"

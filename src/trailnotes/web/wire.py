"""Guards of a connection: the key, from the environment alone, and bounded, uncompressed bodies without it."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from trailnotes.errors import MIN_SECRET_CHARS, ConfigError
from trailnotes.web.faults import RetryableError

if TYPE_CHECKING:
    from trailnotes.config.model_schema import EndpointConfig

NO_KEY: Final = "none"  # what is sent where there is no key: the client insists on one
MAX_BODY_BYTES: Final = 64 * 2**20  # bytes of an answer; a batch of vectors has a few MB
IDENTITY_HEADERS: Final = {"Accept-Encoding": "identity"}  # header of each request: what is packed has no bound

# At DEBUG these log the bodies of requests (openai 2) and the headers of answers, which may repeat the key.
for _name in ("openai._base_client", "httpcore", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)


def load_api_key(config: EndpointConfig) -> str:
    """Load the key, "" for none; raises `ConfigError` where it is surely needed, or holds blanks or odd letters."""
    key = os.environ.get(config.api_key_env, "").strip()
    if not key and "//api.openai.com" in config.base_url:
        raise ConfigError(
            f"{config.base_url} wants a key: export {config.api_key_env}=..., or name another environment variable in "
            "endpoint.api_key_env, or another server in endpoint.base_url"
        )
    if not key.isascii() or any(map(str.isspace, key)):
        raise ConfigError(f"the environment variable {config.api_key_env} holds no key: it has blanks or odd letters")
    return key


def require_prices(config: EndpointConfig) -> None:
    if config.max_cost and not (config.price_input or config.price_output):
        raise ConfigError("endpoint.max_cost needs prices: set endpoint.price_input and endpoint.price_output")


def redact_key(key: str, text: str) -> str:
    """Replace the key in `text`, which servers may repeat in other cases."""
    return re.sub(re.escape(key), "[key]", text, flags=re.IGNORECASE) if key else text


def make_async_response_hook(key: str) -> Callable[[Any], Awaitable[None]]:
    """Make the hook of a client that redacts the key in each body, before it is parsed, cut, displayed or kept.

    Returns:
        A function of a response whose body is not read yet. It raises `RetryableError` for a body beyond bounds.
    """

    async def hook(response: Any) -> None:
        packed = response.headers.get("content-encoding", "identity").strip().lower()
        if packed not in {"", "identity"}:
            raise RetryableError("a compressed answer, against the request: turn compression off there", billed=True)
        body = bytearray()
        async for piece in response.stream:
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise RetryableError(f"an answer of more than {MAX_BODY_BYTES:,} bytes", billed=True)
        await response.stream.aclose()
        if len(key) >= MIN_SECRET_CHARS:
            body = bytearray(re.sub(re.escape(key.encode()), b"[key]", body, flags=re.IGNORECASE))
        httpx = sys.modules[type(response).__module__.partition(".")[0]]  # httpx2 from openai 3 on
        response.stream = httpx.ByteStream(bytes(body))

    return hook

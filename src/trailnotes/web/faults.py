"""Failures of an endpoint: which to retry, how long to wait, and the error for the user."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from trailnotes.storage.files import parse_json

MIN_WAIT = 0.5  # seconds before the first retry; doubles with each
RATE_LIMIT_FACTOR: Final = 10  # by which waits are longer after a 429: most rate limits are of a minute
MAX_WAIT: Final = 60.0
MAX_RETRY_AFTER: Final = 300.0  # a server that wants more is asked again after this
MAX_ERROR_CHARS: Final = 300  # characters of a server's message that an error quotes
GATEWAY_FAULTS: Final = frozenset({408, 502, 504, *range(520, 525)})  # a proxy gave up, maybe while the model generated
_QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
_CONTEXT_OVERFLOW = re.compile(
    r"context.?length|context.?size|context.?window|maximum context|prompt is too long|longer than the model|"
    r"max_new_tokens.{1,20}must be|exceeds? the (?:available|maximum) (?:context|number of tokens)"
)


class RetryableError(Exception):
    """A failure that another try may not meet."""

    def __init__(self, reason: str, *, status: int = 0, wait: float | None = None, billed: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status  # of HTTP; 0 where no refusal came
        self.wait = wait  # seconds that the server asks for
        self.billed = billed  # whether the server may have generated, and charged for, an answer


def is_retryable(status: int, body: object) -> bool:
    """Tell whether a refused request is worth another try."""
    if status == 429:
        facts = body.get("error", body) if isinstance(body, Mapping) else body
        return not (isinstance(facts, Mapping) and any(facts.get(name) in _QUOTA_CODES for name in ("code", "type")))
    return status in {408, 409, 425} or status >= 500


def find_error(text: str) -> tuple[int, object] | None:
    """Find the status and the body of an error that a server sends with status 200, as OpenRouter does."""
    with contextlib.suppress(ValueError):
        match parse_json(text) if '"error"' in text else None:
            case {"error": {"code": int(code)} as error} | {"choices": [{"error": {"code": int(code)} as error}, *_]}:
                return (code, error) if 400 <= code < 600 else None
    return None


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse the seconds that a server asks to wait, or the time until when; None if it names none."""
    text = headers.get("retry-after", "")
    with contextlib.suppress(ValueError):
        return max(0.0, float(text))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    return None


def compute_wait(tries: int, asked: float | None, status: int = 0) -> float:
    """Compute the seconds to wait after `tries` failures: doubling, with jitter, and at least `asked` up to its cap."""
    first = MIN_WAIT * RATE_LIMIT_FACTOR if status == 429 and asked is None else MIN_WAIT
    usual = min(first * 2.0 ** (tries - 1), MAX_WAIT)
    if asked is None:
        return usual * random.uniform(0.5, 1.0)
    return min(asked, MAX_RETRY_AFTER) + usual * random.uniform(0.0, 0.5)


def extract_error_text(body: object) -> str:
    """Extract a server's message from an error's body, on one line, cut."""
    text: object = body
    while isinstance(text, Mapping):
        text = next((text[name] for name in ("error", "message", "detail", "msg") if text.get(name)), json.dumps(text))
    words = " ".join(str(text or "no reason given").split())
    return words if len(words) <= MAX_ERROR_CHARS else f"{words[:MAX_ERROR_CHARS]} ..."


def explain_refusal(status: int, body: object, *, url: str, model: str, key_env: str) -> str:
    """Explain in one line what was refused, and the fix."""
    facts = body if isinstance(body, Mapping) else {}
    if status in {401, 403}:
        fix = f"the environment variable {key_env} (endpoint.api_key_env) holds no key that allows this"
    elif status in {402, 429}:
        fix = "the account has nothing left to spend: top it up, and run the same command again"
    elif status == 413 or is_context_overflow(body):
        fix = (f"set endpoint.context_tokens to what the model {model!r} holds, so that episodes end before, and run "
               "the same command again")  # fmt: skip
    elif status == 404 or facts.get("code") == "model_not_found" or facts.get("param") == "model":
        fix = (f"either it has no model {model!r} (model.path = openai:{model}), or endpoint.base_url is not the "
               "address of its API, which mostly ends in /v1")  # fmt: skip
    else:
        fix = ("if it refuses a parameter, see endpoint.omit, endpoint.max_tokens_field, "
               "endpoint.extra and model.template_options")  # fmt: skip
    return f"{url} answers {status}: {extract_error_text(body)}; {fix}"


def is_context_overflow(body: object) -> bool:
    """Tell whether a text was longer than the model takes."""
    if isinstance(body, Mapping) and "context" in str(body.get("code") or body.get("type") or ""):
        return True
    return _CONTEXT_OVERFLOW.search(extract_error_text(body).lower()) is not None
